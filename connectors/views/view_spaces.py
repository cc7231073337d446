"""The space of observations that a view replaces."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError, UnknownNameError, nearest
from epibatch.core.fill_values import exact_fill_value
from epibatch.core.space_checks import get_base_struct_from_space, map_space

from .view import View

__all__ = ["stacked_space"]


def stacked_space(space: Any, view: View) -> Any:
    """The space of what a view shows of a column.

    Args:
        space: The column's space.
        view: One shift leaves the space as it is, but for the fill value; several put an axis in front of each leaf.

    Raises:
        ColumnError: the type of a part of the space cannot hold the fill value.
        SpaceError: a part of the space has no such stack (Text, Graph, Sequence).
        UnknownNameError: the view is of a part that the space does not have.

    Example:
        >>> space = stacked_space(gym.spaces.Box(1, 2, (3,)), View("obs", "-1:0"))
        >>> space.shape, float(space.low.min()), float(space.high.max())
        ((2, 3), 0.0, 2.0)
    """
    for key in (view.column or "").split("/")[1:]:
        parts = _parts(space)
        if key not in parts:
            where = f"the view {view.column!r} of {space}"
            raise UnknownNameError(where, expected="a part of it", found=repr(key), do=nearest(key, parts))
        space = parts[key]
    count = None if view.is_single else len(view.shifts)
    return map_space(partial(_stacked, count, 0 if view.fill is None else view.fill), space)


def _parts(space: Any) -> dict[str, Any]:
    struct = get_base_struct_from_space(space)
    named = struct.items() if isinstance(struct, dict) else enumerate(struct) if isinstance(struct, tuple) else ()
    return {str(key): part for key, part in named}


def _stacked(count: int | None, fill: float, space: Any) -> Any:
    if isinstance(space, gym.spaces.Box):
        lead = () if count is None else (count,)
        value = exact_fill_value(np.dtype(space.dtype), fill, "a view of the observations")
        low, high = np.minimum(space.low, value), np.maximum(space.high, value)
        shape = (*lead, *space.shape)
        return gym.spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=low.dtype.type)
    if count is None and isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return space
    if isinstance(space, gym.spaces.Discrete) and space.start == 0:
        return gym.spaces.MultiDiscrete([int(space.n)] * int(count or 1))
    if isinstance(space, gym.spaces.MultiDiscrete):
        nvec = np.broadcast_to(space.nvec, (int(count or 1), *space.shape))
        return gym.spaces.MultiDiscrete(np.array(nvec))
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary([int(count or 1), *space.shape])
    raise SpaceError(
        "a view of the observations",
        expected="Box, MultiDiscrete, MultiBinary or Discrete from 0 on, or Dicts and Tuples of these",
        found=repr(space),
        do="bring the observations to numbers with a piece in front (FlattenObservations)",
    )
