"""Always the same action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.distributions.distribution import Distribution, as_shape, unfit
from epibatch.core.errors import NotAvailableError

__all__ = ["Deterministic", "TorchDeterministic"]


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
        return self.loc.expand(*as_shape(sample_shape), *self.loc.shape)

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
            raise unfit("Deterministic", "a Box action space", space)
        return int(np.prod(space.shape))


TorchDeterministic = Deterministic


def _undefined(what: str) -> NotAvailableError:
    return NotAvailableError(
        f"Deterministic.{what}",
        expected="a distribution that spreads its probability",
        found="Deterministic",
        do=f"ask for the {what} before calling to_deterministic()",
    )
