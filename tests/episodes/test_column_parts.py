"""Columns of many chunks, joined at once, beside their rows laid down one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.structs import flatten, flatten_like
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from epibatch.episodes._parts.acting_rewards import ActingRewards
from epibatch.episodes._storage.column_parts import ColumnParts, lengths_of
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

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
def test_joined_as_if_laid_down_row_after_row(data):
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
    gaps = [data.draw(st.integers(0, 4)) for _ in counts] if data.draw(st.booleans()) else None
    bootstrap, last = data.draw(st.booleans()), data.draw(st.sampled_from([None, 0, 0.0]))
    parts = ColumnParts.of(columns, counts)
    assert parts is not None
    joined = (parts.with_bootstraps(last) if bootstrap else parts).joined(gaps)
    leaves, form = flatten(joined)
    expected = one_by_one(columns, counts, gaps or [0] * len(counts), bootstrap, last)
    assert form == columns[0].form and len(leaves) == len(expected)
    whole = flatten(parts.joined())[0]
    assert parts.rows_and_bytes() == (len(whole[0]), sum(leaf.nbytes for leaf in whole))
    for leaf, own in zip(leaves, expected):
        np.testing.assert_array_equal(leaf, own)
        assert not any(np.shares_memory(leaf, held) for one in columns for held in one._leaves)


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3), st.integers(0, 99))
def test_given_up_exactly_where_rows_are_not_of_one_kind(kinds, seed):
    rng = np.random.default_rng(seed)
    columns = [column(kind, 0, 3, rng) for kind in kinds]
    objects = any(leaf.dtype == object for one in columns for leaf in one._leaves)
    shapes = {tuple(leaf.shape[1:] for leaf in one._leaves) for one in columns}
    of_one_kind = not objects and len(shapes) == len({str(one.form) for one in columns}) == 1
    assert (ColumnParts.of(columns, [3] * len(kinds)) is not None) is of_one_kind


def test_chunks_without_rows_take_no_place():
    rng = np.random.default_rng(0)
    columns = [column("vector", 2, count, rng) for count in (2, 0, 1)]
    joined = ColumnParts.of(columns, [2, 0, 1]).joined([1, 0, 2])
    assert joined[[2, 4, 5]].tolist() == np.zeros((3, 3)).tolist()
    np.testing.assert_array_equal(joined[[0, 1, 3]], np.concatenate([columns[0].get(), columns[2].get()]))


@pytest.mark.parametrize("kind", ["vector", "dict"])
def test_a_row_held_apart_counts_only_if_it_is_asked_for(kind):
    rng = np.random.default_rng(0)
    made = column(kind, 1, 3, rng)
    made.stage(KINDS["wider"](rng))
    assert ColumnParts.of([made], [4]) is None
    assert kind != "dict" or ColumnParts.of([made], [3]) is not None


def test_columns_that_check_or_do_not_own_their_rows_are_asked_themselves():
    assert ColumnParts.of([ActingRewards([1.0, float("nan")])], [2]) is None
    recorder = VectorRecorder(1)
    recorder.reset(np.zeros((1, 2)))
    recorder.step(np.zeros(1), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), np.ones((1, 2)))
    assert ColumnParts.of([episode.observations for episode in recorder.harvest(0)], [1]) is None


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
    assert lengths_of(episodes) == [length for _, length in sizes] == list(map(len, episodes))
    assert lengths_of([*episodes, Odd()])[-1] == 77


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("lookback", [0, 2])
def test_rows_from_a_later_one_on_are_those_of_the_slices(nested, lookback):
    rows = [np.arange(count * 3.0).reshape(count, 3) + 100 * count for count in (4, 5, 6)]
    buffers = [
        InfiniteLookbackBuffer([{"x": row, "y": int(row[0])} if nested else row for row in own], lookback=lookback)
        for own in rows
    ]
    counts = [len(own) - lookback - 1 for own in rows]
    found = ColumnParts.of(buffers, counts, first=1).joined()
    expected = np.concatenate([own[lookback + 1 :] for own in rows])
    np.testing.assert_array_equal(found["x"] if nested else found, expected)
    assert not nested or found["y"].tolist() == expected[:, 0].astype(int).tolist()
    assert ColumnParts.of(buffers, [count + 1 for count in counts], first=1) is None  # more than there are
