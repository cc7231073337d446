"""Joins neighbouring axes of a column's rows."""

from __future__ import annotations

from typing import Any

from epibatch.core.errors import ColumnError

from ..authoring.column_transform import ColumnTransform


class FlattenAxes(ColumnTransform):
    """Joins the axes from `first_axis` to `last_axis` of each row: (2, 3, 4) becomes (6, 4) with 0 and 1.

    By default all of them, which makes each row one vector. Values and types stay as they are; to join the parts of
    nested observations there is `FlattenObservations`.

    Counterparts: TorchRL's `FlattenObservation`.

    Args:
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        first_axis: The first axis to join; rows themselves are not counted, negative axes count from the end.
        last_axis: The last one.

    Raises:
        ColumnError: rows without these axes.

    Examples:
        >>> import numpy as np
        >>> FlattenAxes(last_axis=1).transform(np.zeros((5, 2, 3, 4))).shape
        (5, 6, 4)
    """

    columns: Any = "obs"
    first_axis: int = 0
    last_axis: int = -1
    takes_tensors = True
    monotonic = True

    def transform(self, x: Any) -> Any:
        """The rows with fewer axes."""
        shape = tuple(x.shape[1:])
        axes = len(shape)
        first, last = (axis + axes if axis < 0 else axis for axis in (self.first_axis, self.last_axis))
        if not 0 <= first <= last < axes:
            raise ColumnError(
                f"FlattenAxes(first_axis={self.first_axis}, last_axis={self.last_axis})",
                expected="rows that have these axes, in this order",
                found=f"rows of shape {shape}",
                do="count the axes of one row, from 0 or, from the end, from -1",
            )
        size = 1
        for length in shape[first : last + 1]:
            size *= length
        return x.reshape(x.shape[0], *shape[:first], size, *shape[last + 1 :])
