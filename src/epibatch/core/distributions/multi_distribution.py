"""One distribution for each part of a nested action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium as gym
import torch

from epibatch.core.distributions.distribution import Distribution, same_kind
from epibatch.core.errors import NotAvailableError, SpaceError
from epibatch.core.struct_batches import sorted_keys
from epibatch.core.structs import flatten, flatten_like, unflatten

__all__ = ["MultiDistribution", "TorchMultiDistribution"]


@final
class MultiDistribution(Distribution):
    """Independent distributions over the parts of an action, nested like the action.

    Log-probabilities, entropies and divergences are sums over the parts. Parts of a dict go by sorted key,
    also where the inputs are split among them.

    Args:
        child_distribution_struct: nested dicts and tuples of distributions over one batch.

    Example:
        >>> from epibatch.core.distributions import distribution_for
        >>> space = gym.spaces.Dict(fire=gym.spaces.Discrete(2), move=gym.spaces.Box(-1, 1, (3,)))
        >>> dist = distribution_for(space).from_logits(torch.zeros(4, 2 + 6))
        >>> {name: part.shape for name, part in dist.sample().items()}
        {'fire': torch.Size([4]), 'move': torch.Size([4, 3])}
        >>> dist.logp(dist.sample()).shape
        torch.Size([4])
    """

    __slots__ = ("_children", "_form")

    def __init__(self, child_distribution_struct: Any) -> None:
        self._children, self._form = flatten(_sorted(child_distribution_struct))

    @property
    def children(self) -> Any:
        """The distributions of the parts, nested like an action."""
        return unflatten(self._form, self._children)

    @classmethod
    def from_logits(
        cls, logits: torch.Tensor, child_distribution_cls_struct: Any, input_lens: Sequence[int] | Mapping[Any, Any]
    ) -> MultiDistribution:
        """Split the last axis of `logits` among the parts.

        Args:
            logits: float tensor `[..., sum of input_lens]`.
            child_distribution_cls_struct: distribution classes whose `from_logits` takes inputs alone, nested
                like an action.
            input_lens: number of inputs of each part: a list in the order of the parts, or nested like them.

        Raises:
            SpaceError: another number of inputs.
        """
        classes, form = flatten(_sorted(child_distribution_cls_struct))
        lens = list(input_lens) if isinstance(input_lens, list) else flatten(_sorted(input_lens))[0]
        if logits.shape[-1] != sum(lens) or len(lens) != len(classes):
            raise SpaceError(
                "MultiDistribution.from_logits",
                expected=f"a last axis of {sum(lens)}: {'+'.join(map(str, lens))} inputs for {len(classes)} parts",
                found=f"shape {tuple(logits.shape)}",
                do="let the policy head give required_input_dim(action_space) outputs",
            )
        parts = torch.split(logits, lens, -1)
        return cls(unflatten(form, [child.from_logits(part) for child, part in zip(classes, parts)]))

    def sample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> Any:
        drawn = [child.sample(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, drawn)

    def rsample(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> Any:
        drawn = [child.rsample(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, drawn)

    def sample_and_logp(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> tuple[Any, torch.Tensor]:
        pairs = [child.sample_and_logp(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, [drawn for drawn, _ in pairs]), _total(logp for _, logp in pairs)

    def rsample_and_logp(
        self, *, sample_shape: int | Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> tuple[Any, torch.Tensor]:
        pairs = [child.rsample_and_logp(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, [drawn for drawn, _ in pairs]), _total(logp for _, logp in pairs)

    def logp(self, value: Any) -> torch.Tensor:
        """Log-probability of actions: a float tensor over the batch dimensions.

        Args:
            value: tensors nested like an action; dicts may have their keys in any order.

        Raises:
            ColumnError: nested otherwise.
        """
        parts = flatten_like(self._form, value)
        return _total(child.logp(part) for child, part in zip(self._children, parts))

    def entropy(self) -> torch.Tensor:
        return _total(child.entropy() for child in self._children)

    def kl(self, other: Distribution) -> torch.Tensor:
        other = same_kind(MultiDistribution, other)
        if other._form != self._form:
            raise NotAvailableError(
                "MultiDistribution.kl",
                expected="a MultiDistribution over parts nested alike",
                found=f"{other._form}, not {self._form}",
                do="compare distributions over one space",
            )
        return _total(mine.kl(theirs) for mine, theirs in zip(self._children, other._children))

    def to_deterministic(self) -> MultiDistribution:
        return MultiDistribution(unflatten(self._form, [child.to_deterministic() for child in self._children]))

    @staticmethod
    def required_input_dim(space: gym.Space[Any], input_lens: Any = None, as_list: bool = False) -> Any:
        """How many network outputs an action of `space` takes.

        Args:
            space: a Dict or Tuple space.
            input_lens: number of inputs of each part, if known.
            as_list: give the numbers of the parts instead of their sum.

        Raises:
            SpaceError: there is no distribution for a part of the space.
        """
        from epibatch.core.distributions.choosing import input_lens_for

        lens = input_lens_for(space) if input_lens is None else flatten(_sorted(tuple(input_lens)))[0]
        return lens if as_list else sum(lens)


def _sorted(struct: Any) -> Any:
    """The same structure with dict entries by sorted key, and lists as tuples."""
    if isinstance(struct, Mapping):
        return {key: _sorted(struct[key]) for key in sorted_keys(dict(struct))}
    return tuple(_sorted(part) for part in struct) if isinstance(struct, (tuple, list)) else struct


def _total(terms: Any) -> torch.Tensor:
    first, *others = terms
    total: torch.Tensor = first
    for term in others:
        total = total + term
    return total


TorchMultiDistribution = MultiDistribution
