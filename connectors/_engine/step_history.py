"""Earlier actions and rewards of every chunk, as vectors."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError
from epibatch.core.space_checks import get_base_struct_from_space
from epibatch.core.spaces import flatten_inputs_to_1d_tensor
from epibatch.core.structs import map_struct

from .chunks import ChunkGroup
from .windows import check_lookback

__all__ = ["StepHistory"]

Vectors = npt.NDArray[np.float32]


class StepHistory:
    """The last actions or rewards before an observation, oldest first, zeros before the episode's start.

    An action is one float32 vector: its leaves side by side, dicts sorted by key, Discrete and
    MultiDiscrete ones as one-hot vectors, the others as they are. A reward is a vector of length 1.

    Args:
        name: `actions` or `rewards`.
        count: How many.
        action_space: Space of one action, if it is about actions.
        owner: Name of the piece, for messages.

    Attributes:
        space: The Box of `count` vectors side by side.

    Raises:
        SpaceError: actions without a fixed number of entries.
    """

    __slots__ = ("_count", "_name", "_owner", "_size", "_struct", "space")

    def __init__(self, name: str, count: int, action_space: gym.Space[Any] | None, owner: str) -> None:
        self._name, self._count, self._owner, self._struct = name, count, owner, None
        if name == Columns.ACTIONS:
            self._struct = get_base_struct_from_space(action_space)
            bounds = map_struct(lambda leaf: _bounds(leaf, owner), self._struct)
            low, high = flatten_inputs_to_1d_tensor(bounds).reshape(-1, 2).T
        else:
            low, high = np.array([[-np.inf], [np.inf]], np.float32)
        self._size = len(low)
        self.space = gym.spaces.Box(np.tile(low, count), np.tile(high, count), dtype=np.float32)

    def before_newest(self, group: ChunkGroup) -> Vectors:
        """What came before the newest observation of each chunk: float32, shape [chunks, count * size].

        Raises:
            LookbackError: a chunk goes on in the middle of an episode and kept too little of it.
        """
        out = np.zeros((len(group.episodes), self._count, self._size), np.float32)
        rows, held = group.reader.latest(self._name, self._count)
        if held is not None:
            check_lookback(group, self._name, self._count - group.lengths, self._owner)
        if rows is not None and (held is None or held.any()):
            every = np.full(len(out), self._count) if held is None else held
            there = np.arange(self._count) >= self._count - every[:, None]
            out[there] = self._vectors(map_struct(lambda leaf: leaf.swapaxes(0, 1)[there], rows))
        return out.reshape(len(out), -1)

    def before_every(self, group: ChunkGroup) -> Vectors:
        """What came before each observation that is in the batch: float32, shape [rows, count * size].

        Raises:
            LookbackError: a chunk goes on in the middle of an episode and kept too little of it.
        """
        counts, reader = group.counts, group.reader
        before = np.minimum(self._count, reader.lookbacks)
        check_lookback(group, self._name, self._count, self._owner)
        rows = reader.rows(self._name, -before, group.lengths)
        rows.check()
        vectors = self._vectors(rows.joined())
        # Position of each observation's next step among `vectors`, and how many of them come before it.
        next_steps = np.cumsum(before + group.lengths) - group.lengths
        at = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        available, at = np.repeat(before, counts) + at, np.repeat(next_steps, counts) + at
        out = np.zeros((len(at), self._count, self._size), np.float32)
        for back in range(1, self._count + 1):
            exists = available >= back
            out[exists, -back] = vectors[at[exists] - back]
        return out.reshape(len(out), -1)

    def _vectors(self, rows: Any) -> Vectors:
        vectors: Vectors = flatten_inputs_to_1d_tensor(rows, self._struct)
        return vectors


def _bounds(leaf: Any, owner: str) -> Vectors:
    """Lower and upper bound of an action leaf's entries as they are stored: float32, shape [1, entries * 2]."""
    if isinstance(leaf, gym.spaces.Box):  # what is stored is the module's action, which has no bounds
        return np.tile(np.array([-np.inf, np.inf], np.float32), (1, math.prod(leaf.shape)))
    size = 0
    if isinstance(leaf, gym.spaces.Discrete):
        size = int(leaf.n)
    elif isinstance(leaf, gym.spaces.MultiDiscrete):
        size = int(leaf.nvec.sum())
    elif isinstance(leaf, gym.spaces.MultiBinary):
        size = math.prod(leaf.shape)
    if size:
        return np.tile(np.array([0, 1], np.float32), (1, size))
    raise SpaceError(
        owner,
        expected="actions of Box, Discrete, MultiDiscrete and MultiBinary parts",
        found="no action space" if leaf is None else repr(leaf),
        do="pass the action space to the pipeline" if leaf is None else "leave the piece out",
    )
