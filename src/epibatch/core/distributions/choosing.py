"""Which distribution fits which action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from epibatch.core.distributions.categorical import Categorical
from epibatch.core.distributions.diag_gaussian import DiagGaussian
from epibatch.core.distributions.distribution import Distribution
from epibatch.core.distributions.multi_categorical import MultiCategorical
from epibatch.core.distributions.multi_distribution import MultiDistribution
from epibatch.core.distributions.squashed_gaussian import SquashedGaussian
from epibatch.core.errors import SpaceError
from epibatch.core.struct_batches import sorted_keys

__all__ = ["distribution_for", "input_lens_for", "log_std_columns"]

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
        space: the action space.
        squash: take SquashedGaussian, whose actions lie in [-1, 1], for float Boxes with finite bounds.

    Raises:
        SpaceError: no distribution here fits the space, or a part of it.

    Example:
        >>> distribution_for(gym.spaces.Discrete(2)).__name__
        'Categorical'
        >>> board = distribution_for(gym.spaces.MultiDiscrete([[2, 3], [4, 5]]))
        >>> board.from_logits(torch.zeros(8, 14)).sample().shape
        torch.Size([8, 2, 2])
    """
    return _choose(space, space, "", squash)


def _choose(space: Any, whole: Any, path: str, squash: bool) -> type[Distribution]:
    if isinstance(space, spaces.Discrete):
        return _categorical(space)
    if isinstance(space, spaces.MultiDiscrete):
        start = tuple(np.broadcast_to(getattr(space, "start", 0), space.shape).ravel().tolist())
        return _multi_categorical(space, space.nvec.ravel().tolist(), space.dtype, start if any(start) else None)
    if isinstance(space, spaces.MultiBinary):
        return _multi_categorical(space, [2] * int(np.prod(space.shape)), space.dtype)
    if isinstance(space, spaces.Box):
        return _box(space, whole, path, squash)
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and _parts(space):
        struct = _struct(space, whole, path, squash)
        return MultiDistribution.get_partial_dist_cls(
            space=space, child_distribution_cls_struct=struct, input_lens=_lens(space, struct)
        )
    raise _unsupported(
        whole,
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


def _box(space: spaces.Box, whole: Any, path: str, squash: bool) -> type[Distribution]:
    if np.dtype(space.dtype).kind == "f":
        kind: type[Distribution] = SquashedGaussian if squash and space.is_bounded() else DiagGaussian
        return kind if len(space.shape) == 1 else kind.get_partial_dist_cls(space=space, shape=tuple(space.shape))
    if not space.is_bounded():
        raise _unsupported(
            whole,
            path,
            space,
            "bounds on both sides of an integer Box (each integer is a choice)",
            "bound the environment's actions with a wrapper, or use a float Box and round in the environment",
        )
    if space.high.max(initial=0) > np.iinfo(np.int64).max:
        raise _unsupported(
            whole, path, space, "bounds that int64 holds", "count the environment's actions from a smaller number"
        )
    lens = [high - low + 1 for low, high in zip(space.low.ravel().tolist(), space.high.ravel().tolist())]
    if sum(lens) > _MOST_CHOICES:
        raise _unsupported(
            whole,
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
    kept = name in ("int8", "int16", "int32", "uint8")
    found: torch.dtype = getattr(torch, name) if kept else torch.int64
    return found


def _parts(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, Any]]:
    """Keys and spaces of the parts, those of a Dict by sorted key."""
    if isinstance(space, spaces.Dict):
        return [(key, space.spaces[key]) for key in sorted_keys(dict(space.spaces))]
    return list(enumerate(space.spaces))


def _struct(space: Any, whole: Any, path: str, squash: bool) -> Any:
    """Distribution classes nested like the space."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)) or not _parts(space):
        return _choose(space, whole, path, squash)
    inner = {key: _struct(sub, whole, f"{path}[{key!r}]", squash) for key, sub in _parts(space)}
    return inner if isinstance(space, spaces.Dict) else tuple(inner.values())


def _lens(space: Any, struct: Any) -> list[int]:
    """How many inputs each part takes, in the order of the parts."""
    if not isinstance(struct, (dict, tuple)):
        return [int(struct.required_input_dim(space))]
    return [length for key, sub in _parts(space) for length in _lens(sub, struct[key])]


def input_lens_for(space: gym.Space[Any]) -> list[int]:
    """How many network outputs each part of an action takes, dict entries by sorted key.

    Raises:
        SpaceError: there is no distribution for a part of the space.
    """
    return _lens(space, _struct(space, space, "", False))


def log_std_columns(space: gym.Space[Any]) -> list[int]:
    """Which of a network's outputs are log standard deviations: those of the space's float Boxes.

    Example:
        >>> log_std_columns(spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,))))
        [4, 5]
    """
    columns: list[int] = []
    start = 0
    for leaf, count in zip(_leaves(space), input_lens_for(space)):
        if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            columns += range(start + count // 2, start + count)
        start += count
    return columns


def _leaves(space: Any) -> list[Any]:
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [space]
    return [leaf for _, sub in _parts(space) for leaf in _leaves(sub)]


def _unsupported(whole: Any, path: str, space: Any, expected: str, do: str) -> SpaceError:
    where = f"choosing an action distribution for {whole}" if path else "choosing an action distribution"
    return SpaceError(where, expected=expected, found=f"{space} at {path}" if path else space, do=do)
