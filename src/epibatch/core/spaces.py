"""Spaces and the values in them: checks of rows, fill values, dummy rows, one-hot, scaled and masked actions."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from epibatch.core.errors import ColumnError, SpaceError, nearest
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.structs import (
    BatchedNdArray,
    batch,
    convert_to_numpy,
    flatten,
    flatten_like,
    flatten_to_single_ndarray,
    is_leaf,
    make_action_immutable,
    map_struct,
    sorted_leaves,
    stack_rows,
    unbatch,
    unflatten,
)

__all__ = [
    "BatchedNdArray",
    "EnvActions",
    "batch",
    "check_row",
    "choice_counts",
    "clip_action",
    "convert_to_numpy",
    "encoding_advice",
    "exact_fill_value",
    "fill_row",
    "fill_value",
    "flatten_inputs_to_1d_tensor",
    "flatten_to_single_ndarray",
    "get_base_struct_from_space",
    "get_dummy_batch_for_space",
    "has_legal_choices",
    "infer_spaces",
    "make_action_immutable",
    "map_space",
    "normalize_action",
    "one_hot",
    "one_hot_column",
    "one_hot_multidiscrete",
    "promoting_fill_value",
    "random_legal_actions",
    "space_from_dict",
    "space_like",
    "space_of_struct",
    "space_to_dict",
    "unbatch",
    "unsquash_action",
]

_FLOATS = (np.float16, np.float32, np.float64)

_ADVICE: dict[type, str] = {
    spaces.Text: "encode the text as an array of one length, with an env-to-module piece whose "
    "recompute_output_observation_space says so, or with a wrapper around the environment",
    spaces.Sequence: "put PadRaggedRows into both pipelines, with max_rows if the network needs one length; or pad the "
    "rows and give them as a Box, with a wrapper around the environment",
    spaces.Graph: "pad nodes and edges to one number and give them as Boxes, with a wrapper around the environment",
}


def encoding_advice(space: gym.Space[Any]) -> str:
    """Return the advice about a part of an observation that is no array of one shape, for messages.

    Examples:
        >>> encoding_advice(spaces.Text(5)).partition(",")[0]
        'encode the text as an array of one length'
    """
    kind = type(space)
    if not kind.__module__.startswith("gymnasium."):
        call = f"epibatch.core.registry.register_space({kind.__name__}, encode)"
        return f"call {call}, with a function that makes arrays of its values"
    advice = _ADVICE.get(kind, "replace it by a space of one shape in the environment")
    return f"{advice} (gymnasium.wrappers.TransformObservation)"


AGENTS_ADVICE = (
    "name the modules that decide for them: .multi_agent(policies=[...], policy_mapping_fn=...); or let env return "
    "epibatch.env_runner.AgentsAsEnvs(vector_env, num_agents), if one decides for all"
)
"""About a vector environment of several agents in place of one, for messages."""


def agents_axis_advice(actual: Any, expected: Any) -> str:
    """Return the advice about an axis of agents before the axes of a space, for messages; "" if there is no such axis.

    Args:
        actual: The shape of an observation of one environment.
        expected: The shape of its space.

    Examples:
        >>> agents_axis_advice((2, 3), (3,)).partition(",")[0], agents_axis_advice((3,), (2, 3))
        ('; if axis 1 is of agents', '')
    """
    has_axis = len(actual) == len(expected) + 1 and tuple(actual[1:]) == tuple(expected)
    return f"; if axis 1 is of agents, {AGENTS_ADVICE}" if has_axis else ""


def get_base_struct_from_space(space: Any) -> Any:
    """The nested dict and tuple of spaces that a Dict or Tuple space stands for; other spaces are leaves.

    Examples:
        >>> get_base_struct_from_space(spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])))
        {'a': (Discrete(2),)}
    """
    if isinstance(space, (spaces.Dict, dict)):
        return {key: get_base_struct_from_space(sub) for key, sub in space.items()}
    if isinstance(space, (spaces.Tuple, tuple)):
        return tuple(get_base_struct_from_space(sub) for sub in space)
    return space


def space_of_struct(struct: Any) -> Any:
    """Dicts and tuples of spaces as Dict and Tuple spaces; None if one of them is None."""
    if is_leaf(struct):
        return struct
    if isinstance(struct, dict):
        parts = {key: space_of_struct(child) for key, child in struct.items()}
        return None if None in parts.values() else spaces.Dict(parts)
    items = tuple(map(space_of_struct, struct))
    return None if None in items else spaces.Tuple(items)


def map_space(function: Callable[[Any], Any], space: Any) -> Any:
    """A space with `function` applied to each part that is neither Dict nor Tuple.

    Examples:
        >>> map_space(lambda leaf: spaces.Discrete(leaf.n + 1), spaces.Dict(a=spaces.Discrete(2)))
        Dict('a': Discrete(3))
    """
    return space_of_struct(map_struct(function, get_base_struct_from_space(space)))


def mask_size_of(space: Any) -> int:
    """Entries of the mask of a Dict of a Box `value` and its `mask`, of each entry or row; 0 for other spaces."""
    if not isinstance(space, spaces.Dict) or space.spaces.keys() != {"value", "mask"}:
        return 0
    value, mask = space["value"], space["mask"]
    is_mask = (
        mask == spaces.Discrete(2)
        or isinstance(mask, spaces.MultiBinary)
        or (isinstance(mask, spaces.Box) and bool((mask.low == 0).all() and (mask.high == 1).all()))
    )
    size = int(np.prod(mask.shape or ()))
    of_rows = isinstance(value, spaces.Box) and mask.shape == value.shape[: len(mask.shape or ())]
    return size if is_mask and isinstance(value, spaces.Box) and (size == 1 or of_rows) else 0


def check_row(space: gym.Space[Any], row: Any, where: str) -> None:
    """Check that one row has the nesting, leaf shapes and kinds of `space`.

    Bounds and float types are not checked: they cost more than the mistakes they find.

    Args:
        space: The space of the row.
        row: One observation or action.
        where: What the row is, for the message, such as "observation of episode 'a'".

    Raises:
        SpaceError: another nesting, another leaf shape, or a leaf that is not a number of the right kind.

    Examples:
        >>> check_row(spaces.Box(0, 1, (2,)), np.zeros(2), "observation")
    """
    if type(space) is spaces.Box and type(row) is np.ndarray and row.shape == space._shape and row.dtype.kind in "fiub":
        return
    if isinstance(space, spaces.Dict):
        if not isinstance(row, dict) or row.keys() != space.spaces.keys():
            found = f"dict with keys {list(row)}" if isinstance(row, dict) else _describe(row)
            raise _unfit(where, f"dict with keys {list(space.spaces)}", found, space)
        for key, sub in space.spaces.items():
            check_row(sub, row[key], f"{where}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(row, tuple) or len(row) != len(space.spaces):
            found = f"tuple of {len(row)}" if isinstance(row, tuple) else _describe(row)
            raise _unfit(where, f"tuple of {len(space.spaces)}", found, space)
        for i, sub in enumerate(space.spaces):
            check_row(sub, row[i], f"{where}[{i}]")
    else:
        _check_leaf(space, row, where)


INTEGERS = frozenset({int, bool, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8})


def has_integers(space: gym.Space[Any] | None) -> bool:
    """True if a space, or a part of it, is a Discrete, MultiDiscrete or MultiBinary."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(has_integers, parts))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def integer_limits(space: gym.Space[Any] | None) -> tuple[Any, ...] | None:
    """Return the first integers that lie in a space and the first ones after them: numbers, or arrays of its shape.

    An empty tuple stands for a Dict or Tuple with such a part, None for a space without integers.

    Examples:
        >>> integer_limits(spaces.Discrete(3, start=1)), integer_limits(spaces.Box(0, 1))
        ((1, 4), None)
    """
    if not has_integers(space):
        return None
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        first = np.broadcast_to(np.asarray(getattr(space, "start", 0), np.int64), space.shape)
        return first, first + space.nvec
    return (np.zeros(space.shape, np.int64), np.full(space.shape, 2)) if isinstance(space, spaces.MultiBinary) else ()


