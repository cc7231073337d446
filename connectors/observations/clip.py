"""Limits the entries of a column."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError

from ..authoring.column_transform import ColumnTransform
from ..authoring.row_spaces import bounds_of, choices_between
from .affine import as_lists, as_numbers


class Clip(ColumnTransform):
    """Limits every entry of a column to `low` and `high`, in the type that it has.

    The bounds of the space are limited too; choices stay choices. Limits of integers are rounded inwards.

    With `columns="actions"` in the env-to-module pipeline, the module acts in the narrower space, and what it gives
    beyond the limits is clipped on the way to the environment; actions that are in them stay as they are. The piece for
    that is `ClipActions`, which goes by the environment's own bounds too and leaves what is not continuous alone.

    Counterparts: TorchRL's `ClipTransform`.

    Args:
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        low: The least value, or one for each entry in the shape of a row; None for no limit.
        high: The greatest value, in the same forms.

    Raises:
        ConfigError: no limit, one that is no number, or a `low` above its `high`.

    Examples:
        >>> piece = Clip(gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), low=-1, high=1)
        >>> piece.observation_space
        Box(-1.0, 1.0, (2,), float32)
        >>> piece.transform(np.float32([[-3.0, 0.5]])).tolist()
        [[-1.0, 0.5]]
    """

    columns: Any = "obs"
    low: Any = None
    high: Any = None
    takes_tensors = True
    monotonic = True

    def __post_init__(self) -> None:
        self._limits: dict[Any, tuple[Any, Any]] = {}
        self.low, self.high = as_lists(self.low), as_lists(self.high)
        low, high = _numbers("low", self.low), _numbers("high", self.high)
        if self.low is None and self.high is None:
            raise _wrong("", "low, high, or both", "neither", "give one, such as low=-10, high=10")
        try:
            crossed = not (low <= high).all()
        except ValueError:
            found = f"shapes {low.shape} and {high.shape}"
            raise _wrong("", "limits of one shape", found, "give a number, or one for each entry of a row") from None
        if crossed:
            raise _wrong("", "low at or below high", f"low={self.low!r}, high={self.high!r}", "exchange them")

    def transform(self, x: Any) -> Any:
        """The rows, limited."""
        low, high = self._of(x)
        return x.clip(low, high)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any] | None:
        """The space within the limits, of the same kind."""
        if isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
            return super().output_space(space)
        low, high = self.transform(np.stack(bounds_of(space, "Clip")))
        return choices_between(space, low, high)

    def inverse(self, y: Any) -> Any:
        """The same: what was beyond the limits is not known any more."""
        return self.transform(y)

    def _of(self, x: Any) -> tuple[Any, Any]:
        """The limits in the type (and on the device) of the rows."""
        kind = x.dtype if isinstance(x, np.ndarray) else (x.dtype, x.device)
        if kind not in self._limits:
            dtype = x.dtype if isinstance(x, np.ndarray) else np.dtype(str(x.dtype).removeprefix("torch."))
            low, high = _typed(self.low, dtype, np.ceil), _typed(self.high, dtype, np.floor)
            if not isinstance(x, np.ndarray):
                import torch

                low, high = (None if limit is None else torch.as_tensor(limit).to(x.device) for limit in (low, high))
            self._limits[kind] = low, high
        return self._limits[kind]


def _typed(limit: Any, dtype: np.dtype[Any], inwards: Any) -> Any:
    if limit is None or dtype.kind not in "iu":
        return None if limit is None else np.asarray(limit, dtype)
    ends = np.iinfo(dtype)
    return np.clip(inwards(np.asarray(limit, np.float64)), ends.min, ends.max).astype(dtype)


def _numbers(name: str, limit: Any) -> Any:
    if limit is None:
        return np.asarray(-np.inf if name == "low" else np.inf)
    numbers = as_numbers(limit)
    if np.isnan(numbers).any():
        raise _wrong(f".{name}", "a number, or one for each entry of a row", repr(limit), "give such a limit, or None")
    return numbers


def _wrong(where: str, expected: str, found: str, do: str) -> ConfigError:
    return ConfigError(f"Clip{where}", expected=expected, found=found, do=do)
