"""Between the actions of modules and those of environments: bounds, offsets and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from epibatch.core.space_checks import get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

__all__ = ["EnvActions", "clip_action", "normalize_action", "unsquash_action"]

Array: TypeAlias = npt.NDArray[Any]


class EnvActions:
    """Makes of a batch of a module's actions those that an environment takes, in the types of its space.

    - Float Boxes: with `normalize`, -1 and 1 stand for the bounds of an entry that has two, and what lies
      outside is clipped; entries with one bound are clipped to it. With `clip` alone actions are cut to the
      bounds. With neither they are only given the space's type.
    - Integer Boxes with bounds: with `normalize` or `from_low` actions count from the lower bound; `clip` cuts them to
      the bounds.
    - Discrete, MultiDiscrete, MultiBinary: actions are members of the space already.

    Args:
        space: the environment's action space, nested or not.
        normalize: whether float Boxes' actions are in units of their bounds; goes before `clip`.
        clip: whether to cut actions to the bounds.
        from_low: whether integer Boxes' actions count from the lower bound without `normalize` too.

    Example:
        >>> to_env = EnvActions(spaces.Dict(a=spaces.Box(-2, 4, (1,)), b=spaces.Box(3, 9, (), int)))
        >>> to_env({"a": np.array([[0.5], [7.0]], np.float32), "b": np.array([0, 6])})
        {'a': array([[2.5],
               [4. ]], dtype=float32), 'b': array([3, 9])}
    """

    def __init__(
        self, space: gym.Space[Any], *, normalize: bool = True, clip: bool = False, from_low: bool = False
    ) -> None:
        self.space = space
        self._settings = {"normalize": normalize, "clip": clip, "from_low": from_low}
        leaves, self._form = flatten(get_base_struct_from_space(space))
        self._encoders = [_encoder(leaf, normalize, clip, from_low or normalize) for leaf in leaves]

    def __call__(self, actions: Any) -> Any:
        """Give the environment's actions; the same object if they are those, else arrays of their own.

        Args:
            actions: arrays `[rows, ...]`, nested like the space.

        Raises:
            ColumnError: nested otherwise than the space.
        """
        if self._form is None and isinstance(actions, np.ndarray):
            return self._encoders[0](actions)
        given = [np.asarray(leaf) for leaf in flatten_like(self._form, actions)]
        made = [encode(leaf) for encode, leaf in zip(self._encoders, given)]
        return unflatten(self._form, [leaf.copy() if leaf is own else leaf for leaf, own in zip(made, given)])

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.space, self._settings)  # what it works with are functions


def _made_again(cls: type[EnvActions], space: gym.Space[Any], settings: dict[str, bool]) -> EnvActions:
    return cls(space, **settings)


def _encoder(leaf: Any, normalize: bool, clip: bool, from_low: bool) -> Callable[[Array], Array]:
    """From actions `[rows, ...]` of a module to those for one leaf of the environment's space."""
    dtype = None if leaf.dtype is None else np.dtype(leaf.dtype)
    if dtype is None or dtype.kind not in "biuf":
        return lambda actions: actions
    if not isinstance(leaf, spaces.Box):
        return lambda actions: _cast(actions, dtype)
    low, high = leaf.low, leaf.high
    if dtype.kind == "f":
        scale = _to_bounds(leaf) if normalize else None
        if scale is not None:
            return lambda actions: np.clip(_cast(scale(actions), dtype), low, high)
        return lambda actions: np.clip(_cast(actions, dtype), low, high) if clip else _cast(actions, dtype)
    shift = _offsets(leaf) if from_low else None

    def integers(actions: Array) -> Array:
        shifted = actions if shift is None else actions + shift
        return _cast(np.clip(shifted, low, high) if clip else shifted, dtype)

    return integers


def _cast(actions: Array, dtype: np.dtype[Any]) -> Array:
    """Actions in a space's type; integers that this would change are left, for the environment to refuse."""
    if actions.dtype == dtype or (actions.dtype.kind == "f") != (dtype.kind == "f"):
        return actions
    if dtype.kind == "f" and dtype.itemsize < actions.dtype.itemsize:
        most = np.finfo(dtype).max
        actions = np.clip(actions, -most, most)
    cast = actions.astype(dtype)
    return cast if dtype.kind == "f" or np.array_equal(cast, actions) else actions