def fitting_action(space: gym.Space[Any], action: Any, where: str) -> Any:
    """Return an action as its space has it: the action itself, or whole floats as integers, and lists as tuples.

    Arrays are tuples of their rows where the space is a Tuple. Integers may have more or fewer axes of length 1.

    Boxes are not looked into: what lies outside of their bounds is clipped later.

    Args:
        space: The space of the action.
        action: The action.
        where: What it is, for the message.

    Raises:
        SpaceError: integers outside of their space, or another nesting or shape.

    Examples:
        >>> int(fitting_action(spaces.Discrete(2), 1.0, "action"))
        1
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(action, Mapping) or action.keys() != space.spaces.keys():
            raise _unfit_action(where, space, action)
        parts = {key: fitting_action(sub, action[key], f"{where}[{key!r}]") for key, sub in space.spaces.items()}
        return action if all(parts[key] is action[key] for key in parts) else parts
    if isinstance(space, spaces.Tuple):
        if getattr(action, "shape", ()):
            action = list(convert_to_numpy(action))
        if not isinstance(action, (tuple, list)) or len(action) != len(space.spaces):
            raise _unfit_action(where, space, action)
        items = [fitting_action(sub, action[i], f"{where}[{i}]") for i, sub in enumerate(space.spaces)]
        return action if isinstance(action, tuple) and all(map(operator.is_, items, action)) else tuple(items)
    if not has_integers(space):
        return action
    first: Any = 0
    count: Any = 2
    if isinstance(space, spaces.Discrete):
        first, count = int(space.start), int(space.n)
        if type(action) in INTEGERS and first <= action < first + count:
            return action
    elif isinstance(space, spaces.MultiDiscrete):
        first, count = np.asarray(getattr(space, "start", 0), np.int64), space.nvec
    try:
        numbers = np.asarray(convert_to_numpy(action))
    except (ValueError, TypeError):  # ragged
        numbers = np.empty(0, object)
    kind, reshaped = numbers.dtype.kind, False
    if isinstance(space, spaces.Discrete):
        shaped = numbers.size == 1
    else:
        shaped = _without_ones(numbers.shape) == _without_ones(space.shape)
        reshaped = shaped and numbers.shape != space.shape
        numbers = numbers.reshape(space.shape) if reshaped else numbers
    if not shaped and kind in "biuf":
        raise _unfit_action(
            where, space, action, f"give the action in shape {space.shape}, or make the episode with its action_space"
        )
    if not shaped or kind not in "biuf" or not ((first <= numbers) & (numbers < first + count)).all():
        raise _unfit_action(where, space, action)
    if kind != "f":
        return numbers if reshaped else action
    whole = numbers.astype(space.dtype)
    if not np.array_equal(whole, numbers):
        raise _unfit_action(where, space, action)
    return whole[()]


_IN_ORDER = "pass observation, action and reward in this order; an episode of other actions needs their action_space"


def _unfit_action(where: str, space: gym.Space[Any], action: Any, do: str = _IN_ORDER) -> SpaceError:
    found = f"{type(action).__name__} {reprlib.repr(action)}"
    return SpaceError(where, expected=f"an action in {space}", found=found, do=do)


def _without_ones(shape: Any) -> list[int]:
    return [size for size in shape if size != 1]


def _check_leaf(space: gym.Space[Any], row: Any, where: str) -> None:
    shape: tuple[int, ...] = ()
    many = isinstance(space, spaces.Sequence) and space.stack  # any number of rows, in one array
    part: Any = space.feature_space if isinstance(space, spaces.Sequence) and many else space
    if isinstance(part, spaces.Discrete):
        kinds, expected = "iub", "integer"
    elif isinstance(part, (spaces.MultiDiscrete, spaces.MultiBinary)):
        kinds, expected, shape = "iub", "integers", part.shape
    elif isinstance(part, spaces.Box):
        kinds, expected, shape = "fiub", "numbers", part.shape
    elif isinstance(space, spaces.Text) and not isinstance(row, str):
        raise _unfit(where, "text", _describe(row), space)
    else:
        return
    if many and isinstance(row, np.ndarray) and row.dtype == _OBJECT and not row.ndim:
        row = row[()]
    try:
        array = np.asarray(row) if is_leaf(row) else None
    except ValueError:
        array = None
    fits = array is not None and array.shape[many:] == shape and array.ndim == len(shape) + many
    if array is None or not fits or array.dtype.kind not in kinds:
        rows = "any number of rows, " if many else ""
        raise _unfit(where, f"{rows}{expected} of shape {shape}", _describe(row), space)


def _describe(row: Any) -> str:
    if isinstance(row, (np.ndarray, np.generic)):
        return f"{row.dtype} array of shape {row.shape}"
    try:
        return f"{type(row).__name__} of shape {np.shape(row)}" if isinstance(row, list) else type(row).__name__
    except ValueError:
        return "ragged list"


def _unfit(where: str, expected: str, found: str, space: gym.Space[Any]) -> SpaceError:
    return SpaceError(
        where,
        expected=f"{expected}, as in {space}",
        found=found,
        do="make the environment (or the piece that writes it) return values of its space",
    )


_OBJECT = np.dtype(object)


def fill_value(dtype: np.dtype[Any], fill: Any) -> Any:
    """A fill value as one of `dtype`; a fraction is cut to a whole number where that is what `dtype` holds.

    Raises:
        ColumnError: `dtype` cannot hold it: a negative number among unsigned ones, NaN among integers, 1e300 among
            floats of 32 bits.
    """
    do = "fill with another value, or convert what the getter gives without fill"
    return _cast_fill(dtype, fill, "fill rows", do)


def exact_fill_value(dtype: np.dtype[Any], fill: float, where: str) -> Any:
    """A fill value as one of `dtype`, which is the same number up to the rounding of floats.

    Args:
        dtype: Type of the column, with everything in it that is not filled in.
        fill: A number.
        where: For the message.

    Raises:
        ColumnError: `dtype` cannot hold it: as for `fill_value`, and a fraction among integers or bools.

    Examples:
        >>> exact_fill_value(np.dtype(np.int8), -1.0, "a view")
        array(-1, dtype=int8)
    """
    detail = ", a whole number" if dtype.kind in "iu" else ", 0 or 1" if dtype.kind == "b" else ""
    do = f"fill with a value of that type{detail}; mask=True tells real values from those filled in"
    value = _cast_fill(dtype, fill, where, do)
    if dtype.kind in "biu" and value != fill:
        raise _cannot_hold(dtype, fill, where, do)
    return value


def promoting_fill_value(dtype: np.dtype[Any], fill: Any) -> Any:
    """A fill value as one of `dtype` if that holds it, up to the rounding of floats; else of the type that holds both.

    Raises:
        ColumnError: no type holds both, as for text among numbers.

    Examples:
        >>> ints = np.dtype(np.int32)
        >>> promoting_fill_value(ints, -1.0).dtype, promoting_fill_value(ints, 0.5).dtype
        (dtype('int32'), dtype('float64'))
    """
    if dtype == _OBJECT:
        return fill
    try:
        value = fill_value(dtype, fill)
        if dtype.kind not in "biu" or (value == fill).all():
            return value
    except ColumnError:
        if np.asarray(fill).dtype.kind not in "biufc":
            raise
    return np.asarray(fill, np.result_type(dtype, np.asarray(fill).dtype))


def _cast_fill(dtype: np.dtype[Any], fill: Any, where: str, do: str) -> Any:
    if dtype == _OBJECT:
        return fill
    if isinstance(fill, (np.ndarray, np.generic)):
        fill = fill.tolist()  # NumPy's numbers wrap around where Python's are refused
    try:
        with np.errstate(over="ignore"):
            value = np.array(fill, dtype)
        if dtype.kind == "f" and np.isinf(value).any() and (np.isinf(value) != np.isinf(np.asarray(fill, float))).any():
            raise OverflowError
        return value
    except (OverflowError, ValueError, TypeError):
        raise _cannot_hold(dtype, fill, where, do) from None


def _cannot_hold(dtype: np.dtype[Any], fill: Any, where: str, do: str) -> ColumnError:
    expected = f"a fill value that a column of {dtype} can hold"
    return ColumnError(where, expected=expected, found=repr(fill), do=do)


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
        space: The environment's action space, nested or not.
        normalize: Whether float Boxes' actions are in units of their bounds; goes before `clip`.
        clip: Whether to cut actions to the bounds.
        from_low: Whether integer Boxes' actions count from the lower bound without `normalize` too.

    Examples:
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
        self._decoders = [_decoder(leaf, normalize, from_low or normalize) for leaf in leaves]
        self._tensor_encoders: list[_TensorEncoder] = []

    def __call__(self, actions: Any) -> Any:
        """Give the environment's actions; the same object if they are those, else arrays of their own.

        Args:
            actions: Arrays or tensors `[rows, ...]`, nested like the space. Of integer tensors it is not checked that
                the space's type holds them, for which the host would have to wait.

        Raises:
            ColumnError: nested otherwise than the space.
        """
        if self._form is None and isinstance(actions, np.ndarray):
            return self._encoders[0](actions)
        leaves = flatten_like(self._form, actions)
        if leaves and hasattr(leaves[0], "detach"):
            if not self._tensor_encoders:
                spaces_of_leaves = flatten(get_base_struct_from_space(self.space))[0]
                self._tensor_encoders = [_TensorEncoder(space, **self._settings) for space in spaces_of_leaves]
            return unflatten(self._form, [encode(leaf) for encode, leaf in zip(self._tensor_encoders, leaves)])
        leaves = [np.asarray(leaf) for leaf in leaves]
        encoded = [encode(leaf) for encode, leaf in zip(self._encoders, leaves)]
        return unflatten(self._form, [leaf.copy() if leaf is raw else leaf for leaf, raw in zip(encoded, leaves)])

    def undo(self, actions: Any) -> Any:
        """Return the module's actions of which these are made: members of the space, one or `[rows, ...]`.

        Examples:
            >>> EnvActions(spaces.Box(-2, 4, (1,))).undo(np.array([[2.5], [4.0]], np.float32))
            array([[0.5],
                   [1. ]], dtype=float32)
        """
        leaves = flatten_like(self._form, actions)
        return unflatten(self._form, [undo(leaf) for undo, leaf in zip(self._decoders, leaves)])

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.space, **self._settings), ()  # what it works with are functions


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


def _decoder(leaf: Any, normalize: bool, from_low: bool) -> Callable[[Array], Array]:
    """From actions of one leaf of the environment's space to the module's."""
    if not isinstance(leaf, spaces.Box):
        return lambda actions: actions
    if np.dtype(leaf.dtype).kind != "f":
        offsets = _offsets(leaf) if from_low else None
        return lambda actions: actions if offsets is None else actions - offsets
    plan = _scale_of(leaf) if normalize else None
    if plan is None:
        return lambda actions: actions
    first, shift, span, parts, _, bounded = plan
    span = np.where(span == 0, 1, span)  # both bounds are one number: -1 stands for it, as any other does

    def unscale(actions: Array) -> Array:
        out = (actions - first) / span * parts - shift
        return (out if bounded is None else np.where(bounded, out, actions)).astype(actions.dtype, copy=False)

    return unscale


def _cast(actions: Array, dtype: np.dtype[Any]) -> Array:
    """Actions in a space's type; integers that this would change are left, for the environment to refuse."""
    if actions.dtype == dtype or (actions.dtype.kind == "f") != (dtype.kind == "f"):
        return actions
    if dtype.kind == "f" and dtype.itemsize < actions.dtype.itemsize:
        largest = np.finfo(dtype).max
        actions = np.clip(actions, -largest, largest)
    cast = actions.astype(dtype)
    return cast if dtype.kind == "f" or np.array_equal(cast, actions) else actions


