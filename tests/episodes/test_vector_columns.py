"""Rows of chunks in a block, and observations that lie outside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.episodes._storage.block import Block
from epibatch.episodes._storage.chunk import Chunk
from epibatch.episodes._storage.vector_columns import ChunkFacts, take, with_tails


def chunk(env: int, start: int, stop: int, tail: Any = None) -> Chunk:
    made = Chunk(Block(2, 4), env, 0, start, (None, None))
    made.finish(stop, tail is not None, False)
    if tail is not None:
        made.tail = tail
    return made


CHUNKS = [chunk(1, 0, 2, np.array([5.0])), chunk(0, 1, 4), chunk(1, 2, 2), chunk(0, 3, 4, np.array([6.0]))]


def test_facts() -> None:
    facts = ChunkFacts.of(CHUNKS)
    assert (facts.envs.tolist(), facts.starts.tolist()) == ([1, 0, 1, 0], [0, 1, 2, 3])
    assert facts.lengths.tolist() == [2, 3, 0, 1] and facts.tails.tolist() == [0, 3]
    assert facts.ends.tolist() == [[True, False, False, True], [False] * 4]
    assert len(ChunkFacts.of([]).lengths) == 0


@pytest.mark.parametrize(
    ("plus_one", "next_exists", "expected"),
    [
        (False, True, [(0, 1), (1, 1), (1, 0), (2, 0), (3, 0), (3, 0)]),
        (True, True, [(0, 1), (1, 1), (1, 1), (1, 0), (2, 0), (3, 0), (4, 0), (2, 1), (3, 0), (3, 0)]),
        (True, False, [(0, 1), (1, 1), (1, 1), (1, 0), (2, 0), (3, 0), (3, 0), (1, 1), (3, 0), (3, 0)]),
    ],
)
def test_positions(plus_one: bool, next_exists: bool, expected: list[tuple[int, int]]) -> None:
    found = ChunkFacts.of(CHUNKS).positions(2, plus_one, next_exists)
    assert found.tolist() == [row * 2 + env for row, env in expected]
    leaf = np.arange(20).reshape(5, 2, 2)
    np.testing.assert_array_equal(take(leaf, found), [leaf[row, env] for row, env in expected])


@pytest.mark.parametrize(
    ("tails", "dtype"),
    [
        ((np.array([5], np.float32), np.array([6], np.float32)), np.float32),
        ((np.array([5.0]), np.array([6], np.float32)), np.float64),
        ((np.array([5], np.int8), np.array([6, 7], np.int8)), object),
    ],
)
def test_tails(tails: Any, dtype: Any) -> None:
    chunks = [chunk(0, 0, 1, tails[0]), chunk(1, 0, 2), chunk(0, 1, 2, tails[1])]
    facts = ChunkFacts.of(chunks)
    (leaf,) = with_tails([np.zeros((7, 1), np.float32)], None, chunks, facts)
    assert leaf.dtype == dtype and leaf[1].tolist() == tails[0].tolist() and leaf[6].tolist() == tails[1].tolist()
    assert [row.tolist() for row in leaf[2:6]] == [[0]] * 4


def test_numbers_as_tails_keep_the_columns_type() -> None:
    chunks = [chunk(0, 0, 1, 5), chunk(0, 1, 2, 2.5)]
    (leaf,) = with_tails([np.zeros(4, np.float32)], None, chunks, ChunkFacts.of(chunks))
    assert leaf.dtype == np.float32 and leaf.tolist() == [0, 5, 0, 2.5]
    with pytest.raises(ColumnError, match="nesting"):
        with_tails([np.zeros(4)], ("dict", ("a",), (None,)), chunks, ChunkFacts.of(chunks))
