"""Pieces that remove, insert, reorder or reshape axes of rows; each has an inverse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from epibatch.core.errors import ColumnError, ConfigError

from ..authoring.column_transform import ColumnTransform


def _axis_of_rows(piece: str, axis: int, row_axes: int) -> int:
    """An axis of a row as an axis of the array of rows.

    Raises:
        ColumnError: rows have no such axis.
    """
    if not -row_axes <= axis < row_axes:
        raise ColumnError(
            f"{piece}.axis",
            expected=f"an axis from {-row_axes} to {row_axes - 1}" if row_axes else "rows of one axis at least",
            found=f"axis {axis}",
            do="count axes of one row, the axis of rows left out: 0 is the first",
        )
    return axis + 1 if axis >= 0 else axis + row_axes + 1


class SqueezeColumns(ColumnTransform):
    """Takes an axis of length 1 out of rows; undone by putting it back.

    Counterparts: TorchRL's `SqueezeTransform`.

    Args:
        columns: Name of the column, or names.
        axis: Axis of a row, from the front or (negative) from the back.

    Raises:
        ColumnError: rows without such an axis, or one that is longer.

    Examples:
        >>> import gymnasium as gym
        >>> SqueezeColumns(gym.spaces.Box(0, 1, (3, 1)), columns="obs", axis=-1).observation_space
        Box(0.0, 1.0, (3,), float32)
    """

    takes_tensors = True
    monotonic = True
    columns: Any
    axis: int

    def transform(self, x: Any) -> Any:
        """Rows without the axis."""
        axis = _axis_of_rows("SqueezeColumns", self.axis, x.ndim - 1)
        if x.shape[axis] != 1:
            raise ColumnError(
                f"SqueezeColumns(axis={self.axis})",
                expected="an axis of length 1",
                found=f"rows of shape {tuple(x.shape[1:])}",
                do="name the axis that has length 1",
            )
        return x.reshape(*x.shape[:axis], *x.shape[axis + 1 :])

    def inverse(self, y: Any) -> Any:
        """Rows with the axis again."""
        axis = _axis_of_rows("SqueezeColumns", self.axis, y.ndim)
        return y.reshape(*y.shape[:axis], 1, *y.shape[axis:])


class UnsqueezeColumns(ColumnTransform):
    """Puts an axis of length 1 into rows; undone by taking it out.

    Counterparts: TorchRL's `UnsqueezeTransform`.

    Args:
        columns: Name of the column, or names.
        axis: Which axis of a row it becomes, from the front or (negative) from the back.

    Raises:
        ColumnError: rows with too few axes.

    Examples:
        >>> import gymnasium as gym
        >>> UnsqueezeColumns(gym.spaces.Discrete(5), columns="obs", axis=0).observation_space
        Box(0, 4, (1,), int64)
    """

    takes_tensors = True
    monotonic = True
    columns: Any
    axis: int

    def transform(self, x: Any) -> Any:
        """Rows with the axis."""
        axis = _axis_of_rows("UnsqueezeColumns", self.axis, x.ndim)
        return x.reshape(*x.shape[:axis], 1, *x.shape[axis:])

    def inverse(self, y: Any) -> Any:
        """Rows without it."""
        axis = _axis_of_rows("UnsqueezeColumns", self.axis, y.ndim - 1)
        return y.reshape(*y.shape[:axis], *y.shape[axis + 1 :])


class PermuteColumns(ColumnTransform):
    """Puts the axes of rows into another order; undone by putting them back.

    The result is a view of another memory order, as of `np.transpose`, until the batch is made.

    Counterparts: TorchRL's `PermuteTransform`.

    Args:
        columns: Name of the column, or names.
        axes: Which axis of a row becomes the first, the second, and so on.

    Raises:
        ConfigError: axes that are not each named once.
        ColumnError: rows of another number of axes.

    Examples:
        >>> import gymnasium as gym
        >>> space = gym.spaces.Box(0, 255, (84, 80, 3), np.uint8)
        >>> PermuteColumns(space, columns="obs", axes=[2, 0, 1]).observation_space
        Box(0, 255, (3, 84, 80), uint8)
    """

    takes_tensors = True
    monotonic = True
    columns: Any
    axes: Any

    def __post_init__(self) -> None:
        """Check the axes."""
        axes = list(self.axes) if isinstance(self.axes, (list, tuple)) else []
        if not axes or any(type(axis) is not int for axis in axes) or sorted(axes) != list(range(len(axes))):
            raise ConfigError(
                "PermuteColumns.axes",
                expected="each axis of a row once, counted from 0",
                found=repr(self.axes),
                do="pass such a list, as in axes=[2, 0, 1]",
            )

    def transform(self, x: Any) -> Any:
        """Rows with their axes in the new order."""
        return self._permuted(x, list(self.axes))

    def inverse(self, y: Any) -> Any:
        """Rows with their axes as they were."""
        return self._permuted(y, [self.axes.index(axis) for axis in range(len(self.axes))])

    def _permuted(self, rows: Any, axes: list[int]) -> Any:
        if rows.ndim != len(axes) + 1:
            raise ColumnError(
                f"PermuteColumns(axes={self.axes})",
                expected=f"rows of {len(axes)} axes",
                found=f"rows of shape {tuple(rows.shape[1:])}",
                do="name every axis of a row",
            )
        order = [0, *(axis + 1 for axis in axes)]
        return rows.transpose(order) if isinstance(rows, np.ndarray) else rows.permute(order)


class ReshapeColumns(ColumnTransform):
    """Gives rows another shape with as many entries. Its inverse restores the old shape.

    Counterparts: TorchRL's `BatchSizeTransform`.

    Args:
        columns: Name of the column, or names.
        shape: Of a row; one length may be -1.
        back: The shape that `inverse` gives; default: that of the action space.

    Raises:
        ConfigError: no valid shape.
        ColumnError: the rows have another number of entries, or the shape of the inverse is not known.

    Examples:
        >>> import gymnasium as gym
        >>> piece = ReshapeColumns(gym.spaces.Box(0, 1, (6,)), columns="obs", shape=[2, -1], back=[6])
        >>> piece.observation_space.shape, piece.inverse(piece.transform(np.zeros((5, 6)))).shape
        ((2, 3), (5, 6))
    """

    takes_tensors = True
    monotonic = True
    columns: Any
    shape: Any
    back: Any = None

    def __post_init__(self) -> None:
        """Check the shapes."""
        for name, shape in (("shape", self.shape), ("back", [] if self.back is None else self.back)):
            valid = isinstance(shape, (list, tuple)) and all(type(length) is int and length >= -1 for length in shape)
            if not valid or list(shape).count(-1) > 1:
                raise ConfigError(
                    f"ReshapeColumns.{name}",
                    expected="lengths of a row's axes, one of which may be -1",
                    found=repr(shape),
                    do=f"pass a list such as {name}=[2, 3]",
                )

    def transform(self, x: Any) -> Any:
        """Rows in the new shape."""
        return self._reshaped(x, self.shape)

    def inverse(self, y: Any) -> Any:
        """Rows in the old shape."""
        back = self.back
        if back is None:
            back = getattr(self.input_action_space, "shape", None)
        if back is None:
            raise ColumnError(
                "ReshapeColumns.back",
                expected="the shape of rows as they were",
                found="none, and no action space that has one",
                do="pass it, as in back=[6]",
            )
        return self._reshaped(y, back)

    def _reshaped(self, rows: Any, shape: Any) -> Any:
        entries, size = math.prod(rows.shape[1:]), math.prod(length for length in shape if length != -1)
        if entries != size and not (-1 in shape and size and entries % size == 0):
            raise ColumnError(
                f"ReshapeColumns(shape={self.shape})",
                expected=f"rows that fit into shape {tuple(shape)}",
                found=f"rows of shape {tuple(rows.shape[1:])}",
                do="choose a shape of as many entries",
            )
        full = [entries // size if length == -1 else length for length in shape]
        return rows.reshape(rows.shape[0], *full)