def _offsets(box: spaces.Box) -> Array | None:
    """Return the offset of integers that count from the lower bound; None if it is 0 or a bound is missing."""
    if not box.is_bounded() or not box.low.any():
        return None
    return box.low.astype(np.int64)


class _Scale(NamedTuple):
    """From units of the bounds to numbers of a float Box: clipped to +-limit, + shift, * span, / parts, + first.

    `bounded` are the entries with two bounds, of which this is to be done; None: all.
    """

    first: Array
    shift: float
    span: Array
    parts: float
    limit: float
    bounded: Array | None


def _scale_of(box: spaces.Box) -> _Scale | None:
    """Return the scale of a Box; None if no entry has two bounds."""
    dtype = np.result_type(box.dtype, np.float32)  # arithmetic in half precision would miss bounds
    bounded = box.bounded_below & box.bounded_above
    if not bounded.any():
        return None
    low, high = np.where(bounded, box.low, -1.0).astype(dtype), np.where(bounded, box.high, 1.0).astype(dtype)
    half, some = high / 2 - low / 2, None if bounded.all() else bounded
    if (half > np.finfo(dtype).max / 16).any():  # the distance of the bounds may be no number: go from their middle
        return _Scale(low + half, 0.0, half, 1.0, 1.0, some)
    return _Scale(low, 1.0, high - low, 2.0, 3.0, some)


