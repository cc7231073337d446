"""The distribution for an action space, and the one for a nested action: a distribution for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from epibatch.core.distributions.categorical import Categorical, MultiCategorical
from epibatch.core.distributions.distribution import ActionsAndLogp, Distribution, Generator, SampleShape, require_class
from epibatch.core.distributions.gaussian import DiagGaussian, SquashedGaussian
from epibatch.core.errors import NotAvailableError, SpaceError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, sorted_keys, sorted_leaves, sorted_struct, unflatten

_MOST_CHOICES = 2**20


def distribution_for(space: gym.Space[Any] | None, *, squash: bool = False) -> type[Distribution]:
    """The distribution class for the actions of a space; its `from_logits` takes the network's outputs alone.

    | space | distribution | inputs | actions |
    |---|---|---|---|
    | Discrete | Categorical | n logits | integers of the space, its start included |
    | MultiDiscrete, MultiBinary | MultiCategorical | logits of each entry | likewise, of the space's shape |
    | integer Box with bounds | MultiCategorical | logits of each entry | integers that count from the lower bound |
    | float Box | DiagGaussian | means, log standard deviations | any numbers; -1 and 1 stand for finite bounds |
    | Dict, Tuple | MultiDistribution | those of the parts, dicts by sorted key | nested alike |

    For spaces that need more than the outputs it makes a new class, so call it once and keep the class.

    Args:
        space: The action space.
        squash: Take SquashedGaussian, whose actions lie in [-1, 1], for float Boxes with finite bounds.

    Raises:
        SpaceError: no distribution here fits the space, or a part of it.

    Examples:
        >>> distribution_for(gym.spaces.Discrete(2)).__name__
        'Categorical'
        >>> board = distribution_for(gym.spaces.MultiDiscrete([[2, 3], [4, 5]]))
        >>> board.from_logits(torch.zeros(8, 14)).sample().shape
        torch.Size([8, 2, 2])
    """
    return _choose(space, space, "", squash)


def _choose(space: Any, root: Any, path: str, squash: bool) -> type[Distribution]:
    if isinstance(space, spaces.Discrete):
        return _categorical(space)
    if isinstance(space, spaces.MultiDiscrete):
        start = tuple(np.broadcast_to(getattr(space, "start", 0), space.shape).ravel().tolist())
        return _multi_categorical(space, space.nvec.ravel().tolist(), space.dtype, start if any(start) else None)
    if isinstance(space, spaces.MultiBinary):
        return _multi_categorical(space, [2] * int(np.prod(space.shape)), space.dtype)
    if isinstance(space, spaces.Box):
        return _box(space, root, path, squash)
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and _parts(space):
        struct = _struct(space, root, path, squash)
        return MultiDistribution.get_partial_dist_cls(
            space=space, child_distribution_cls_struct=struct, input_lens=_lens(space, struct)
        )
    raise _unsupported(
        root,
        path,
        space,
        "Box, Discrete, MultiDiscrete and MultiBinary spaces, in Dicts and Tuples",
        "give your RLModule its own get_train_action_dist_cls, get_exploration_action_dist_cls "
        "and get_inference_action_dist_cls, or wrap the environment so that its actions fit",
    )


def _categorical(space: Any) -> type[Distribution]:
    dtype = _torch_dtype(space.dtype)
    if not int(space.start) and dtype is torch.int64:
        return Categorical
    return Categorical.get_partial_dist_cls(space=space, start=int(space.start), dtype=dtype)


def _multi_categorical(space: Any, lens: list[int], dtype: Any, start: Any = None) -> type[Distribution]:
    return MultiCategorical.get_partial_dist_cls(
        space=space, input_lens=tuple(lens), start=start, shape=tuple(space.shape), dtype=_torch_dtype(dtype)
    )


def _box(space: spaces.Box, root: Any, path: str, squash: bool) -> type[Distribution]:
    if np.dtype(space.dtype).kind == "f":
        kind: type[Distribution] = SquashedGaussian if squash and space.is_bounded() else DiagGaussian
        return kind if len(space.shape) == 1 else kind.get_partial_dist_cls(space=space, shape=tuple(space.shape))
    if not space.is_bounded():
        raise _unsupported(
            root,
            path,
            space,
            "bounds on both sides of an integer Box (each integer is a choice)",
            "bound the environment's actions with a wrapper, or use a float Box and round in the environment",
        )
    if space.high.max(initial=0) > np.iinfo(np.int64).max:
        raise _unsupported(
            root, path, space, "bounds that int64 holds", "count the environment's actions from a smaller number"
        )
    lens = [high - low + 1 for low, high in zip(space.low.ravel().tolist(), space.high.ravel().tolist())]
    if sum(lens) > _MOST_CHOICES:
        raise _unsupported(
            root,
            path,
            space,
            f"an integer Box of at most {_MOST_CHOICES} integers in all (each is a choice)",
            "use a float Box and round in the environment",
        )
    fits = np.dtype(space.dtype).kind in "iu" and max(lens, default=1) - 1 <= np.iinfo(space.dtype).max
    return _multi_categorical(space, lens, space.dtype if fits else np.int64)


def _torch_dtype(dtype: Any) -> torch.dtype:
    """The torch type of the same name; int64 for those that torch has but computes little with."""
    name = np.dtype(dtype).name
    is_native = name in ("int8", "int16", "int32", "uint8")
    found: torch.dtype = getattr(torch, name) if is_native else torch.int64
    return found


def _parts(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, Any]]:
    """Keys and spaces of the parts, those of a Dict by sorted key."""
    if isinstance(space, spaces.Dict):
        return [(key, space.spaces[key]) for key in sorted_keys(space.spaces)]
    return list(enumerate(space.spaces))


def _struct(space: Any, root: Any, path: str, squash: bool) -> Any:
    """Distribution classes nested like the space."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)) or not _parts(space):
        return _choose(space, root, path, squash)
    inner = {key: _struct(sub, root, f"{path}[{key!r}]", squash) for key, sub in _parts(space)}
    return inner if isinstance(space, spaces.Dict) else tuple(inner.values())


