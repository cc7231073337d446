"""Independent Gaussians, and Gaussians squashed into bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from epibatch.core.distributions.distribution import (
    ActionsAndLogp,
    Deterministic,
    Distribution,
    Generator,
    SampleShape,
    as_shape,
    require_class,
    space_error,
)
from epibatch.core.errors import NotAvailableError, SpaceError

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@final
class DiagGaussian(Distribution):
    """A Gaussian with independent components, from their means and log standard deviations.

    Args:
        mean: float tensor `[..., d]`.
        log_std: float tensor `[..., d]`.
        shape: Shape of one action, of d entries; None is `(d,)`.

    Examples:
        >>> dist = DiagGaussian.from_logits(torch.zeros(5, 4))
        >>> dist.sample().shape, dist.logp(torch.zeros(5, 2)).shape
        (torch.Size([5, 2]), torch.Size([5]))
    """

    __slots__ = ("_std", "log_std", "mean", "shape")

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor, *, shape: Sequence[int] | None = None) -> None:
        self.mean = mean
        self.log_std = log_std
        self.shape = None if shape is None else tuple(shape)
        self._std: torch.Tensor | None = None

    @classmethod
    def from_logits(cls, logits: torch.Tensor, *, shape: Sequence[int] | None = None) -> DiagGaussian:
        """Split `[..., 2 d]` into the means (first half) and log standard deviations (second half)."""
        if logits.shape[-1] % 2:
            raise SpaceError(
                "DiagGaussian.from_logits",
                expected="an even last axis: d means, then d log standard deviations",
                found=f"shape {tuple(logits.shape)}",
                do="let the policy head give required_input_dim(action_space) outputs",
            )
        mean, log_std = logits.chunk(2, -1)
        return cls(mean, log_std, shape=shape)

    @property
    def std(self) -> torch.Tensor:
        """Standard deviations `[..., d]`."""
        if self._std is None:
            std = self.log_std.exp()
            if std.requires_grad != self.log_std.requires_grad:  # without gradients now, with them later
                return std
            self._std = std
        return self._std

    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        with torch.no_grad():
            return self.rsample(sample_shape=sample_shape, generator=generator)

    def rsample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        mean = self.mean
        shape = mean.shape if sample_shape is None else (*as_shape(sample_shape), *mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return self._shaped(torch.addcmul(mean, self.std, noise))

    def _shaped(self, flat: torch.Tensor) -> torch.Tensor:
        return flat if self.shape is None else flat.reshape(*flat.shape[:-1], *self.shape)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        if self.shape is not None:
            value = value.reshape(*value.shape[: value.dim() - len(self.shape)], self.mean.shape[-1])
        z = (value - self.mean) / self.std
        cost = torch.addcmul(self.log_std, z, z, value=0.5).sum(-1)
        return cost.add_(_HALF_LOG_2PI * self.mean.shape[-1]).neg_()

    def entropy(self) -> torch.Tensor:
        return self.log_std.sum(-1) + (0.5 + _HALF_LOG_2PI) * self.mean.shape[-1]

    def kl(self, other: Distribution) -> torch.Tensor:
        base = require_class(DiagGaussian, other)
        ratio = (self.std / base.std).square()
        shift = ((self.mean - base.mean) / base.std).square()
        return (0.5 * (ratio + shift - 1.0) + base.log_std - self.log_std).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._shaped(self.mean), event_dims=1 if self.shape is None else len(self.shape))

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f":
            raise space_error("DiagGaussian", "a float Box action space", space)
        return 2 * int(np.prod(space.shape))


TorchDiagGaussian = DiagGaussian


Bound: TypeAlias = "float | npt.ArrayLike | torch.Tensor"

_LOG_STD = (-5.0, 2.0)
_NODES, _WEIGHTS = (torch.from_numpy(part).float() for part in np.polynomial.hermite_e.hermegauss(32))
_WEIGHTS = _WEIGHTS / math.sqrt(2.0 * math.pi)


@final
class SquashedGaussian(Distribution):
    """Independent Gaussians with a tanh that is scaled to finite bounds (Haarnoja et al. 2018, soft actor-critic).

    The log-probability is exact: the Jacobian's logarithm is that of `1 - y**2`, from the action itself.
    `sample_and_logp` knows the number before squashing, which an action close to a bound no longer tells: there it
    and `logp` of the same action differ, so do not compare one's numbers with the other's.
    Samples keep one unit in the last place away from the bounds, so that theirs is finite. The KL divergence
    is that of the Gaussians, which squashing does not change. The entropy has no closed form; it is a
    32-point Gauss-Hermite quadrature, right to 2e-4 for standard deviations up to 2 and to 1 % up to the
    largest one. The deterministic action is the squashed mean, the median of each entry.

    Args:
        base: The Gaussian before squashing, with one axis of d entries per action.
        low: Lower bounds, a number or one number per entry.
        high: Upper bounds, likewise.
        shape: Shape of one action, of d entries; None is `(d,)`.

    Raises:
        SpaceError: bounds that are infinite, or not in order.

    Examples:
        >>> dist = SquashedGaussian.from_logits(torch.tensor([[30.0, 0.0]]), low=-2.0, high=4.0)
        >>> bool(dist.to_deterministic().sample() < 4), bool(dist.logp(dist.sample()).isfinite())
        (True, True)
    """

    __slots__ = ("base", "center", "half", "shape")

    def __init__(
        self, base: DiagGaussian, *, low: Bound = -1.0, high: Bound = 1.0, shape: Sequence[int] | None = None
    ) -> None:
        self.base = base
        self.shape = None if shape is None else tuple(shape)
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            self.center, self.half = _scalar_scale(float(low), float(high), base.mean.dtype, base.mean.device)
        else:
            self.center, self.half = _scale(low, high, base.mean.dtype, base.mean.device)

    @classmethod
    def from_logits(
        cls, logits: torch.Tensor, *, low: Bound = -1.0, high: Bound = 1.0, shape: Sequence[int] | None = None
    ) -> SquashedGaussian:
        """Split `[..., 2 d]` into the means (first half) and log standard deviations, which are clipped to [-5, 2].

        Args:
            logits: float tensor `[..., 2 d]`.
            low: Lower bounds, a number or one number per entry.
            high: Upper bounds, likewise.
            shape: Shape of one action, of d entries; None is `(d,)`.

        Raises:
            SpaceError: an odd number of inputs, or unfit bounds.
        """
        gaussian = DiagGaussian.from_logits(logits)
        return cls(DiagGaussian(gaussian.mean, gaussian.log_std.clamp(*_LOG_STD)), low=low, high=high, shape=shape)

    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        with torch.no_grad():
            return self.rsample(sample_shape=sample_shape, generator=generator)

    def rsample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        return self._squashed(self.base.rsample(sample_shape=sample_shape, generator=generator))

    def sample_and_logp(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> ActionsAndLogp:
        with torch.no_grad():
            return self.rsample_and_logp(sample_shape=sample_shape, generator=generator)

    def rsample_and_logp(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> ActionsAndLogp:
        raw = self.base.rsample(sample_shape=sample_shape, generator=generator)
        return self._squashed(raw), self.base.logp(raw) - (_log_slope(raw) + self.half.log()).sum(-1)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        if self.shape is not None:
            value = value.reshape(*value.shape[: value.dim() - len(self.shape)], self.base.mean.shape[-1])
        y = _inside((value - self.center) / self.half)
        above, below = torch.log1p(y), torch.log1p(-y)  # exact up to the bounds, other than tanh's inverse of torch
        return self.base.logp(0.5 * (above - below)) - (above + below + self.half.log()).sum(-1)

    def entropy(self) -> torch.Tensor:
        nodes, weights = _NODES.to(self.base.mean), _WEIGHTS.to(self.base.mean)
        raw = torch.addcmul(self.base.mean.unsqueeze(-1), self.base.std.unsqueeze(-1), nodes)
        slope = (_log_slope(raw) * weights).sum(-1)
        return self.base.entropy() + (slope + self.half.log()).sum(-1)

    def kl(self, other: Distribution) -> torch.Tensor:
        other = require_class(SquashedGaussian, other)
        if not torch.equal(self.half, other.half) or not torch.equal(self.center, other.center):
            raise NotAvailableError(
                "SquashedGaussian.kl",
                expected="a SquashedGaussian with the same bounds",
                found="other bounds, so the divergence is infinite in one direction",
                do="compare distributions over one space",
            )
        return self.base.kl(other.base)

    def to_deterministic(self) -> Deterministic:
        loc = self._squashed(self.base.mean)
        return Deterministic(loc, event_dims=1 if self.shape is None else len(self.shape))

    def _squashed(self, raw: torch.Tensor) -> torch.Tensor:
        actions = torch.addcmul(self.center, self.half, _inside(raw.tanh()))
        return actions if self.shape is None else actions.reshape(*actions.shape[:-1], *self.shape)

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f" or not space.is_bounded():
            raise space_error("SquashedGaussian", "a float Box action space with finite bounds", space)
        return 2 * int(np.prod(space.shape))


def _scale(
    low: Bound, high: Bound, dtype: torch.dtype, device: torch.device | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The middle of the bounds and half their distance, `[d]` or `[1]` each."""
    lows, highs = (torch.as_tensor(bound, dtype=dtype, device=device).flatten() for bound in (low, high))
    if not bool(((lows < highs) & lows.isfinite() & highs.isfinite()).all()):
        raise SpaceError(
            "SquashedGaussian",
            expected="finite bounds, low < high in every entry",
            found=f"low={low!r}, high={high!r}",
            do="take DiagGaussian for entries without bounds",
        )
    half = highs / 2.0 - lows / 2.0
    return lows + half, half


_scalar_scale = lru_cache(maxsize=64)(_scale)


def _inside(y: torch.Tensor) -> torch.Tensor:
    """Values in [-1, 1] kept off its ends by the smallest step there is."""
    end = 1.0 - torch.finfo(y.dtype).eps / 2.0
    return y.clamp(-end, end)


def _log_slope(raw: torch.Tensor) -> torch.Tensor:
    """The logarithm of tanh's derivative, log(1 - tanh(x)**2), without overflow."""
    x = raw.abs()
    return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


TorchSquashedGaussian = SquashedGaussian