def _to_bounds(box: spaces.Box) -> Callable[[Array], Array]:
    """From units of the bounds to numbers of a float Box; entries without two bounds are left as they are."""
    plan = _scale_of(box)
    if plan is None:
        return lambda actions: actions
    first, shift, span, parts, limit, bounded = plan

    def scale(actions: Array) -> Array:
        out: Array = np.minimum(np.maximum(actions, -limit), limit) + shift  # what is further out is clipped anyway
        out = out * span
        out /= parts
        out += first
        return out if bounded is None else np.where(bounded, out, actions)

    return scale


class _TensorEncoder:
    """Encodes tensors on their device, as `_encoder` encodes arrays."""

    def __init__(self, leaf: Any, *, normalize: bool, clip: bool, from_low: bool) -> None:
        kind = "" if leaf.dtype is None else np.dtype(leaf.dtype).kind
        self._kind = kind if kind in "biuf" else ""
        is_box = isinstance(leaf, spaces.Box)
        scale = _scale_of(leaf) if is_box and kind == "f" and normalize else None
        offsets = _offsets(leaf) if is_box and kind in "iu" and (from_low or normalize) else None
        clips = is_box and (clip or (kind == "f" and normalize)) and np.isfinite([leaf.low, leaf.high]).any()
        self._has_scale, self._shifts, self._clips = scale is not None, offsets is not None, clips
        arrays = {"type": np.zeros(1, leaf.dtype if self._kind else np.float32), "offsets": offsets}
        if is_box:
            arrays |= {"low": leaf.low, "high": leaf.high}
        if scale is not None:
            self._shift, self._parts, self._limit = scale.shift, scale.parts, scale.limit
            arrays |= {"first": scale.first, "span": scale.span, "bounded": scale.bounded}
        self._arrays = {name: array for name, array in arrays.items() if array is not None}
        self._on: dict[Any, dict[str, Any]] = {}

    def __call__(self, actions: Any) -> Any:
        if not self._kind:
            return actions
        on = self._on.get(actions.device)
        if on is None:
            import torch

            on = {name: torch.from_numpy(np.array(array)).to(actions.device) for name, array in self._arrays.items()}
            self._on[actions.device] = on
        if self._has_scale:
            scaled = (actions.clip(-self._limit, self._limit) + self._shift) * on["span"] / self._parts + on["first"]
            actions = scaled.where(on["bounded"], actions) if "bounded" in on else scaled
        if self._shifts:
            actions = actions + on["offsets"]
        dtype = on["type"].dtype
        if self._kind == "f":
            actions = self._cast(actions, dtype)
            return actions.clip(on["low"], on["high"]) if self._clips else actions
        actions = actions.clip(on["low"], on["high"]) if self._clips else actions
        return self._cast(actions, dtype)

    def _cast(self, actions: Any, dtype: Any) -> Any:
        if actions.dtype == dtype or actions.is_floating_point() != (self._kind == "f"):
            return actions
        if self._kind == "f" and dtype.itemsize < actions.dtype.itemsize:
            largest = float(np.finfo(self._arrays["type"].dtype).max)
            actions = actions.clip(-largest, largest)
        return actions.to(dtype)


