"""Layouts of sequences, against loops over chunks that build one sequence after the other, and against RLlib."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.padding import (
    pad,
    padded_layout,
    placed_layout,
    split_and_zero_pad,
    split_and_zero_pad_n_episodes,
    split_trajectories,
    unpad,
    unpad_data_if_necessary,
)
from epibatch.core.sequence_ends import (
    SEQUENCE_ENDS,
    joined_layout,
    random_layout,
    sequence_layout,
    without_burn_in,
)

COUNTS = st.lists(st.integers(0, 17), max_size=10)
BURNS = ("pad", "drop", "overlap")


def slow_sequences(counts, steps, end, burn_in, bootstrapped):
    """Per sequence: its rows as (chunk, row in the chunk) and which of them carry loss, built one by one."""
    sequences = []
    if end == "continue":
        rows = [(chunk, row) for chunk, count in enumerate(counts) for row in range(count)]
        return [(rows[i : i + steps], [True] * len(rows[i : i + steps])) for i in range(0, len(rows), steps)]
    for chunk, count in enumerate(counts):
        for begin in range(0, count, steps - burn_in):
            own = list(range(begin, min(begin + steps - burn_in, count)))
            before = list(range(max(0, begin - burn_in), begin))
            if end == "overlap" and own[-1] == count - 1:
                while len(before) + len(own) < steps and (before or own)[0] > 0:
                    before.insert(0, (before or own)[0] - 1)
            real = [row for row in own if not (bootstrapped and row == count - 1)]
            loses = (end == "drop" and len(real) < steps - burn_in) or (end == "truncate" and begin > 0)
            if loses and not bootstrapped:
                continue
            rows = [(chunk, row) for row in before + own]
            sequences.append((rows, [False] * len(before) + [not loses] * len(own)))
    return sequences


def filled(sequences, steps, values):
    """The slow sequences as padded arrays of values and of what carries loss."""
    padded = np.zeros((len(sequences), steps), values[0].dtype if values else np.int64)
    loss = np.zeros(padded.shape, bool)
    for i, (rows, carries) in enumerate(sequences):
        for t, ((chunk, row), one) in enumerate(zip(rows, carries)):
            padded[i, t] = values[chunk][row]
            loss[i, t] = one
    return padded, loss


def chunks_of(counts):
    starts = np.cumsum([0, *counts])
    return [np.arange(start + 1, start + count + 1) for start, count in zip(starts, counts)]


@given(COUNTS, st.integers(1, 7), st.sampled_from(SEQUENCE_ENDS), st.integers(0, 6), st.booleans())
@example([20], 20, "pad", 5, False)
@example([4, 4], 4, "drop", 0, False)
def test_every_end_equals_the_loop_over_chunks(counts, steps, end, burn_in, bootstrapped):
    burn_in = min(burn_in, steps - 1) if end in BURNS else 0
    layout = sequence_layout(counts, steps, end=end, burn_in=burn_in, bootstrapped=bootstrapped)
    slow = slow_sequences(counts, steps, end, burn_in, bootstrapped)
    rows = np.arange(1, sum(counts) + 1)
    expected, loss = filled(slow, steps, chunks_of(counts))
    np.testing.assert_array_equal(pad(rows, layout), expected)
    np.testing.assert_array_equal(layout.loss, loss)
    assert layout.seq_lens.tolist() == [len(own) for own, _ in slow]
    assert layout.sequence_chunks.tolist() == [own[0][0] for own, _ in slow]
    assert layout.offsets.tolist() == [own[0][1] for own, _ in slow]
    np.testing.assert_array_equal(layout.mask, np.arange(steps) < layout.seq_lens[:, None])


@given(
    COUNTS,
    st.integers(1, 7),
    st.sampled_from(SEQUENCE_ENDS),
    st.integers(0, 6),
    st.sampled_from([(), (3,), (2, 2)]),
    st.sampled_from(["f4", "i8", "u1", "?"]),
)
def test_unpad_inverts_each_end_bit_by_bit(counts, steps, end, burn_in, shape, dtype):
    burn_in = min(burn_in, steps - 1) if end in BURNS else 0
    layout = sequence_layout(counts, steps, end=end, burn_in=burn_in)
    total = sum(counts)
    rows = (np.arange(1, total * int(np.prod(shape)) + 1).reshape(total, *shape) % 251).astype(dtype)
    padded = pad(rows, layout)
    assert padded.dtype == rows.dtype and padded.shape == (layout.num_sequences, steps, *shape)
    assert not padded[~layout.mask].any()
    back = unpad(padded, layout)
    assert back.tobytes() == rows[layout.kept_rows].tobytes()
    if end not in ("drop", "truncate"):
        assert back.tobytes() == rows.tobytes()
    burned = unpad(pad(rows, without_burn_in(layout, burn_in)), without_burn_in(layout, burn_in))
    assert burned.tobytes() == back.tobytes()


@given(COUNTS, st.integers(1, 7))
def test_continue_marks_every_chunk_that_begins_behind_a_first_place(counts, steps):
    layout = sequence_layout(counts, steps, end="continue")
    begins = [start for start, count in zip(np.cumsum(counts) - counts, counts) if count and start % steps]
    assert np.flatnonzero(layout.resets).tolist() == begins
    assert sum(layout.gaps) == layout.mask.size - layout.num_rows


@given(st.lists(st.integers(1, 17), min_size=1, max_size=8), st.integers(1, 7), st.integers(0, 6), st.data())
def test_random_layouts_hold_rows_in_a_row_with_their_prefix(counts, steps, burn_in, data):
    burn_in = min(burn_in, steps - 1)
    draws = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=len(counts), max_size=len(counts)))
    for short in ("pad", "drop"):
        layout = random_layout(counts, steps, draws, burn_in=burn_in, short=short)
        chunks = [i for i, count in enumerate(counts) if short == "pad" or count >= steps - burn_in]
        assert layout.sequence_chunks.tolist() == chunks
        for i, (chunk, values) in enumerate((one, chunks_of(counts)[one]) for one in chunks):
            own = pad(np.concatenate(chunks_of(counts)), layout)[i][layout.loss[i]]
            assert len(own) == min(steps - burn_in, counts[chunk])
            before = int(layout.prefixes[i])
            assert before == min(burn_in, int(own[0] - values[0]))
            row = pad(np.concatenate(chunks_of(counts)), layout)[i][: before + len(own)]
            assert row.tolist() == list(range(int(own[0]) - before, int(own[-1]) + 1))
            assert set(row.tolist()) <= set(values.tolist())


def test_random_starts_are_uniform():
    draws = (np.arange(6000) + 0.5) / 6000  # every share of [0, 1) alike
    layout = random_layout([9] * 6000, 4, draws)
    assert np.bincount(layout.offsets).tolist() == [1000] * 6


def test_burn_in_of_five_leaves_fifteen_of_twenty():
    layout = sequence_layout([20], 20, burn_in=5)
    assert layout.offsets.tolist() == [0, 10] and layout.burn_in.tolist() == [0, 5]
    burned = without_burn_in(layout, 5)
    assert burned.mask.shape == (2, 15) and burned.seq_lens.tolist() == [15, 5]
    assert pad(np.arange(20), burned)[1, :5].tolist() == [15, 16, 17, 18, 19]
    assert burned.loss.sum() == 20


@given(COUNTS, st.integers(1, 5), st.sampled_from(["pad", "drop", "truncate", "overlap"]), st.data())
def test_merged_groups_are_the_layout_of_all(counts, steps, end, data):
    owners = data.draw(st.lists(st.integers(0, 1), min_size=len(counts), max_size=len(counts)))
    places = [[i for i, owner in enumerate(owners) if owner == group] for group in (0, 1)]
    groups = [sequence_layout([counts[i] for i in own], steps, end=end) for own in places]
    merged, whole = joined_layout(groups, np.argsort(places[0] + places[1])), sequence_layout(counts, steps, end=end)
    for name in ("counts", "seq_lens", "mask", "sequence_chunks", "offsets", "source", "loss"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert merged.num_rows == whole.num_rows


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sequence_layout([3], 4, end="drp"), ConfigError, "drop"),
        (lambda: sequence_layout([3], 4, burn_in=4), ConfigError, "less than max_seq_len = 4"),
        (lambda: sequence_layout([3], 4, burn_in=-1), ConfigError, "-1"),
        (lambda: sequence_layout([3], 4, burn_in=1, end="truncate"), ConfigError, "truncate"),
        (lambda: sequence_layout([3], 4, burn_in=1, end="continue"), ConfigError, "continue"),
        (lambda: random_layout([3], 4, [0.5], short="droop"), ConfigError, "'pad' or 'drop'"),
        (lambda: random_layout([-3], 4, [0.5]), ColumnError, "row counts"),
        (lambda: padded_layout([1], 0), ConfigError, r"max_seq_len[\s\S]*found:    0"),
        (lambda: padded_layout([1.5], 2), ColumnError, "integers >= 0"),
        (lambda: pad(np.zeros(3), padded_layout([2], 2)), ColumnError, "expected: 2 rows"),
        (lambda: unpad(np.zeros((2, 3)), padded_layout([2], 2)), ColumnError, r"leading shape \(1, 2\)"),
        (lambda: split_and_zero_pad([], 2), ColumnError, "an empty list"),
        (lambda: split_and_zero_pad([np.zeros(2), np.zeros(3)], 2), ColumnError, r"shapes \[\(2,\), \(3,\)\]"),
        (lambda: split_and_zero_pad_n_episodes(np.zeros(9), [5, 5], 3), ColumnError, "expected: 10 rows"),
        (lambda: split_trajectories({"obs": np.zeros(3)}), ColumnError, r"'eps_id', or flags[\s\S]*\['obs'\]"),
        (lambda: split_trajectories({"obs": np.zeros(3), "eps_id": np.zeros(2)}), ColumnError, "expected: 2 rows"),
        (lambda: split_trajectories({"eps_id": np.zeros((2, 2))}), ColumnError, r"eps_id of shape \(2, 2\)"),
        (
            lambda: split_trajectories({"terminateds": [True], "truncateds": []}),
            ColumnError,
            r"truncateds of shape \(0,\)",
        ),
        (lambda: unpad_data_if_necessary([5, 3], np.zeros((4, 2))), ColumnError, r"leading shape \(5, 2\)"),
        (lambda: unpad_data_if_necessary([4], np.zeros((2, 3, 2))), ColumnError, r"\[R\] or \[B, T\]"),
    ],
)
def test_errors_name_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()


@given(st.lists(st.integers(0, 4), max_size=6), st.data(), st.sampled_from([(), (3,)]))
def test_rows_at_given_places_and_back(counts, data, shape):
    total = sum(counts)
    places = np.array(data.draw(st.permutations(range(2 * total)))[:total], np.int64)
    rows = np.arange(1, total * int(np.prod(shape)) + 1).reshape(total, *shape)
    layout = placed_layout(np.array(counts, np.int64), places, (total, 2))
    padded = pad(rows, layout)
    expected = np.zeros((2 * total, *shape), np.int64)
    for place, row in zip(places, rows):
        expected[place] = row
    assert np.array_equal(padded, expected.reshape(total, 2, *shape))
    assert np.array_equal(unpad(padded, layout), rows)
    assert layout.mask.sum() == total and np.array_equal(layout.kept_rows, np.arange(total))


@pytest.mark.parametrize("by", ["ids", "ids in turns", "terminateds", "both flags"])
def test_trajectories_are_those_of_a_loop_over_rows(by):
    rng = np.random.default_rng(0)
    lengths = [1, 1] if by == "ids in turns" else rng.integers(1, 30, 160).tolist()
    if by == "ids in turns":  # as of environments that step together: one ends in the middle, another begins
        owner = np.array([7, 3, 7, 3, 7, 5, 7, 5])
    else:
        owner = np.repeat(rng.permutation(160), lengths)
    rows = len(owner)
    ends = np.r_[owner[1:] != owner[:-1], False]  # the last one is cut
    batch = {
        "obs": {"a": rng.random((rows, 2)), "b": np.arange(1, rows + 1)},
        "infos": [{"row": i} for i in range(rows)],
    }
    if "ids" in by:
        batch["eps_id"] = np.array([f"e{i}" for i in owner])
    else:
        cut = rng.random(rows) < 0.5 if by == "both flags" else np.zeros(rows, bool)
        batch |= {"terminateds": ends & ~cut, **({"truncateds": ends & cut} if by == "both flags" else {})}
    padded, layout = split_trajectories(batch)
    trajectories = {}
    for row, name in enumerate(owner):
        trajectories.setdefault(name, []).append(row)
    assert layout.mask.shape == (len(trajectories), max(map(len, trajectories.values())))
    for found, mask, expected in zip(padded["obs"]["b"], layout.mask, trajectories.values()):
        count = len(expected)
        assert found[:count].tolist() == [row + 1 for row in expected] and not found[count:].any()
        assert mask[:count].all() and not mask[count:].any()
    for name in ("a", "b"):
        np.testing.assert_array_equal(unpad(padded["obs"][name], layout), batch["obs"][name])
    assert unpad(padded["infos"], layout).tolist() == batch["infos"]


def test_a_batch_without_rows_has_no_trajectories():
    padded, layout = split_trajectories({"obs": np.zeros((0, 3)), "eps_id": []})
    assert padded["obs"].shape == (0, 0, 3) and layout.mask.shape == (0, 0)
