"""Action distributions: thin classes over a module's `action_dist_inputs`, cheap to build at every step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, final

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from epibatch.core.errors import NotAvailableError, SpaceError, explain

__all__ = [
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "TorchCategorical",
    "TorchDeterministic",
    "TorchDiagGaussian",
    "distribution_for",
]

_D = TypeVar("_D", bound="Distribution")
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(ABC):
    """A batch of distributions over actions, built from network outputs.

    Batch dimensions are whatever precedes the last axis of the inputs: `[B]` for one step per row,
    `[B, T]` for sequences.
    """

    __slots__ = ()

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: torch.Tensor) -> Distribution:
        """Build the distribution from a network's outputs.

        Args:
            logits: float tensor `[..., required_input_dim(space)]`.
        """

    @abstractmethod
    def sample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draw actions, without gradients.

        Args:
            sample_shape: extra leading dimensions of independent draws.
            generator: the source of randomness; None uses torch's global one.
        """

    def rsample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draw actions that gradients flow through (the reparametrisation trick).

        Raises:
            NotAvailableError: the distribution has no such form.
        """
        raise NotAvailableError(
            explain(
                f"{type(self).__name__}.rsample",
                expected="a distribution with a differentiable sample, such as DiagGaussian",
                found=type(self).__name__,
                do="use sample() and a score-function loss",
            )
        )

    @abstractmethod
    def logp(self, value: torch.Tensor) -> torch.Tensor:
        """Log-probability (density) of actions, a float tensor over the batch dimensions.

        Args:
            value: actions as `sample` returns them; leading sample dimensions are allowed.
        """

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy in nats, a float tensor over the batch dimensions."""

    @abstractmethod
    def kl(self, other: Distribution) -> torch.Tensor:
        """Kullback-Leibler divergence from `other` to this distribution, `KL(self || other)`, in nats."""

    @abstractmethod
    def to_deterministic(self) -> Deterministic:
        """The distribution that always gives this one's most likely action."""

    @staticmethod
    @abstractmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        """How many network outputs an action of `space` takes.

        Raises:
            SpaceError: this distribution does not fit the space.
        """


@final
class Categorical(Distribution):
    """One of n choices, from unnormalised log-probabilities.

    Samples are int64. Draws use an exponential race: with E_i from Exp(1), the smallest E_i / p_i falls on
    choice i with probability p_i, so a choice with logit -inf is never drawn.

    Args:
        logits: float tensor `[..., n]`.

    Example:
        >>> dist = Categorical.from_logits(torch.zeros(3, 2))
        >>> dist.logp(torch.tensor([0, 1, 0])).exp()
        tensor([0.5000, 0.5000, 0.5000])
        >>> dist.to_deterministic().sample()
        tensor([0, 0, 0])
    """

    __slots__ = ("_log_probs", "logits")

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self._log_probs: torch.Tensor | None = None

    @classmethod
    def from_logits(cls, logits: torch.Tensor) -> Categorical:
        return cls(logits)

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
        logits = self.logits.detach()
        if sample_shape is None:
            race = torch.empty_like(logits)
        else:
            race = logits.new_empty((*_shape(sample_shape), *logits.shape))
        return race.exponential_(generator=generator).log_().sub_(logits).argmin(-1)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        log_probs = self.log_probs
        if value.dtype is not torch.int64:
            value = value.long()
        if log_probs.dim() == 2 and value.dim() == 1:
            return F.nll_loss(log_probs, value, reduction="none").neg_()
        if value.dim() >= log_probs.dim():
            log_probs = log_probs.expand(*value.shape, log_probs.shape[-1])
        return log_probs.gather(-1, value.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> torch.Tensor:
        finite = self.log_probs.clamp_min(torch.finfo(self.log_probs.dtype).min)
        return -(self.probs * finite).sum(-1)

    def kl(self, other: Distribution) -> torch.Tensor:
        base = _same(self, other).log_probs
        lowest = torch.finfo(self.log_probs.dtype).min
        return (self.probs * (self.log_probs.clamp_min(lowest) - base.clamp_min(lowest))).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.logits.argmax(-1), event_dims=0)

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Discrete):
            raise _unfit("Categorical", "a Discrete action space", space)
        return int(space.n)