def _lens(space: Any, struct: Any) -> list[int]:
    """Return the number of inputs of each part, in the order of the parts."""
    if not isinstance(struct, (dict, tuple)):
        return [int(struct.required_input_dim(space))]
    return [length for key, sub in _parts(space) for length in _lens(sub, struct[key])]


def input_lens_for(space: gym.Space[Any]) -> list[int]:
    """Return the number of network outputs for each part of an action, dict entries by sorted key.

    Raises:
        SpaceError: there is no distribution for a part of the space.
    """
    return _lens(space, _struct(space, space, "", False))


def log_std_columns(space: gym.Space[Any]) -> list[int]:
    """Return the indices of a network's outputs that are log standard deviations: those of the space's float Boxes.

    Examples:
        >>> log_std_columns(spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,))))
        [4, 5]
    """
    columns: list[int] = []
    start = 0
    for leaf, count in zip(sorted_leaves(get_base_struct_from_space(space)), input_lens_for(space)):
        if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            columns += range(start + count // 2, start + count)
        start += count
    return columns


def _unsupported(root: Any, path: str, space: Any, expected: str, do: str) -> SpaceError:
    where = f"choosing an action distribution for {root}" if path else "choosing an action distribution"
    return SpaceError(where, expected=expected, found=f"{space} at {path}" if path else space, do=do)


@final
class MultiDistribution(Distribution):
    """Independent distributions over the parts of an action, nested like the action.

    Log-probabilities, entropies and divergences are sums over the parts. Parts of a dict go by sorted key,
    also where the inputs are split among them.

    Args:
        child_distribution_struct: Nested dicts and tuples of distributions over one batch.

    Examples:
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
        self._children, self._form = flatten(sorted_struct(child_distribution_struct))

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
            child_distribution_cls_struct: Distribution classes whose `from_logits` takes inputs alone, nested
                like an action.
            input_lens: Number of inputs of each part: a list in the order of the parts, or nested like them.

        Raises:
            SpaceError: another number of inputs.
        """
        classes, form = flatten(sorted_struct(child_distribution_cls_struct))
        lens = list(input_lens) if isinstance(input_lens, list) else flatten(sorted_struct(input_lens))[0]
        if logits.shape[-1] != sum(lens) or len(lens) != len(classes):
            raise SpaceError(
                "MultiDistribution.from_logits",
                expected=f"a last axis of {sum(lens)}: {'+'.join(map(str, lens))} inputs for {len(classes)} parts",
                found=f"shape {tuple(logits.shape)}",
                do="let the policy head give required_input_dim(action_space) outputs",
            )
        parts = torch.split(logits, lens, -1)
        return cls(unflatten(form, [child.from_logits(part) for child, part in zip(classes, parts)]))

    def sample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> Any:
        samples = [child.sample(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, samples)

    def rsample(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> Any:
        samples = [child.rsample(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, samples)

    def sample_and_logp(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> ActionsAndLogp:
        pairs = [child.sample_and_logp(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, [sample for sample, _ in pairs]), _total(logp for _, logp in pairs)

    def rsample_and_logp(self, *, sample_shape: SampleShape = None, generator: Generator = None) -> ActionsAndLogp:
        pairs = [child.rsample_and_logp(sample_shape=sample_shape, generator=generator) for child in self._children]
        return unflatten(self._form, [sample for sample, _ in pairs]), _total(logp for _, logp in pairs)

    def logp(self, value: Any) -> torch.Tensor:
        """Log-probability of actions: a float tensor over the batch dimensions.

        Args:
            value: Tensors nested like an action; dicts may have their keys in any order.

        Raises:
            ColumnError: nested otherwise.
        """
        parts = flatten_like(self._form, value)
        return _total(child.logp(part) for child, part in zip(self._children, parts))

    def entropy(self) -> torch.Tensor:
        return _total(child.entropy() for child in self._children)

    def kl(self, other: Distribution) -> torch.Tensor:
        other = require_class(MultiDistribution, other)
        if other._form != self._form:
            raise NotAvailableError(
                "MultiDistribution.kl",
                expected="a MultiDistribution over parts nested alike",
                found=f"{other._form}, not {self._form}",
                do="compare distributions over one space",
            )
        return _total(left.kl(right) for left, right in zip(self._children, other._children))

    def to_deterministic(self) -> MultiDistribution:
        return MultiDistribution(unflatten(self._form, [child.to_deterministic() for child in self._children]))

    @staticmethod
    def required_input_dim(space: gym.Space[Any], input_lens: Any = None, as_list: bool = False) -> Any:
        """Return the number of network outputs for an action of `space`.

        Args:
            space: A Dict or Tuple space.
            input_lens: Number of inputs of each part, if known.
            as_list: Give the numbers of the parts instead of their sum.

        Raises:
            SpaceError: there is no distribution for a part of the space.
        """
        lens = input_lens_for(space) if input_lens is None else flatten(sorted_struct(tuple(input_lens)))[0]
        return lens if as_list else sum(lens)


def _total(terms: Any) -> torch.Tensor:
    first, *others = terms
    total: torch.Tensor = first
    for term in others:
        total = total + term
    return total


TorchMultiDistribution = MultiDistribution
