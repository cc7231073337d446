"""Spaces of rows: their bounds, those of other bounds, and those of what a function makes, found out by trying it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError, add_context
from epibatch.core.spaces import space_like

_ROWS = 3


def probed_space(
    space: gym.Space[Any], function: Callable[[Any], Any], *, monotonic: bool = False
) -> gym.Space[Any] | None:
    """Return the space of one row of a function's results.

    Shape and type are those of the function's results for a few samples. The samples do not show the bounds, so the
    bounds are those of the type. For a monotonic function they are its values at the bounds of the input.

    Args:
        space: Space of the input rows: Box, Discrete, MultiDiscrete or MultiBinary.
        function: Array of rows to array of rows, a method of a piece.
        monotonic: Whether entries of a result never fall, or each never rises, as entries of the row rise.

    Returns:
        A Box; None if there is none of the results' type, such as complex numbers.

    Raises:
        SpaceError: the samples of the space are no arrays.
    """
    rows = _samples(space)
    try:
        out = np.asarray(function(rows))
        limits = space_like((), out.dtype)
        if monotonic and out.dtype != np.bool_ and limits is not None:
            with np.errstate(all="ignore"):
                ends = np.asarray(function(np.stack(bounds_of(space, "probed_space"))))
            low, high = np.minimum(*ends), np.maximum(*ends)
            low, high = np.where(np.isnan(low), limits.low, low), np.where(np.isnan(high), limits.high, high)
            return gym.spaces.Box(low.astype(out.dtype), high.astype(out.dtype), dtype=out.dtype.type)
    except Exception as error:
        of = f"{len(rows)} samples of {space}, shape {rows.shape} and type {rows.dtype}"
        add_context(error, f"{type(getattr(function, '__self__', None)).__name__}, tried on {of}:")
        raise
    return space_of_rows(out)


def space_of_rows(rows: Any) -> gym.Space[Any] | None:
    """The space of rows of which only shape and type are known; None of types that have no Box.

    Args:
        rows: An array, rows first.
    """
    rows = np.asarray(rows)
    return space_like(rows.shape[1:], rows.dtype)


def _samples(space: gym.Space[Any]) -> Any:
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        raise SpaceError(
            f"{type(space).__name__} space",
            expected="a Box, Discrete, MultiDiscrete or MultiBinary space, whose samples are arrays",
            found=str(space),
            do="name the parts to change, as in columns = 'obs/camera', or write output_space(self, space)",
        )
    sampler = copy.deepcopy(space)
    sampler.seed(0)
    return np.stack([np.asarray(sampler.sample()) for _ in range(_ROWS)])


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