@final
class DiagGaussian(Distribution):
    """A Gaussian with independent components, from their means and log standard deviations.

    Args:
        mean: float tensor `[..., d]`.
        log_std: float tensor `[..., d]`.

    Example:
        >>> dist = DiagGaussian.from_logits(torch.zeros(5, 4))
        >>> dist.sample().shape, dist.logp(torch.zeros(5, 2)).shape
        (torch.Size([5, 2]), torch.Size([5]))
    """

    __slots__ = ("_std", "log_std", "mean")

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor) -> None:
        self.mean = mean
        self.log_std = log_std
        self._std: torch.Tensor | None = None

    @classmethod
    def from_logits(cls, logits: torch.Tensor) -> DiagGaussian:
        """Split `[..., 2 d]` into the means (first half) and log standard deviations (second half)."""
        if logits.shape[-1] % 2:
            raise SpaceError(
                explain(
                    "DiagGaussian.from_logits",
                    expected="an even last axis: d means, then d log standard deviations",
                    found=f"shape {tuple(logits.shape)}",
                    do="let the policy head give 2 * action_space.shape[0] outputs",
                )
            )
        mean, log_std = logits.chunk(2, -1)
        return cls(mean, log_std)

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
        shape = mean.shape if sample_shape is None else (*_shape(sample_shape), *mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return torch.addcmul(mean, self.std, noise)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        z = (value - self.mean) / self.std
        cost = torch.addcmul(self.log_std, z, z, value=0.5).sum(-1)
        return cost.add_(_HALF_LOG_2PI * self.mean.shape[-1]).neg_()

    def entropy(self) -> torch.Tensor:
        return self.log_std.sum(-1) + (0.5 + _HALF_LOG_2PI) * self.mean.shape[-1]

    def kl(self, other: Distribution) -> torch.Tensor:
        base = _same(self, other)
        ratio = (self.std / base.std).square()
        shift = ((self.mean - base.mean) / base.std).square()
        return (0.5 * (ratio + shift - 1.0) + base.log_std - self.log_std).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.mean)

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not _is_float_vector(space):
            raise _unfit("DiagGaussian", "a float Box action space with one axis", space)
        return 2 * int(np.prod(space.shape or ()))


@final
class Deterministic(Distribution):
    """Always the same action; its log-probability counts as 0.

    Args:
        loc: the action of each row, `[..., d]` (or `[...]` when `event_dims` is 0).
        event_dims: how many trailing axes of `loc` belong to one action.

    Example:
        >>> Deterministic.from_logits(torch.ones(2, 3)).logp(torch.ones(2, 3))
        tensor([0., 0.])
    """

    __slots__ = ("event_dims", "loc")

    def __init__(self, loc: torch.Tensor, *, event_dims: int = 1) -> None:
        self.loc = loc
        self.event_dims = event_dims

    @classmethod
    def from_logits(cls, logits: torch.Tensor) -> Deterministic:
        return cls(logits)

    def sample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        return self.rsample(sample_shape=sample_shape).detach()

    def rsample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        if sample_shape is None:
            return self.loc
        return self.loc.expand(*_shape(sample_shape), *self.loc.shape)

    def logp(self, value: torch.Tensor) -> torch.Tensor:
        batch_shape = value.shape[: value.dim() - self.event_dims]
        dtype = self.loc.dtype if self.loc.is_floating_point() else torch.float32
        return torch.zeros(batch_shape, dtype=dtype, device=self.loc.device)

    def entropy(self) -> torch.Tensor:
        raise _undefined("entropy")

    def kl(self, other: Distribution) -> torch.Tensor:
        raise _undefined("kl")

    def to_deterministic(self) -> Deterministic:
        return self

    @staticmethod
    def required_input_dim(space: gym.Space[Any]) -> int:
        if not isinstance(space, gym.spaces.Box):
            raise _unfit("Deterministic", "a Box action space", space)
        return int(np.prod(space.shape))


TorchCategorical = Categorical
TorchDiagGaussian = DiagGaussian
TorchDeterministic = Deterministic


def distribution_for(space: gym.Space[Any] | None) -> type[Distribution]:
    """The distribution class for the actions of a space.

    Args:
        space: Discrete gives Categorical, a float Box with one axis gives DiagGaussian.

    Raises:
        SpaceError: no distribution here fits the space.

    Example:
        >>> distribution_for(gym.spaces.Discrete(2)).__name__
        'Categorical'
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical
    if _is_float_vector(space):
        return DiagGaussian
    raise SpaceError(
        explain(
            "choosing an action distribution",
            expected="a Discrete action space, or a float Box with one axis",
            found=space,
            do="give your RLModule its own get_train_action_dist_cls, get_exploration_action_dist_cls "
            "and get_inference_action_dist_cls, or wrap the environment so that its actions fit",
        )
    )


def _is_float_vector(space: gym.Space[Any] | None) -> bool:
    return isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind == "f" and len(space.shape) == 1


def _shape(sample_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)


def _same(one: _D, other: Distribution) -> _D:
    if not isinstance(other, type(one)):
        raise NotAvailableError(
            explain(
                f"{type(one).__name__}.kl",
                expected=f"another {type(one).__name__}",
                found=type(other).__name__,
                do="compare distributions of one class",
            )
        )
    return other


def _unfit(name: str, expected: str, space: gym.Space[Any]) -> SpaceError:
    return SpaceError(
        explain(
            f"{name}.required_input_dim",
            expected=expected,
            found=space,
            do="take the class that distribution_for(space) returns",
        )
    )


def _undefined(what: str) -> NotAvailableError:
    return NotAvailableError(
        explain(
            f"Deterministic.{what}",
            expected="a distribution that spreads its probability",
            found="Deterministic",
            do=f"ask for the {what} before calling to_deterministic()",
        )
    )
