"""One of n choices, and several such choices at once, independent of one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from epibatch.core.distributions.distribution import (
    Deterministic,
    Distribution,
    Generator,
    SampleShape,
    as_shape,
    require_class,
    space_error,
)
from epibatch.core.errors import ColumnError, SpaceError

_FEW = 512  # exponential numbers that are drawn faster than the other way's steps take


@final
class Categorical(Distribution):
    """One of n consecutive integers, from unnormalised log-probabilities.

    Few draws use an exponential race: with E_i from Exp(1), the smallest E_i / p_i falls on choice i with
    probability p_i. Many on the CPU invert the cumulative probabilities in float64, which takes one random number
    each in place of one per choice. Either way a choice with logit -inf is never drawn.

    Args:
        logits: float tensor `[..., n]`.
        start: The first of the integers. With a start other than 0, integers outside of
            `start ... start + n - 1` have log-probability -inf.
        dtype: integer type of the samples.

    Examples:
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
            log_probs = self.logits.log_softmax(-1)
            if log_probs.requires_grad != self.logits.requires_grad:  # without gradients now, with them later
                return log_probs
            self._log_probs = log_probs
        return self._log_probs

    @property
    def probs(self) -> torch.Tensor:
        """Probabilities `[..., n]`."""
        return self.log_probs.exp()

    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        logits = self.logits.detach() if self.logits.requires_grad else self.logits
        shape = logits.shape if sample_shape is None else torch.Size((*as_shape(sample_shape), *logits.shape))
        if not logits.is_cpu or logits.dtype is torch.bfloat16:  # which NumPy does not have
            race = logits.new_empty(shape).exponential_(generator=generator)
            return self._integers(race.log_().sub_(logits).argmin(-1))
        if shape.numel() > _FEW:
            return self._integers(_inverse_cdf(self.log_probs.detach(), shape, generator))
        return self._integers(_exponential_race(logits.numpy(), shape, generator))

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
        base = require_class(Categorical, other).log_probs
        lowest = torch.finfo(self.log_probs.dtype).min
        return (self.probs * (self.log_probs.clamp_min(lowest) - base.clamp_min(lowest))).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._integers(self.logits.argmax(-1)), event_dims=0)

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Discrete):
            raise space_error("Categorical", "a Discrete action space", space)
        return int(space.n)


def _exponential_race(logits: Any, shape: tuple[int, ...], generator: torch.Generator | None) -> torch.Tensor:
    """Winners of the race along the last axis; in NumPy, whose calls cost less than torch's where numbers are few."""
    times = np.empty(tuple(shape), logits.dtype)
    torch.from_numpy(times).exponential_(generator=generator)
    return torch.from_numpy(np.asarray((np.log(times) - logits).argmin(-1)))


