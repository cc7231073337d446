"""Columns in another type."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ColumnError, ConfigError, nearest

from ..authoring.column_transform import ColumnTransform
from ..authoring.row_spaces import bounds_of, box_of, choices_between

_TYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


class CastColumns(ColumnTransform):
    """Gives columns another type: float64 observations as float32, say, or actions decided on in float32.

    Of `actions` in the env-to-module pipeline the module's action space has the new type, and the environment gets
    actions of its own. Discrete ones stay so in other integers. On their way to integers numbers are checked, for which
    tensors wait for their device.

    Counterparts: TorchRL's `DTypeCastTransform`, `DoubleToFloat`.

    Args:
        columns: Name of the column, or names.
        dtype: The type, such as "float32".
        only: Types that are changed, such as ["float64"]; default: all.

    Raises:
        ConfigError: no such type.
        ColumnError: numbers that are not finite, or that the type cannot hold, on their way to integers.

    Examples:
        >>> piece = CastColumns(gym.spaces.Box(-1, 1, (2,), np.float64), columns="obs", dtype="float32")
        >>> piece.observation_space
        Box(-1.0, 1.0, (2,), float32)
        >>> piece.transform(np.array([[0.5, 1.0]])).dtype
        dtype('float32')
    """

    takes_tensors = True
    columns: Any
    dtype: str = "float32"
    only: Any = None

    def __post_init__(self) -> None:
        """Check the types."""
        for name in (self.dtype, *(self.only or ())):
            if name not in _TYPES:
                raise ConfigError(
                    "CastColumns",
                    expected=f"types among {', '.join(_TYPES)}",
                    found=repr(name),
                    do=nearest(str(name), _TYPES),
                )

    def transform(self, x: Any) -> Any:
        """Rows in the new type."""
        if not isinstance(x, np.ndarray):
            return self._cast_tensor(x)
        if x.dtype == self.dtype or not self._is_meant(str(x.dtype)):
            return x
        if x.size:
            _check_range(x, x.dtype, self.dtype)
        return x.astype(self.dtype)

    def _cast_tensor(self, x: Any) -> Any:
        import torch

        dtype = str(x.dtype).removeprefix("torch.")
        if dtype == self.dtype or not self._is_meant(dtype):
            return x
        if x.numel():
            _check_range(x, dtype if dtype in _TYPES else "float32", self.dtype)
        return x.to(getattr(torch, self.dtype))

    def _is_meant(self, dtype: str) -> bool:
        return self.only is None or dtype in self.only

    def inverse(self, y: Any) -> Any:
        """Rows in the type of the action space, if there is one that says it."""
        dtype = getattr(self.input_action_space, "dtype", None)
        return y if dtype is None or not isinstance(y, np.ndarray) else y.astype(dtype, copy=False)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The Box in the new type; choices stay choices as integers of another type."""
        low, high = bounds_of(space, "CastColumns")
        dtype = np.dtype(self.dtype)
        if low.dtype == dtype or not self._is_meant(str(low.dtype)):
            return space
        if dtype.kind in "iu" and not isinstance(space, gym.spaces.Box):
            ends = np.iinfo(dtype)
            if ends.min <= low.min() and high.max() <= ends.max:
                return choices_between(space, low.astype(dtype), high.astype(dtype))
        if dtype.kind in "iu":
            ends = np.iinfo(dtype)
            low, high = (np.clip(bound, ends.min, ends.max) for bound in (low, high))
        return box_of(low.astype(dtype), high.astype(dtype))


def _check_range(rows: Any, dtype: Any, target: str) -> None:
    """Refuse rows on their way to integers that cannot hold them.

    Args:
        rows: An array or a tensor, which waits for its device.
        dtype: Its type.
        target: The type that they become.
    """
    if target[0] not in "iu" or np.can_cast(dtype, target):
        return
    ends = np.iinfo(target)
    least, most = rows.min().item(), rows.max().item()
    if not (ends.min <= least and most <= ends.max):  # NaN is neither
        raise ColumnError(
            "CastColumns",
            expected=f"numbers from {ends.min} to {ends.max}, which {target} holds",
            found=f"{dtype} from {least} to {most}",
            do="clip or scale them before, or choose another type",
        )