def _offsets(box: spaces.Box) -> Array | None:
    """Return the offset of integers that count from the lower bound; None if it is 0 or a bound is missing."""
    if not box.is_bounded() or not box.low.any():
        return None
    return box.low.astype(np.int64)


def _to_bounds(box: spaces.Box) -> Callable[[Array], Array]:
    """From units of the bounds to numbers of a float Box; entries without two bounds are left as they are."""
    dtype = np.result_type(box.dtype, np.float32)  # arithmetic in half precision would miss bounds
    both = box.bounded_below & box.bounded_above
    if not both.any():
        return lambda actions: actions
    low, high = np.where(both, box.low, -1.0).astype(dtype), np.where(both, box.high, 1.0).astype(dtype)
    half = high / 2 - low / 2
    if (half > np.finfo(dtype).max / 16).any():  # the distance of the bounds may be no number: go from their middle
        first, shift, span, parts, most = low + half, 0.0, half, 1.0, 1.0
    else:
        first, shift, span, parts, most = low, 1.0, high - low, 2.0, 3.0
    everywhere = bool(both.all())

    def scale(actions: Array) -> Array:
        out: Array = np.minimum(np.maximum(actions, -most), most) + shift  # what is further out is clipped anyway
        out = out * span
        out /= parts
        out += first
        return out if everywhere else np.where(both, out, actions)

    return scale


def clip_action(action: Any, action_space: Any) -> Any:
    """Clip the Box leaves of an action (or batch of actions) to their bounds.

    Example:
        >>> clip_action(np.array([3.0]), spaces.Box(-1, 1, (1,)))
        array([1.])
    """
    return _map_boxes(lambda box, value: np.clip(value, box.low, box.high), action, action_space)


def unsquash_action(action: Any, action_space_struct: Any) -> Any:
    """Map the Box leaves of an action from [-1, 1] to their bounds, clipped to them.

    Integer Boxes with bounds are shifted by the lower ones. Entries with one finite bound are clipped to it and
    not scaled; entries without bounds, and leaves other than Boxes, are left as they are.

    Args:
        action: one action or a batch of actions (leading axes).
        action_space_struct: the action space, or its nested dict and tuple of spaces.

    Example:
        >>> unsquash_action(np.array([0.5]), spaces.Box(-2, 4, (1,)))
        array([2.5])
    """
    return _map_boxes(_unsquash_box, action, action_space_struct)


def _unsquash_box(box: spaces.Box, value: Any) -> Any:
    if np.dtype(box.dtype).kind != "f":
        shift = _offsets(box)
        return value if shift is None else value + box.low  # in the type that both have together
    value = np.asarray(value)
    dtype = value.dtype if value.dtype.kind == "f" else np.result_type(value.dtype, box.dtype)
    return np.clip(_to_bounds(box)(value), box.low, box.high).astype(dtype, copy=False)[()]


def normalize_action(action: Any, action_space_struct: Any) -> Any:
    """Map the float Box leaves of an action from their bounds to [-1, 1].

    Entries without two finite bounds, integer Boxes and other leaves are left as they are.

    Example:
        >>> normalize_action(np.array([2.5]), spaces.Box(-2, 4, (1,)))
        array([0.5])
    """
    return _map_boxes(_normalize_box, action, action_space_struct)


def _normalize_box(box: spaces.Box, value: Any) -> Any:
    if np.issubdtype(box.low.dtype, np.integer):
        return value
    value = np.asarray(value)
    both = box.bounded_below & box.bounded_above & (box.high > box.low)
    low, high = np.where(both, box.low, -1.0), np.where(both, box.high, 1.0)
    scaled = np.where(both, (value - low) * 2.0 / (high - low) - 1.0, value)
    dtype = value.dtype if value.dtype.kind == "f" else np.result_type(value.dtype, box.dtype)
    return scaled.astype(dtype, copy=False)[()]


def _map_boxes(function: Callable[[spaces.Box, Any], Any], action: Any, space: Any) -> Any:
    struct = get_base_struct_from_space(space)
    return map_struct(lambda leaf, a: function(leaf, a) if isinstance(leaf, spaces.Box) else a, struct, action)