def _inverse_cdf(log_probs: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> torch.Tensor:
    """Choices of shape `shape[:-1]`: how many of the cumulative probabilities, the last left out, a number is beyond.

    The numbers are uniform on [0, last); in float64 that product never rounds up to the last itself.
    """
    ends = log_probs.exp().cumsum(-1, dtype=torch.float64)
    number = torch.rand((*shape[:-1], 1), dtype=torch.float64, generator=generator).mul_(ends[..., -1:])
    return (ends[..., :-1] <= number).sum(-1)


TorchCategorical = Categorical


@dataclass(frozen=True)
class _Layout:
    """Positions of the logits of each choice, and its integers.

    Attributes:
        widest: number of logits of the widest choice.
        columns: position of each choice's logits among the inputs, int64 `[choices * widest]`; the position
            after the last input stands for "no such logit". None if all choices have the same number.
        start: the first integer of each choice, int64 `[choices]`; None if all are 0.
    """

    widest: int
    columns: torch.Tensor | None
    start: torch.Tensor | None


@lru_cache(maxsize=256)
def _layout(lens: tuple[int, ...], start: tuple[int, ...] | None) -> _Layout:
    sizes = np.array(lens, np.int64)
    widest = int(sizes.max(initial=0))
    columns = None
    if bool((sizes != widest).any()):
        indices = (np.cumsum(sizes) - sizes)[:, None] + np.arange(widest)
        columns = torch.from_numpy(np.where(np.arange(widest) < sizes[:, None], indices, sizes.sum()).reshape(-1))
    first = None if start is None or not any(start) else torch.tensor(start, dtype=torch.int64)
    return _Layout(widest, columns, first)


@final
class MultiCategorical(Distribution):
    """Independent choices among consecutive integers, one Categorical for each entry of an action.

    All choices are computed at once: those with fewer logits are filled up with -inf.

    Args:
        choices: The choices, counted from 0: a Categorical over logits `[..., entries, n]`.
        start: The first integer of each entry, int64 `[entries]`; None for 0. With starts, entries outside
            of their range have log-probability -inf.
        shape: Shape of one action.
        dtype: integer type of the samples.

    Examples:
        >>> dist = MultiCategorical.from_logits(torch.zeros(5, 7), [3, 4], start=[0, 10])
        >>> dist.sample().shape, dist.logp(torch.tensor([[2, 13]] * 5)).exp()[0]
        (torch.Size([5, 2]), tensor(0.0833))
    """

    __slots__ = ("choices", "dtype", "shape", "start")

    def __init__(
        self,
        choices: Categorical,
        *,
        shape: tuple[int, ...],
        start: torch.Tensor | None = None,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        self.choices = choices
        self.start = start
        self.shape = shape
        self.dtype = dtype

    @classmethod
    def from_logits(
        cls,
        logits: torch.Tensor,
        input_lens: Sequence[int],
        *,
        start: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype = torch.int64,
    ) -> MultiCategorical:
        """Split the last axis of `logits` into the logits of each entry.

        Args:
            logits: float tensor `[..., sum(input_lens)]`.
            input_lens: Number of logits of each entry, in C order.
            start: The first integer of each entry; None for 0.
            shape: Shape of one action, of `len(input_lens)` entries; None is one axis.
            dtype: integer type of the samples.

        Raises:
            SpaceError: another number of logits.
        """
        lens = tuple(int(length) for length in input_lens)
        if logits.shape[-1] != sum(lens):
            raise SpaceError(
                "MultiCategorical.from_logits",
                expected=f"a last axis of {sum(lens)}: {'+'.join(map(str, lens[:20]))} logits",
                found=f"shape {tuple(logits.shape)}",
                do="let the policy head give required_input_dim(action_space) outputs",
            )
        layout = _layout(lens, None if start is None else tuple(int(first) for first in start))
        if layout.columns is not None:
            logits = F.pad(logits, (0, 1), value=-torch.inf).index_select(-1, layout.columns.to(logits.device))
        choices = Categorical(logits.reshape(*logits.shape[:-1], len(lens), layout.widest))
        first = None if layout.start is None else layout.start.to(logits.device)
        return cls(choices, start=first, shape=(len(lens),) if shape is None else tuple(shape), dtype=dtype)

    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        return self._integers(self.choices.sample(sample_shape=sample_shape, generator=generator))

    def _integers(self, choices: torch.Tensor) -> torch.Tensor:
        """The actions that choices `[..., entries]`, counted from 0, stand for."""
        if self.start is not None:
            choices = choices + self.start
        return choices.to(self.dtype).reshape(*choices.shape[:-1], *self.shape)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        entries = self.choices.logits.shape[-2]
        chosen = value.reshape(*value.shape[: value.dim() - len(self.shape)], entries).long()
        if self.start is None:
            return self.choices.logp(chosen).sum(-1)
        chosen = chosen - self.start
        inside = (chosen >= 0) & (chosen < self.choices.logits.shape[-1])
        return torch.where(inside, self.choices.logp(chosen.where(inside, 0)), -torch.inf).sum(-1)

    def entropy(self) -> torch.Tensor:
        return self.choices.entropy().sum(-1)

    def kl(self, other: Distribution) -> torch.Tensor:
        return self.choices.kl(require_class(MultiCategorical, other).choices).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self._integers(self.choices.logits.argmax(-1)), event_dims=len(self.shape))

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if isinstance(space, gym.spaces.MultiDiscrete):
            return int(space.nvec.sum())
        if isinstance(space, gym.spaces.MultiBinary):
            return 2 * int(np.prod(space.shape))
        if isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind in "iub" and space.is_bounded():
            return sum(high - low + 1 for low, high in zip(space.low.ravel().tolist(), space.high.ravel().tolist()))
        raise space_error("MultiCategorical", "a MultiDiscrete, MultiBinary or bounded integer Box action space", space)


TorchMultiCategorical = MultiCategorical
