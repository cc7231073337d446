"""Functions of each reward by itself: clipped, scaled, its sign, whether there is one."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from epibatch.core.errors import ConfigError

from ..authoring.column_transform import ColumnTransform


class RewardTransform(ColumnTransform):
    """A function of rewards, for the learner pipeline."""

    _is_base: ClassVar[bool] = True
    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    takes_tensors = True


class RewardClipping(RewardTransform):
    """Limits rewards to an interval.

    Counterparts: TorchRL's `RewardClipping`.

    Args:
        low: Least reward; None: no limit.
        high: Greatest reward; None: no limit.
        columns: What is limited.

    Raises:
        ConfigError: no limit at all, or limits in the wrong order.

    Examples:
        >>> RewardClipping(low=-1.0, high=1.0).transform(np.array([-3.0, 0.5, 7.0]))
        array([-1. ,  0.5,  1. ])
    """

    monotonic = True
    low: float | None = -1.0
    high: float | None = 1.0
    columns: Any = "rewards"

    def __post_init__(self) -> None:
        """Check the limits."""
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if (self.low is None and self.high is None) or not low < high:
            raise ConfigError(
                "RewardClipping",
                expected="low below high, one of which may be None",
                found=f"low={self.low}, high={self.high}",
                do="pass limits such as low=-1.0, high=1.0",
            )

    def transform(self, x: Any) -> Any:
        """Limit the rows."""
        return x.clip(self.low, self.high)


class RewardScaling(RewardTransform):
    """Multiplies rewards by a factor and adds a constant: `x * scale + loc`, or `(x - loc) / scale`.

    Counterparts: TorchRL's `RewardScaling`.

    Args:
        scale: The factor, not 0.
        loc: The constant.
        standard_normal: Whether `loc` and `scale` are a mean and a deviation, which are taken out: `(x - loc) / scale`.
        columns: What is scaled.

    Raises:
        ConfigError: a number that is not finite, or a scale of 0.

    Examples:
        >>> RewardScaling(scale=2.0, loc=1.0).transform(np.array([0.0, 3.0]))
        array([1., 7.])
        >>> RewardScaling(scale=2.0, loc=1.0, standard_normal=True).transform(np.array([1.0, 7.0]))
        array([0., 3.])
    """

    monotonic = True
    scale: float = 1.0
    loc: float = 0.0
    standard_normal: bool = False
    columns: Any = "rewards"

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (math.isfinite(self.scale) and math.isfinite(self.loc)) or self.scale == 0:
            raise ConfigError(
                "RewardScaling",
                expected="finite numbers, and a scale other than 0",
                found=f"scale={self.scale}, loc={self.loc}",
                do="pass such numbers, as in scale=0.1",
            )

    def transform(self, x: Any) -> Any:
        """Scale the rows."""
        return _outwards(x, self.scale, self.loc) if self.standard_normal else _inwards(x, self.scale, self.loc)

    def inverse(self, y: Any) -> Any:
        """The rows as they were, up to rounding."""
        return _inwards(y, self.scale, self.loc) if self.standard_normal else _outwards(y, self.scale, self.loc)


def _inwards(x: Any, scale: float, loc: float) -> Any:
    out = x * scale
    return out + loc if loc else out


def _outwards(x: Any, scale: float, loc: float) -> Any:
    return (x - loc if loc else x) / scale


class RewardSign(RewardTransform):
    """Keeps of rewards their sign: -1, 0 or 1, as is usual for Atari games (Mnih et al. 2015).

    Counterparts: TorchRL's `SignTransform`.

    Args:
        columns: What is made signs of.

    Examples:
        >>> RewardSign().transform(np.array([-3.0, 0.0, 7.0]))
        array([-1.,  0.,  1.])
    """

    monotonic = True
    columns: Any = "rewards"

    def transform(self, x: Any) -> Any:
        """The rows' signs, in their type."""
        return np.sign(x) if isinstance(x, np.ndarray) else x.sign()


class BinarizeReward(RewardTransform):
    """Makes 1 of each reward that is not 0.

    Negative rewards give 1 too; TorchRL's transform of the name gives 0 for them.

    Counterparts: TorchRL's `BinarizeReward`.

    Args:
        columns: What is made zeros and ones of.

    Examples:
        >>> BinarizeReward().transform(np.array([-3.0, 0.0, 7.0]))
        array([1., 0., 1.])
    """

    columns: Any = "rewards"

    def transform(self, x: Any) -> Any:
        """Zeros and ones, in the rows' type."""
        nonzero = x != 0
        return nonzero.astype(x.dtype) if isinstance(x, np.ndarray) else nonzero.to(x.dtype)
