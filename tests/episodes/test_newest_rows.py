"""The newest rows of many columns, beside those that each column gives when it is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.structs import flatten
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from epibatch.episodes._storage.newest_rows import newest_rows
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

KINDS = {
    "vector": lambda rng: rng.standard_normal(3).astype(np.float32),
    "wider": lambda rng: rng.standard_normal(3),
    "image": lambda rng: rng.integers(0, 256, (2, 3, 1), dtype=np.uint8),
    "number": lambda rng: np.int64(rng.integers(9)),
    "flag": lambda rng: bool(rng.integers(2)),
    "dict": lambda rng: {"h": rng.standard_normal(2), "c": {"d": np.float32(rng.standard_normal())}},
    "tuple": lambda rng: (rng.standard_normal((2, 2)), np.int8(rng.integers(9))),
    "text": lambda rng: str(rng.integers(9)),
}
ALONE = {"vector", "image", "number", "flag", "dict", "tuple"}


def column(kind, length, rng, provisional):
    made = InfiniteLookbackBuffer()
    for i in range(length):
        (made.stage if provisional and i == length - 1 else made.append)(KINDS[kind](rng))
    return made


def stacked_one_by_one(columns):
    """Each leaf of the rows that `last()` gives, stacked."""
    return [np.stack(leaves) for leaves in zip(*(flatten(own.last())[0] for own in columns))]


@given(st.data())
def test_they_are_what_each_column_gives(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = [
        column(data.draw(st.sampled_from(kinds)), data.draw(st.integers(1, 20)), rng, data.draw(st.booleans()))
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    found = newest_rows(columns)
    if found is None:
        assert kinds != [kind for kind in kinds if kind in ALONE] or len(kinds) > 1
        return
    leaves, form = flatten(found)
    assert form == columns[0].form
    for leaf, expected in zip(leaves, stacked_one_by_one(columns), strict=True):
        assert leaf.dtype == expected.dtype and leaf.tolist() == expected.tolist()
        assert all(not np.shares_memory(leaf, own) for one in columns for own in one._leaves)


@pytest.mark.parametrize("kind", sorted(ALONE))
def test_columns_of_one_kind_are_read_this_way(kind):
    rng = np.random.default_rng(0)
    assert newest_rows([column(kind, length, rng, length == 2) for length in (1, 2, 40)]) is not None


@pytest.mark.parametrize(
    "rows",
    [
        ([1.0], []),
        ([np.zeros(3)], [np.zeros((3, 1))]),
        ([np.zeros((3, 1))], [np.zeros((3, 2))]),
        ([np.zeros(2)], [np.zeros(4)]),  # six numbers, which two rows of three would be too
        ([np.zeros(2)], [1.0]),
        ([1.0], [np.zeros(2)]),
        ([{"a": 1}], [{"b": 1}]),
        ([{"a": 1}], [1]),
        (["text"], ["text"]),
        ([np.array(None)], [np.array(None)]),
    ],
)
def test_rows_that_do_not_fit_one_another_are_left_to_the_caller(rows):
    assert newest_rows([InfiniteLookbackBuffer(list(own)) for own in rows]) is None


def test_a_newest_row_that_is_held_apart_is_left_to_the_caller():
    columns = [InfiniteLookbackBuffer([np.zeros(2), np.zeros(2)]) for _ in range(2)]
    columns[1].stage(np.zeros(5))
    assert newest_rows(columns) is None


def test_a_column_whose_rows_were_all_taken_back_is_left_to_the_caller():
    columns = [InfiniteLookbackBuffer([np.zeros(2)]) for _ in range(2)]
    columns[0].pop()
    assert newest_rows(columns) is None


def test_episodes_that_show_a_block_are_left_to_the_caller():
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 3)))
    own = SingleAgentEpisode(observations=[np.zeros(3)])
    views = [recorder.episodes[0].observations, recorder.episodes[1].observations]
    assert newest_rows([own.observations]).shape == (1, 3)
    assert newest_rows(views) is newest_rows([own.observations, views[0]]) is None
