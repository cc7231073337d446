"""Independent Gaussians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.distributions.deterministic import Deterministic
from epibatch.core.distributions.distribution import Distribution, as_shape, same_kind, unfit
from epibatch.core.errors import SpaceError

__all__ = ["DiagGaussian", "TorchDiagGaussian"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@final
class DiagGaussian(Distribution):
    """A Gaussian with independent components, from their means and log standard deviations.

    Args:
        mean: float tensor `[..., d]`.
        log_std: float tensor `[..., d]`.
        shape: shape of one action, of d entries; None is `(d,)`.

    Example:
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
            self._std = self.log_std.exp()
        return self._std

    def sample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        with torch.no_grad():
            return self.rsample(sample_shape=sample_shape, generator=generator)

    def rsample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
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
        base = same_kind(DiagGaussian, other)
        ratio = (self.std / base.std).square()
        shift = ((self.mean - base.mean) / base.std).square()
        return (0.5 * (ratio + shift - 1.0) + base.log_std - self.log_std).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._shaped(self.mean), event_dims=1 if self.shape is None else len(self.shape))

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f":
            raise unfit("DiagGaussian", "a float Box action space", space)
        return 2 * int(np.prod(space.shape))


TorchDiagGaussian = DiagGaussian
