"""One-hot reading of columns with Discrete and MultiDiscrete leaves."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.space_checks import get_base_struct_from_space
from epibatch.core.spaces import fill_row, one_hot_column
from epibatch.core.structs import map_struct

from .arrays import filled, with_rows

__all__ = ["one_hot_rows"]


def one_hot_rows(rows: Any, missing: np.ndarray[Any, np.dtype[np.bool_]], space: gym.Space[Any], fill: Any) -> Any:
    """Turn the discrete leaves of stacked rows into float32 one-hot rows.

    Args:
        rows: Arrays of shape [T, ...], nested like `space`.
        missing: Which rows are fill rows (bool, [T]); they become all-fill rather than the one-hot of some value.
        space: Space of one row.
        fill: Value of the missing rows.

    Raises:
        SpaceError: a value lies outside its space.
    """
    if not missing.any():
        return one_hot_column(rows, space)
    legal = map_struct(lambda leaf, row: _legal(leaf, row), get_base_struct_from_space(space), fill_row(space, 0))
    rows = map_struct(lambda leaf, row: with_rows(np.array(leaf), missing, row), rows, legal)
    return map_struct(
        lambda leaf: with_rows(leaf, missing, filled(leaf.shape[1:], leaf.dtype, fill)), one_hot_column(rows, space)
    )


def _legal(leaf: gym.Space[Any], row: Any) -> Any:
    discrete = isinstance(leaf, (gym.spaces.Discrete, gym.spaces.MultiDiscrete))
    return np.asarray(leaf.start) if discrete else row  # type: ignore[attr-defined]
