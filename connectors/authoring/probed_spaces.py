"""The space of what a function makes of rows, found out by trying it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError, add_context

from ..columns.box_bounds import bounds_of

__all__ = ["probed_space", "space_like", "space_of_rows"]

_ROWS = 3
_FLOATS = (np.float16, np.float32, np.float64)


def probed_space(
    space: gym.Space[Any], function: Callable[[Any], Any], *, monotonic: bool = False
) -> gym.Space[Any] | None:
    """Return the space of one row of a function's results.

    Shape and type are those of the function's results for a few samples. The samples do not show the bounds, so the
    bounds are those of the type. For a monotonic function they are its values at the bounds of the input.

    Args:
        space: Space of the input rows: Box, Discrete, MultiDiscrete or MultiBinary.
        function: Array of rows to array of rows.
        monotonic: Whether entries of a result never fall, or each never rises, as entries of the row rise.

    Returns:
        A Box; None if there is none of the results' type, such as complex numbers.

    Raises:
        SpaceError: the samples of the space are no arrays.
    """
    rows = _samples(space)
    try:
        out = np.asarray(function(rows))
        if monotonic and out.dtype != np.bool_ and space_like((), out.dtype) is not None:
            with np.errstate(all="ignore"):
                ends = np.asarray(function(np.stack(bounds_of(space, "probed_space"))))
            lowest = np.iinfo(out.dtype).min if out.dtype.kind in "iu" else -np.inf
            highest = np.iinfo(out.dtype).max if out.dtype.kind in "iu" else np.inf
            low, high = np.minimum(*ends), np.maximum(*ends)
            low, high = np.where(np.isnan(low), lowest, low), np.where(np.isnan(high), highest, high)
            return gym.spaces.Box(low.astype(out.dtype), high.astype(out.dtype), dtype=out.dtype.type)
    except Exception as error:
        add_context(error, f"tried on {len(rows)} samples of {space}, shape {rows.shape} and type {rows.dtype}:")
        raise
    return space_of_rows(out)


def space_of_rows(rows: Any) -> gym.Space[Any] | None:
    """The space of rows of which only shape and type are known; None of types that have no Box.

    Args:
        rows: An array, rows first.
    """
    rows = np.asarray(rows)
    return space_like(rows.shape[1:], rows.dtype)


def space_like(shape: tuple[int, ...], dtype: Any) -> gym.spaces.Box | None:
    """Return the Box of all arrays of a shape and a type; None for types without a Box: complex numbers, strings.

    Example:
        >>> space_like((2,), np.dtype(np.uint8)), space_like((2,), np.dtype(np.complex64))
        (Box(0, 255, (2,), uint8), None)
    """
    if dtype.kind in "iu":
        return gym.spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    if dtype.kind == "b":
        return gym.spaces.Box(0, 1, shape, np.bool_)  # type: ignore[arg-type]
    return gym.spaces.Box(-np.inf, np.inf, shape, dtype.type) if dtype in _FLOATS else None


def _samples(space: gym.Space[Any]) -> Any:
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        raise SpaceError(
            f"{type(space).__name__} space",
            expected="a Box, Discrete, MultiDiscrete or MultiBinary space, whose samples are arrays",
            found=str(space),
            do="name the parts to change, as in columns = 'obs/camera', or write output_space(self, space)",
        )
    own = copy.deepcopy(space)
    own.seed(0)
    return np.stack([np.asarray(own.sample()) for _ in range(_ROWS)])