def clip_action(action: Any, action_space: Any) -> Any:
    """Clip the Box leaves of an action (or batch of actions) to their bounds.

    Examples:
        >>> clip_action(np.array([3.0]), spaces.Box(-1, 1, (1,)))
        array([1.])
    """
    return _map_boxes(lambda box, value: np.clip(value, box.low, box.high), action, action_space)


def unsquash_action(action: Any, action_space_struct: Any) -> Any:
    """Map the Box leaves of an action from [-1, 1] to their bounds, clipped to them.

    Integer Boxes with bounds are shifted by the lower ones. Entries with one finite bound are clipped to it and
    not scaled; entries without bounds, and leaves other than Boxes, are left as they are.

    Args:
        action: One action or a batch of actions (leading axes).
        action_space_struct: The action space, or its nested dict and tuple of spaces.

    Examples:
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

    Examples:
        >>> normalize_action(np.array([2.5]), spaces.Box(-2, 4, (1,)))
        array([0.5])
    """
    return _map_boxes(_normalize_box, action, action_space_struct)


def _normalize_box(box: spaces.Box, value: Any) -> Any:
    if np.issubdtype(box.low.dtype, np.integer):
        return value
    value = np.asarray(value)
    bounded = box.bounded_below & box.bounded_above & (box.high > box.low)
    low, high = np.where(bounded, box.low, -1.0), np.where(bounded, box.high, 1.0)
    scaled = np.where(bounded, (value - low) * 2.0 / (high - low) - 1.0, value)
    dtype = value.dtype if value.dtype.kind == "f" else np.result_type(value.dtype, box.dtype)
    return scaled.astype(dtype, copy=False)[()]


