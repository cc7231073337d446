"""The newest rows of many columns, beside those that each column gives when it is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError
from epibatch.core.structs import flatten
from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode, VectorRecorder, reader_of

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


def newest(columns):
    """The newest rows as a reader of episodes with these observations gives them."""
    episodes = [SingleAgentEpisode() for _ in columns]
    for episode, own in zip(episodes, columns):
        episode.observations = own
    rows, held = reader_of(episodes).newest("obs")
    assert held is None
    return rows


@given(st.data())
def test_they_are_what_each_column_gives(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = [
        column(data.draw(st.sampled_from(kinds)), data.draw(st.integers(1, 20)), rng, data.draw(st.booleans()))
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    rows = [flatten(own.last()) for own in columns]
    if len({(str(form), *(np.shape(leaf) for leaf in leaves)) for leaves, form in rows}) > 1:
        with pytest.raises(ColumnError, match=r"column 'obs'[\s\S]*as in episode"):
            newest(columns)
        return
    leaves, form = flatten(newest(columns))
    assert form == rows[0][1]
    for leaf, expected in zip(leaves, stacked_one_by_one(columns), strict=True):
        assert leaf.dtype == expected.dtype and leaf.tolist() == expected.tolist()
        assert all(not np.shares_memory(leaf, own) for one in columns for own in one.rows(0, len(one)))


@pytest.mark.parametrize(
    "rows",
    [
        ([np.zeros(3)], [np.zeros((3, 1))]),
        ([np.zeros((3, 1))], [np.zeros((3, 2))]),
        ([np.zeros(2)], [np.zeros(4)]),  # six numbers, which two rows of three would be too
        ([np.zeros(2)], [1.0]),
        ([1.0], [np.zeros(2)]),
        ([{"a": 1}], [{"b": 1}]),
        ([{"a": 1}], [1]),
    ],
)
def test_rows_that_do_not_fit_one_another_are_named(rows):
    with pytest.raises(ColumnError, match=r"as in episode[\s\S]*in episode"):
        newest([InfiniteLookbackBuffer(list(own)) for own in rows])


def test_a_newest_row_that_is_held_apart_counts():
    columns = [InfiniteLookbackBuffer([np.zeros(2), np.zeros(2)]) for _ in range(2)]
    for i, own in enumerate(columns):
        own.stage(np.full(5, i))
    assert newest(columns).tolist() == [[0] * 5, [1] * 5]


def test_an_episode_without_observations_has_no_newest_one():
    columns = [InfiniteLookbackBuffer([np.zeros(2)]) for _ in range(2)]
    columns[0].pop()
    with pytest.raises(IndexError):
        newest(columns)


def test_episodes_that_show_a_block_are_read_with_others():
    recorder = VectorRecorder(2)
    recorder.reset(np.ones((2, 3)))
    own = SingleAgentEpisode(observations=[np.zeros(3)])
    rows, held = reader_of([own, recorder.episodes[1]]).newest("obs")
    assert held is None and rows.tolist() == [[0] * 3, [1] * 3]
