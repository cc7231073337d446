"""One of n choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from epibatch.core.distributions.deterministic import Deterministic
from epibatch.core.distributions.distribution import Distribution, as_shape, same_kind, unfit
from epibatch.core.errors import ColumnError

__all__ = ["Categorical", "TorchCategorical"]

_FEW = 512  # exponential numbers that are drawn faster than the other way's steps take


@final
class Categorical(Distribution):
    """One of n consecutive integers, from unnormalised log-probabilities.

    Few draws use an exponential race: with E_i from Exp(1), the smallest E_i / p_i falls on choice i with
    probability p_i. Many on the CPU invert the cumulative probabilities in float64, which takes one random number
    each in place of one per choice. Either way a choice with logit -inf is never drawn.

    Args:
        logits: float tensor `[..., n]`.
        start: the first of the integers. With a start other than 0, integers outside of
            `start ... start + n - 1` have log-probability -inf.
        dtype: integer type of the samples.

    Example:
        >>> dist = Categorical.from_logits(torch.zeros(3, 2))
        >>> dist.logp(torch.tensor([0, 1, 0])).exp()
        tensor([0.5000, 0.5000, 0.5000])
        >>> dist.to_deterministic().sample()
        tensor([0, 0, 0])
    """

    __slots__ = ("_log_probs", "dtype", "logits", "start")

    def __init__(self, logits: torch.Tensor, *, start: int = 0, dtype: torch.dtype = torch.int64) -> None:
        self.logits = logits
        self.start = start
        self.dtype = dtype
        self._log_probs: torch.Tensor | None = None

    @classmethod
    def from_logits(cls, logits: torch.Tensor, *, start: int = 0, dtype: torch.dtype = torch.int64) -> Categorical:
        return cls(logits, start=start, dtype=dtype)

    @property
    def log_probs(self) -> torch.Tensor:
        """Normalised log-probabilities `[..., n]`."""
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs

    @property
    def probs(self) -> torch.Tensor:
        """Probabilities `[..., n]`."""
        return self.log_probs.exp()

    def sample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        logits = self.logits.detach() if self.logits.requires_grad else self.logits
        shape = logits.shape if sample_shape is None else torch.Size((*as_shape(sample_shape), *logits.shape))
        if not logits.is_cpu or logits.dtype is torch.bfloat16:  # which NumPy does not have
            race = logits.new_empty(shape).exponential_(generator=generator)
            return self._integers(race.log_().sub_(logits).argmin(-1))
        if shape.numel() > _FEW:
            return self._integers(_inverted(self.log_probs.detach(), shape, generator))
        return self._integers(_raced(logits.numpy(), shape, generator))

    def _integers(self, choices: torch.Tensor) -> torch.Tensor:
        """The integers that choices, counted from 0, stand for."""
        if self.start:
            choices = choices + self.start
        return choices if self.dtype is torch.int64 else choices.to(self.dtype)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype is not torch.int64:
            value = value.long()
        if self.start:
            value = value - self.start
            inside = (value >= 0) & (value < self.logits.shape[-1])
            return torch.where(inside, self._logp_of_choices(value.where(inside, 0)), -torch.inf)
        return self._logp_of_choices(value)

    def _logp_of_choices(self, value: torch.Tensor) -> torch.Tensor:
        log_probs = self.log_probs
        try:
            if log_probs.dim() == 2 and value.dim() == 1:
                return F.nll_loss(log_probs, value, reduction="none").neg_()
            if value.dim() >= log_probs.dim():
                log_probs = log_probs.expand(*value.shape, log_probs.shape[-1])
            return log_probs.gather(-1, value.unsqueeze(-1)).squeeze(-1)
        except (IndexError, RuntimeError, ValueError) as error:
            raise self._unfit(value) from error

    def _unfit(self, value: torch.Tensor) -> ColumnError:
        """The error for actions that torch refused."""
        *rows, choices = self.logits.shape
        span = f", from {int(value.min()) + self.start} to {int(value.max()) + self.start}" if value.numel() else ""
        return ColumnError(
            "actions of a categorical distribution",
            expected=f"integers from {self.start} to {self.start + choices - 1}, of shape {rows}",
            found=f"shape {list(value.shape)}{span}",
            do="give one action of the action space per row of the inputs",
        )

    def entropy(self) -> torch.Tensor:
        finite = self.log_probs.clamp_min(torch.finfo(self.log_probs.dtype).min)
        return -(self.probs * finite).sum(-1)

    def kl(self, other: Distribution) -> torch.Tensor:
        base = same_kind(Categorical, other).log_probs
        lowest = torch.finfo(self.log_probs.dtype).min
        return (self.probs * (self.log_probs.clamp_min(lowest) - base.clamp_min(lowest))).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._integers(self.logits.argmax(-1)), event_dims=0)

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Discrete):
            raise unfit("Categorical", "a Discrete action space", space)
        return int(space.n)


def _raced(logits: Any, shape: tuple[int, ...], generator: torch.Generator | None) -> torch.Tensor:
    """Winners of the race along the last axis; in NumPy, whose calls cost less than torch's where numbers are few."""
    times = np.empty(tuple(shape), logits.dtype)
    torch.from_numpy(times).exponential_(generator=generator)
    return torch.from_numpy(np.asarray((np.log(times) - logits).argmin(-1)))


def _inverted(log_probs: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> torch.Tensor:
    """Choices of shape `shape[:-1]`: how many of the cumulative probabilities, the last left out, a number is beyond.

    The numbers are uniform on [0, last); in float64 that product never rounds up to the last itself.
    """
    ends = log_probs.exp().cumsum(-1, dtype=torch.float64)
    number = torch.rand((*shape[:-1], 1), dtype=torch.float64, generator=generator).mul_(ends[..., -1:])
    return (ends[..., :-1] <= number).sum(-1)


TorchCategorical = Categorical