def _map_boxes(function: Callable[[spaces.Box, Any], Any], action: Any, space: Any) -> Any:
    struct = get_base_struct_from_space(space)
    return map_struct(lambda leaf, a: function(leaf, a) if isinstance(leaf, spaces.Box) else a, struct, action)


Mask = npt.NDArray[np.bool_]


def choice_counts(space: gym.Space[Any] | None) -> list[int]:
    """Return the number of choices of each entry of an action; a mask has one value per choice, concatenated.

    Raises:
        SpaceError: actions that are not chosen among a few.

    Examples:
        >>> choice_counts(gym.spaces.MultiDiscrete([2, 3]))
        [2, 3]
    """
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts: list[int] = space.nvec.ravel().tolist()
        return counts
    if isinstance(space, gym.spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    raise SpaceError(
        "a mask of legal actions",
        expected="a Discrete, MultiDiscrete or MultiBinary action space",
        found=str(space),
        do="mask choices of such spaces; of a Dict's parts in a module of your own, with mask_logits",
    )


def has_legal_choices(mask: Mask, counts: list[int]) -> Mask:
    """True for each row in which every entry of an action has a legal choice: bool [rows].

    Args:
        mask: bool [rows, sum of counts].
        counts: Choices of each entry.
    """
    if len(counts) == 1:
        return np.asarray(mask.any(1))
    starts = np.cumsum([0, *counts[:-1]], dtype=np.int64)
    return np.asarray(np.logical_or.reduceat(mask, starts, axis=1).all(1))


def random_legal_actions(space: gym.Space[Any], mask: Mask, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Draw uniform legal actions of a space; an entry without a legal choice is drawn among all choices.

    Args:
        space: Discrete, MultiDiscrete or MultiBinary.
        mask: bool [rows, choices]; the choices of several entries are concatenated.
        rng: The random generator.

    Returns:
        An array [rows, ...] of the space's type.

    Examples:
        >>> mask = np.array([[False, True, False], [False, False, True]])
        >>> random_legal_actions(gym.spaces.Discrete(3, start=5), mask, np.random.default_rng(0))
        array([6, 7])
    """
    counts = choice_counts(space)
    mask = np.where(has_legal_choices(mask, counts)[:, None], mask, True)
    numbers = np.where(mask, rng.random(mask.shape), -1.0)
    ends = np.cumsum(counts).tolist()
    columns = [numbers[:, end - count : end].argmax(1) for end, count in zip(ends, counts)]
    start = np.asarray(getattr(space, "start", 0))
    chosen = np.stack(columns, 1).reshape(len(mask), *(space.shape or ())) + start
    actions: npt.NDArray[Any] = chosen.astype(space.dtype)
    return actions


def space_like(shape: tuple[int, ...], dtype: Any) -> spaces.Box | None:
    """Return the Box of all arrays of a shape and a type; None for types without a Box: complex numbers, strings.

    Examples:
        >>> space_like((2,), np.dtype(np.uint8)), space_like((2,), np.dtype(np.complex64))
        (Box(0, 255, (2,), uint8), None)
    """
    if dtype.kind in "iu":
        return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.bool_)  # type: ignore[arg-type]
    return spaces.Box(-np.inf, np.inf, shape, dtype.type) if dtype in _FLOATS else None


def infer_spaces(batch: Any, *, discrete: bool | Sequence[str] = False) -> gym.Space[Any]:
    """Return the space of one row of sample data; every row is a member of it.

    Shapes and types are those of the data. Bounds are those of the type: infinite for floats, 0 and 255 for uint8.
    The counterpart of TorchRL's `make_composite_from_td`.

    Args:
        batch: Arrays or tensors [B, ...], or dicts and tuples of them at any depth, such as a batch of columns; B may
            differ between them. Or a list of rows, each a number, an array, or a dict or tuple of these.
        discrete: Integers that are choices. True: all; or the paths of these parts, such as `["actions", "obs/cell"]`.
            A part [B] becomes a Discrete and a part [B, ...] a MultiDiscrete, from 0 (or the smallest value, if that is
            negative) to the largest value in the data.

    Returns:
        A Box for each array, in Dicts and Tuples as the data is nested.

    Raises:
        SpaceError: a part without a batch axis, or of text, objects or complex numbers; NaN among the numbers; a path
            that does not exist, or whose part has no integers.
        ColumnError: a list of rows of different shapes or nesting.

    Examples:
        >>> batch = {"obs": np.zeros((8, 4), np.float32), "actions": np.array([0, 2, 1])}
        >>> infer_spaces(batch, discrete=["actions"])
        Dict('actions': Discrete(3), 'obs': Box(-inf, inf, (4,), float32))
    """
    parts: dict[str, gym.Space[Any]] = {}
    chosen = None if isinstance(discrete, bool) else set(discrete)

    def inferred(data: Any, path: str) -> gym.Space[Any]:
        data = stack_rows(data) if isinstance(data, list) and data else data
        if isinstance(data, dict):
            return spaces.Dict({key: inferred(part, f"{path}/{key}") for key, part in data.items()})
        if isinstance(data, tuple):
            return spaces.Tuple([inferred(part, f"{path}/{i}") for i, part in enumerate(data)])
        name, rows = path[1:], np.asarray(data)
        is_choice = discrete and rows.dtype.kind in "iu" if chosen is None else name in chosen
        parts[name] = _space_of_choices(rows, name) if is_choice else _space_of_rows(rows, name)
        return parts[name]

    space = inferred(convert_to_numpy(batch), "")
    unknown = sorted((chosen or set()) - parts.keys())
    if unknown:
        found, do = f"discrete={unknown}", nearest(unknown[0], parts)
        raise SpaceError("infer_spaces()", expected="paths of arrays in the data", found=found, do=do)
    return space


def _space_of_rows(rows: npt.NDArray[Any], name: str) -> gym.Space[Any]:
    space = space_like(rows.shape[1:], rows.dtype) if rows.ndim else None
    if space is None:
        needs_axis = not rows.ndim and rows.dtype.kind in "biuf"
        do = "add the batch axis" if needs_axis else "leave the part out, or encode it as numbers of up to 64 bits"
        raise _not_inferred(name, "numbers of shape [B, ...]", _describe(rows), do)
    if rows.dtype.kind == "f" and np.isnan(rows).any():
        raise _not_inferred(name, "numbers", f"NaN in row {np.argwhere(np.isnan(rows))[0][0]}", "leave the row out")
    return space


def _space_of_choices(rows: npt.NDArray[Any], name: str) -> gym.Space[Any]:
    if rows.dtype.kind not in "iu" or not rows.ndim or not len(rows):
        raise _not_inferred(name, "integers of shape [B, ...]", _describe(rows), "leave it out of `discrete`")
    low, high = min(int(rows.min()), 0), int(rows.max())
    if high - low + 1 >= 2**63:
        raise _not_inferred(name, "fewer than 2**63 choices", f"{low} to {high}", "leave it out of `discrete`")
    start = np.minimum(rows.min(0), 0).astype(np.int64)
    counts = rows.max(0).astype(np.int64) - start + 1
    if rows.ndim == 1:
        return spaces.Discrete(int(counts), start=int(start))
    return spaces.MultiDiscrete(counts, start=start)


def _not_inferred(name: str, expected: str, found: str, do: str) -> SpaceError:
    return SpaceError("infer_spaces()" + (name and f", {name}"), expected=expected, found=found, do=do)


def fill_row(space: gym.Space[Any], value: Any) -> Any:
    """One row of `space` with `value`, cast to each leaf's type, everywhere.

    Raises:
        SpaceError: a leaf has no shape or type (Text, Graph, Sequence).
        ColumnError: a leaf's type cannot hold the value.

    Examples:
        >>> fill_row(spaces.Box(0, 1, (2,)), 0.0)
        array([0., 0.], dtype=float32)
    """

    def filled(leaf: gym.Space[Any]) -> Any:
        return _full(leaf, (), value if leaf.dtype is None else fill_value(np.dtype(leaf.dtype), value))[()]

    return map_struct(filled, get_base_struct_from_space(space))


def _full(leaf: gym.Space[Any], lead: tuple[int, ...], value: Any) -> npt.NDArray[Any]:
    if leaf.shape is None or leaf.dtype is None:
        raise SpaceError(
            "filling a space with one value",
            expected="leaves with a shape and a type",
            found=f"{type(leaf).__name__} space",
            do="replace this part of the observation before it is batched",
        )
    return np.full(lead + leaf.shape, value, leaf.dtype)


def get_dummy_batch_for_space(
    space: gym.Space[Any],
    batch_size: int = 32,
    *,
    fill_value: float | int | str = 0.0,
    time_size: int | None = None,
    time_major: bool = False,
    one_hot_discrete: bool = False,
) -> Any:
    """A batch of dummy values in the structure of `space`.

    Args:
        space: The space, nested or not.
        batch_size: Rows; 0 gives a single value without a batch axis.
        fill_value: A number cast to each leaf's type, or "random" for samples of the space.
        time_size: Length of an additional time axis after the batch axis.
        time_major: Put the time axis first.
        one_hot_discrete: Discrete and MultiDiscrete leaves become float32 one-hots. With a number as
            `fill_value` the whole vector holds that number.

    Raises:
        SpaceError: a leaf has no shape or type and cannot be filled.

    Examples:
        >>> get_dummy_batch_for_space(spaces.Discrete(3), 2, one_hot_discrete=True).shape
        (2, 3)
    """
    lead: tuple[int, ...] = (batch_size,) if batch_size else ()
    if time_size:
        lead = (time_size, *lead) if time_major else (*lead, time_size)

    def make(leaf: gym.Space[Any]) -> npt.NDArray[Any]:
        width = _one_hot_width(leaf) if one_hot_discrete else 0
        if fill_value == "random":
            samples = np.array([leaf.sample() for _ in range(int(np.prod(lead)))])
            values = samples.reshape(lead + samples.shape[1:])
            return one_hot_column(values, leaf) if width else values
        return np.full((*lead, width), fill_value, np.float32) if width else _full(leaf, lead, fill_value)

    return map_struct(make, get_base_struct_from_space(space))


def _one_hot_width(leaf: gym.Space[Any]) -> int:
    if isinstance(leaf, spaces.Discrete):
        return int(leaf.n)
    return int(leaf.nvec.sum()) if isinstance(leaf, spaces.MultiDiscrete) else 0


def one_hot(
    x: npt.ArrayLike,
    depth: int = 0,
    on_value: float = 1.0,
    off_value: float = 0.0,
    dtype: npt.DTypeLike = np.float32,
) -> npt.NDArray[Any]:
    """One-hot vectors along a new last axis.

    Args:
        x: integers of any shape.
        depth: Length of the vectors; 0 takes the largest integer plus one.
        on_value: The value at the integer's place.
        off_value: The value elsewhere.
        dtype: Type of the result.

    Raises:
        SpaceError: `x` is not integral, or an integer lies outside [0, depth).

    Examples:
        >>> one_hot([2, 0], 3)
        array([[0., 0., 1.],
               [1., 0., 0.]], dtype=float32)
    """
    indices = np.asarray(convert_to_numpy(x))
    found = None
    if indices.dtype.kind not in "iub":
        found = f"type {indices.dtype}"
    elif indices.size:
        depth = depth or int(indices.max()) + 1
        if indices.min() < 0 or indices.max() >= depth:
            found = f"values from {indices.min()} to {indices.max()}"
    if found:
        expected = f"integers in [0, {depth})" if depth else "integers from 0 on"
        raise SpaceError("one_hot()", expected=expected, found=found, do="subtract the start, check the depth")
    result = np.full((*indices.shape, depth), off_value, dtype)
    if indices.size:
        np.put_along_axis(result, indices.astype(np.intp)[..., None], on_value, axis=-1)
    return result


def one_hot_multidiscrete(x: npt.ArrayLike, depths: Sequence[int]) -> npt.NDArray[np.float32]:
    """Concatenated one-hots of the entries along the last axis of `x`.

    Args:
        x: integers of shape [..., len(depths)].
        depths: Length of each one-hot.

    Raises:
        SpaceError: the last axis does not have one entry per depth, or an entry is out of range.

    Examples:
        >>> one_hot_multidiscrete([1, 2], [2, 3])
        array([0., 1., 0., 0., 1.], dtype=float32)
    """
    values = np.asarray(convert_to_numpy(x))
    if values.ndim == 0 or values.shape[-1] != len(depths):
        raise SpaceError(
            "one_hot_multidiscrete()",
            expected=f"a last axis of {len(depths)} entries, one per depth",
            found=f"shape {values.shape}",
            do="flatten the entries of the space into the last axis",
        )
    return np.concatenate([one_hot(values[..., i], int(depth)) for i, depth in enumerate(depths)], axis=-1)


def one_hot_column(data: Any, space: Any) -> Any:
    """One-hot the Discrete and MultiDiscrete leaves of a column, to float32; other leaves are left as they are.

    Args:
        data: Leaves of shape [T, ...] (or any leading axes, also none).
        space: The space of one row; a Discrete's or MultiDiscrete's start counts as zero.

    Raises:
        SpaceError: a value lies outside its space.

    Examples:
        >>> one_hot_column(np.array([5, 6]), spaces.Discrete(2, start=5))
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    def convert(leaf: gym.Space[Any], values: Any) -> Any:
        if isinstance(leaf, spaces.Discrete):
            return one_hot(np.asarray(values) - leaf.start, int(leaf.n))
        if isinstance(leaf, spaces.MultiDiscrete):
            values = np.asarray(values) - getattr(leaf, "start", 0)
            lead = values.shape[: values.ndim - leaf.nvec.ndim]
            return one_hot_multidiscrete(values.reshape(*lead, leaf.nvec.size), leaf.nvec.reshape(-1).tolist())
        return values

    return map_struct(convert, get_base_struct_from_space(space), data)


def flatten_inputs_to_1d_tensor(
    inputs: Any, spaces_struct: Any = None, time_axis: bool = False, batch_axis: bool = True
) -> npt.NDArray[np.float32]:
    """Join all leaves of a batched structure into one float32 array of shape [B, features].

    Args:
        inputs: A structure of arrays [B, ...], [B, T, ...] or (without batch axis) [...].
        spaces_struct: The matching spaces; Discrete and MultiDiscrete leaves are one-hot encoded with them.
        time_axis: A time axis follows the batch axis.
        batch_axis: There is a batch axis.

    Examples:
        >>> flatten_inputs_to_1d_tensor({"a": np.ones((4, 2)), "b": np.ones((4, 3, 3))}).shape
        (4, 11)
    """
    data = convert_to_numpy(inputs)
    if spaces_struct is not None:
        data = one_hot_column(data, spaces_struct)
    lead = int(batch_axis) + int(time_axis)
    parts = [array.reshape(*array.shape[:lead], -1) for array in map(np.asarray, sorted_leaves(data))]
    return np.concatenate([part.astype(np.float32) for part in parts], axis=-1)
