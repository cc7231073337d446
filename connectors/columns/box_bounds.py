"""Lower and upper bounds of spaces with arrays of numbers as values."""

from __future__ import annotations

from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError

__all__ = ["bounds_of", "box_of", "choices_between", "choices_of"]


def bounds_of(space: gym.Space[Any], piece: str) -> tuple[Any, Any]:
    """Lower and upper bounds of the numbers that a space's values are made of: arrays of their shape and type.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary.
        piece: Name of the piece, for messages.

    Raises:
        SpaceError: another space.
    """
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.Discrete):
        low: Any = np.asarray(space.start, space.dtype)
        return low, low + np.asarray(int(space.n) - 1, space.dtype)
    if isinstance(space, gym.spaces.MultiDiscrete):
        start: Any = np.asarray(space.start, space.dtype)
        return start, start + np.asarray(space.nvec, space.dtype) - np.ones_like(start)
    if isinstance(space, gym.spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    raise SpaceError(
        piece,
        expected="a Box, Discrete, MultiDiscrete or MultiBinary space, or nested ones of these",
        found=str(space),
        do="name the parts that are such spaces, as in 'obs/pose'",
    )


def box_of(low: Any, high: Any) -> gym.spaces.Box:
    """The Box with these bounds, of their type."""
    return gym.spaces.Box(np.asarray(low), np.asarray(high), np.shape(low), low.dtype.type)


def choices_between(space: gym.Space[Any], low: Any, high: Any) -> gym.Space[Any]:
    """The space of choices with these bounds: a Discrete for a Discrete, otherwise a MultiDiscrete.

    Args:
        space: Discrete, MultiDiscrete or MultiBinary.
        low: The least choices, an array of integers in the type that is wanted.
        high: The greatest ones.
    """
    if not isinstance(space, gym.spaces.Discrete):
        return choices_of(low, high)
    typed: dict[str, Any] = {"dtype": low.dtype.type} if "dtype" in signature(gym.spaces.Discrete).parameters else {}
    return gym.spaces.Discrete(int(high) - int(low) + 1, start=int(low), **typed)  # int64 before Gymnasium 1.2


def choices_of(low: Any, high: Any) -> gym.spaces.MultiDiscrete:
    """The MultiDiscrete with these bounds, of their type."""
    counts: Any = (np.asarray(high, np.int64) - low + 1).astype(low.dtype)
    return gym.spaces.MultiDiscrete(counts, dtype=low.dtype.type, start=np.asarray(low))
