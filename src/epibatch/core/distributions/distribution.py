"""The interface of action distributions, the deterministic one, and logits of which some choices are illegal."""

from __future__ import annotations

import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, final

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.errors import ColumnError, ConfigError, NotAvailableError, SpaceError, nearest

_D = TypeVar("_D", bound="Distribution")

SampleShape: TypeAlias = "int | Sequence[int] | None"
"""Extra leading dimensions of independent draws; None for a single draw."""
Generator: TypeAlias = "torch.Generator | None"
"""The source of randomness; None for torch's global one."""
ActionsAndLogp: TypeAlias = tuple[Any, torch.Tensor]
"""Actions, and their log-probabilities."""


class Distribution(ABC):
    """A batch of distributions over actions, built from network outputs.

    Batch dimensions are whatever precedes the last axis of the inputs: `[B]` for one step per row,
    `[B, T]` for sequences. Actions are tensors `[..., *shape of the action space]`, or nested dicts and
    tuples of such tensors.
    """

    __slots__ = ()

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: torch.Tensor, *args: Any, **kwargs: Any) -> Distribution:
        """Build the distribution from a network's outputs.

        Args:
            logits: float tensor `[..., required_input_dim(space)]`.
            *args: Whatever else a class needs; `get_partial_dist_cls` fixes it.
            **kwargs: Likewise.
        """

    @classmethod
    def get_partial_dist_cls(cls, **partial_kwargs: Any) -> type[Distribution]:
        """A subclass whose `from_logits` needs nothing but the network's outputs.

        Args:
            **partial_kwargs: Keywords of this class's `from_logits` and `required_input_dim`, fixed from
                now on; `space`, if given, is the only one that the subclass's `required_input_dim` takes.

        Raises:
            ConfigError: a keyword that neither of the two methods takes.

        Examples:
            >>> from epibatch.core.distributions import MultiCategorical
            >>> fixed = MultiCategorical.get_partial_dist_cls(input_lens=[2, 3])
            >>> fixed.from_logits(torch.zeros(4, 5)).sample().shape
            torch.Size([4, 2])
        """
        return _partial_class(cls, partial_kwargs)

    @abstractmethod
    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> Any:
        """Draw actions, without gradients.

        Args:
            sample_shape: Extra leading dimensions of independent draws.
            generator: The source of randomness; None uses torch's global one.
        """

    def rsample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> Any:
        """Draw actions that gradients flow through (the reparametrisation trick).

        Raises:
            NotAvailableError: the distribution has no such form.
        """
        raise NotAvailableError(
            f"{type(self).__name__}.rsample",
            expected="a distribution with a differentiable sample, such as DiagGaussian",
            found=type(self).__name__,
            do="use sample() and a score-function loss",
        )

    def sample_and_logp(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> ActionsAndLogp:
        """Draw actions, and their log-probabilities; arguments as for `sample`."""
        sample = self.sample(sample_shape=sample_shape, generator=generator)
        return sample, self.logp(sample)

    def rsample_and_logp(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> ActionsAndLogp:
        """Draw actions that gradients flow through, and their log-probabilities; arguments as for `rsample`.

        Raises:
            NotAvailableError: the distribution has no such form.
        """
        sample = self.rsample(sample_shape=sample_shape, generator=generator)
        return sample, self.logp(sample)

    @abstractmethod
    def logp(self, value: Any) -> torch.Tensor:
        """Log-probability (density) of actions, a float tensor over the batch dimensions.

        Args:
            value: Actions as `sample` returns them; leading sample dimensions are allowed.
        """

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy in nats, a float tensor over the batch dimensions."""

    @abstractmethod
    def kl(self, other: Distribution) -> torch.Tensor:
        """Kullback-Leibler divergence from `other` to this distribution, `KL(self || other)`, in nats."""

    def to_deterministic(self) -> Distribution:
        """The distribution that always gives this one's most likely action; as in RLlib itself, unless overridden."""
        return self

    @staticmethod
    @abstractmethod
    def required_input_dim(space: gym.Space[Any], *args: Any, **kwargs: Any) -> int:
        """Return the number of network outputs for an action of `space`.

        Raises:
            SpaceError: this distribution does not fit the space.
        """


TorchDistribution = Distribution


def as_shape(sample_shape: int | Sequence[int]) -> tuple[int, ...]:
    """A sample shape as a tuple."""
    return (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)


def require_class(kind: type[_D], other: Distribution) -> _D:
    """Give `other`, if it is a `kind`.

    Raises:
        NotAvailableError: it is not, so the two cannot be compared.
    """
    if not isinstance(other, kind):
        raise NotAvailableError(
            f"{kind.__name__}.kl",
            expected=f"another {kind.__name__}",
            found=type(other).__name__,
            do="compare distributions of one class",
        )
    return other


def space_error(name: str, expected: str, space: gym.Space[Any]) -> SpaceError:
    """The error for asking a distribution about a space that it does not fit."""
    return SpaceError(
        f"{name}.required_input_dim",
        expected=expected,
        found=space,
        do="take the class that distribution_for(space) returns",
    )


def _partial_class(parent: type[Distribution], fixed: Mapping[str, Any]) -> type[Distribution]:
    build = parent.from_logits.__func__  # type: ignore[attr-defined]
    measure = parent.required_input_dim
    for_build, for_measure = _taken(build, fixed), _taken(measure, fixed)
    for_measure.pop("space", None)
    _refuse_unknown(parent, fixed, {*for_build, *for_measure, "space"})

    def from_logits(cls: Any, /, logits: Any, **kwargs: Any) -> Any:
        if kwargs:
            _refuse_fixed(parent.__name__, kwargs, fixed)
        return build(cls, logits, **for_build, **kwargs)

    def required_input_dim(space: Any, **kwargs: Any) -> Any:
        if "space" in fixed and space != fixed["space"]:
            raise SpaceError(
                f"{parent.__name__}.required_input_dim of a class made for one space",
                expected=fixed["space"],
                found=space,
                do="make a class for this space: distribution_for(space)",
            )
        _refuse_fixed(parent.__name__, kwargs, fixed)
        return measure(space, **for_measure, **kwargs)

    body = {
        "__slots__": (),
        "__doc__": parent.__doc__,
        "__module__": parent.__module__,
        "from_logits": classmethod(from_logits),
        "required_input_dim": staticmethod(required_input_dim),
    }
    kind: type[Distribution] = types.new_class(parent.__name__, (parent,), exec_body=lambda names: names.update(body))
    return kind


def _refuse_unknown(parent: type[Distribution], fixed: Mapping[str, Any], used: set[str]) -> None:
    unknown = [key for key in fixed if key not in used]
    if unknown:
        methods = (parent.from_logits, parent.required_input_dim)
        keywords = {name for method in methods for name in inspect.signature(method).parameters}
        raise ConfigError(
            f"{parent.__name__}.get_partial_dist_cls",
            expected="keywords of its from_logits or required_input_dim",
            found=", ".join(unknown),
            do=nearest(unknown[0], keywords - {"logits"}),
        )


def _taken(function: Callable[..., Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keywords that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(fixed)
    return {key: value for key, value in fixed.items() if key in parameters}


def _refuse_fixed(name: str, kwargs: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    duplicates = [key for key in kwargs if key in fixed]
    if duplicates:
        raise ConfigError(
            f"{name} with fixed arguments",
            expected="other keywords than those that were fixed",
            found=", ".join(duplicates),
            do="leave them out, or make another class with get_partial_dist_cls",
        )


@final
class Deterministic(Distribution):
    """Always the same action; its log-probability counts as 0.

    Args:
        loc: The action of each row, `[..., d]` (or `[...]` when `event_dims` is 0).
        event_dims: How many trailing axes of `loc` belong to one action.

    Examples:
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

    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
        return self.rsample(sample_shape=sample_shape).detach()

    def rsample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> torch.Tensor:
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
            raise space_error("Deterministic", "a Box action space", space)
        return int(np.prod(space.shape))


TorchDeterministic = Deterministic


def _undefined(quantity: str) -> NotAvailableError:
    return NotAvailableError(
        f"Deterministic.{quantity}",
        expected="a distribution that spreads its probability",
        found="Deterministic",
        do=f"ask for the {quantity} before calling to_deterministic()",
    )


def mask_logits(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits with the lowest number of their type where a choice is illegal.

    A `Categorical` or `MultiCategorical` of them is the distribution over the legal choices: illegal ones have
    probability 0 and are neither drawn nor the most likely, `logp` of legal ones, `entropy` and `kl` are those of the
    smaller distribution, and no gradient reaches the logits of illegal ones. Unlike -inf the number can be stored,
    compared and averaged. After Huang & Ontañón (2022), "A closer look at invalid action masking in policy gradient
    algorithms".

    Rows without a single True are left as they are: padding of sequences, and observations with which episodes ended.
    The piece `ActionMask` refuses such rows where an action has to follow.

    Args:
        logits: Float tensor [..., n].
        mask: Legal choices: bool, or 0 and 1, [..., n]; the choices of several entries are concatenated.

    Raises:
        ColumnError: a mask of another shape.

    Examples:
        >>> from epibatch.core.distributions import TorchCategorical
        >>> masked = mask_logits(torch.zeros(1, 3), torch.tensor([[True, False, True]]))
        >>> TorchCategorical.from_logits(masked).probs
        tensor([[0.5000, 0.0000, 0.5000]])
    """
    if mask.shape != logits.shape:
        raise ColumnError(
            "action_mask",
            expected=f"one entry for each logit, shape {list(logits.shape)}",
            found=f"shape {list(mask.shape)}",
            do="mask all choices of the action space the module is built for: "
            "put ActionMask after the pieces that change it",
        )
    legal = mask if mask.dtype is torch.bool else mask != 0
    kept = legal | ~legal.any(-1, keepdim=True)
    return torch.where(kept, logits, torch.finfo(logits.dtype).min)
