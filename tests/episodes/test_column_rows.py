"""Columns of many chunks, joined at once, beside their rows laid down one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, EpisodeError, EpisodeIndexError
from epibatch.core.padding import padded_layout
from epibatch.core.structs import flatten, flatten_like
from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode, reader_of
from epibatch.episodes._parts.acting_rewards import ActingRewards

KINDS = {
    "vector": lambda rng: rng.standard_normal(3).astype(np.float32),
    "integers": lambda rng: rng.integers(-9, 9, 3),
    "wider": lambda rng: rng.standard_normal(4),
    "number": lambda rng: np.float64(rng.standard_normal()),
    "flag": lambda rng: bool(rng.integers(2)),
    "dict": lambda rng: {"h": rng.standard_normal(2), "c": {"d": np.float32(rng.standard_normal())}},
    "tuple": lambda rng: (rng.standard_normal((2, 2)), np.int8(rng.integers(9))),
    "text": lambda rng: str(rng.integers(9)),
    "ragged": lambda rng: np.zeros(int(rng.integers(1, 4))),
}


def column(kind, before, count, rng, *, more=0, promoted=False, provisional=False):
    """A column of `before` lookback rows and `count` and `more` others."""
    total = before + count + more
    made = InfiniteLookbackBuffer()
    for i in range(total):
        (made.stage if provisional and i == total - 1 else made.append)(KINDS[kind](rng))
    made.lookback = before
    stays_raw = provisional and count + more == 1  # the newest row, of another type than its column's
    if promoted and count and not stays_raw and kind in ("vector", "integers", "number"):
        made.set(made.get(0) + 0.5, at_indices=0)
    return made


def episodes_of(columns):
    """Episodes with these columns as a model output."""
    out = []
    for own in columns:
        rows, before = np.arange(own.len_incl_lookback() + 1.0), own.lookback
        out.append(
            SingleAgentEpisode(observations=rows, actions=rows[1:], rewards=rows[1:], len_lookback_buffer=before)
        )
        out[-1].extra_model_outputs["x"] = own
    return out


def one_by_one(columns, counts, gaps, bootstrap, last):
    """The same, row after row: a list of rows per leaf, zeros where none is."""
    form = columns[0].form
    leaves = []
    for own, count, gap in zip(columns, counts, gaps):
        rows = [flatten_like(form, own.get(i)) for i in range(count)]
        if bootstrap:
            rows.append(rows[-1] if last is None else [np.full_like(leaf, last) for leaf in rows[-1]])
        rows += [[np.zeros_like(leaf) for leaf in rows[0]]] * gap if rows else []
        leaves += rows
    return [np.stack(leaf) for leaf in zip(*leaves)]


@given(st.data())
def test_joined_and_padded_as_if_laid_down_row_after_row(data):
    kind = data.draw(st.sampled_from(["vector", "integers", "number", "flag", "dict", "tuple"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    counts = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    columns = [
        column(
            kind,
            data.draw(st.integers(0, 3)),
            count,
            rng,
            more=data.draw(st.integers(0, 1)),
            promoted=data.draw(st.booleans()),
            provisional=data.draw(st.booleans()),
        )
        for count in counts
    ]
    bootstrap, last = data.draw(st.booleans()), data.draw(st.sampled_from([None, 0, 0.0]))

    def rows():
        found = reader_of(episodes_of(columns)).rows("x", 0, np.array(counts))
        return found.with_bootstraps(last) if bootstrap else found

    leaves, form = flatten(rows().joined())
    expected = one_by_one(columns, counts, [0] * len(counts), bootstrap, last)
    assert rows().check() and form == columns[0].form and len(leaves) == len(expected)
    assert rows().rows_and_bytes() == (len(leaves[0]), sum(leaf.nbytes for leaf in leaves))
    for leaf, own in zip(leaves, expected):
        np.testing.assert_array_equal(leaf, own)
        assert not any(np.shares_memory(leaf, held) for one in columns for held in one.rows(0, len(one)))
    steps = data.draw(st.integers(1, 6))
    layout = padded_layout(np.array(counts) + bootstrap, steps)
    gaps = [-(count + bootstrap) % steps for count in counts]
    expected = one_by_one(columns, counts, gaps, bootstrap, last)
    for leaf, own in zip(flatten(rows().padded(layout))[0], expected):
        np.testing.assert_array_equal(leaf, own.reshape(-1, steps, *own.shape[1:]))


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3), st.integers(0, 99))
def test_refused_exactly_where_rows_are_not_of_one_kind(kinds, seed):
    rng = np.random.default_rng(seed)
    columns = [column(kind, 0, 3, rng) for kind in kinds]
    held = [leaf for one in columns for leaf in one.rows(0, 3)]
    forms = {str(one.form) for one in columns}
    shapes = {tuple(leaf.shape[1:] for leaf in one.rows(0, 3)) for one in columns}
    text = {leaf.dtype == object and isinstance(leaf[0], str) for leaf in held}
    if len(forms) > 1:
        with pytest.raises(ColumnError, match=r"column 'x'[\s\S]*as in episode"):
            reader_of(episodes_of(columns)).rows("x")
        return
    rows = reader_of(episodes_of(columns)).rows("x")
    if len(shapes) > 1 or (text == {False} and any(leaf.dtype == object for leaf in held)):
        with pytest.raises(ColumnError, match="column 'x'"):
            rows.check()
    elif len(text) == 1:
        assert rows.check() is (text == {False})


def test_chunks_without_rows_take_no_place():
    rng = np.random.default_rng(0)
    columns = [column("vector", 2, count, rng) for count in (2, 0, 1)]
    rows = reader_of(episodes_of(columns)).rows("x", 0, np.array([2, 0, 1]))
    padded = rows.padded(padded_layout([2, 0, 1], 3))
    assert padded[0, 2].tolist() == padded[1, 1].tolist() == padded[1, 2].tolist() == [0.0] * 3
    np.testing.assert_array_equal(padded[[0, 0, 1], [0, 1, 0]], np.concatenate([columns[0].get(), columns[2].get()]))
    np.testing.assert_array_equal(rows.joined(), np.concatenate([columns[0].get(), columns[2].get()]))


def test_a_chunk_without_rows_has_none_to_repeat():
    columns = [column("vector", 0, count, np.random.default_rng(0)) for count in (2, 0)]
    rows = reader_of(episodes_of(columns)).rows("x")
    with pytest.raises(EpisodeError, match="at least one row of each chunk"):
        rows.with_bootstraps().joined()


@pytest.mark.parametrize("kind", ["vector", "dict"])
def test_a_row_held_apart_counts_only_if_it_is_asked_for(kind):
    made = column(kind, 1, 3, np.random.default_rng(0))
    made.stage(KINDS["wider"](np.random.default_rng(0)))
    assert reader_of(episodes_of([made])).rows("x", 0, np.array([3])).check()
    with pytest.raises(ColumnError):
        reader_of(episodes_of([made])).rows("x", 0, np.array([4])).check()


def test_rewards_that_nobody_gave_are_refused():
    (episode,) = episodes_of([column("number", 0, 2, np.random.default_rng(0))])
    episode.rewards = ActingRewards([1.0, float("nan")])
    assert reader_of([episode]).rows("rewards", 0, 1).joined().tolist() == [1.0]
    with pytest.raises(ColumnError, match="reward= was left out"):
        reader_of([episode]).rows("rewards")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=5))
def test_lengths(sizes):
    class Odd(SingleAgentEpisode):
        def __len__(self):
            return 77

    episodes = []
    for before, length in sizes:
        rows = np.arange(before + length + 1.0)
        columns = {"observations": rows, "actions": rows[1:], "rewards": rows[1:]}
        episodes.append(SingleAgentEpisode(**columns, len_lookback_buffer=before))
    assert reader_of(episodes).lengths.tolist() == [length for _, length in sizes] == list(map(len, episodes))
    assert reader_of([*episodes, Odd()]).lengths[-1] == 77


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("lookback", [0, 2])
def test_rows_from_a_later_one_on_are_those_of_the_slices(nested, lookback):
    rows = [np.arange(count * 3.0).reshape(count, 3) + 100 * count for count in (4, 5, 6)]
    buffers = [
        InfiniteLookbackBuffer([{"x": row, "y": int(row[0])} if nested else row for row in own], lookback=lookback)
        for own in rows
    ]
    reader = reader_of(episodes_of(buffers))
    found = reader.rows("x", 1).joined()
    expected = np.concatenate([own[lookback + 1 :] for own in rows])
    np.testing.assert_array_equal(found["x"] if nested else found, expected)
    assert not nested or found["y"].tolist() == expected[:, 0].astype(int).tolist()
    with pytest.raises(EpisodeIndexError, match=r"rows 1 to 4[\s\S]*InfiniteLookbackBuffer"):  # more than there are
        reader.rows("x", 1, reader.lengths + 1 if lookback == 0 else np.full(3, 5))
