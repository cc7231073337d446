"""Spaces and the values in them: dummy rows, one-hot, action scaling, shape checks, descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from epibatch.core.action_scaling import clip_action, normalize_action, unsquash_action
from epibatch.core.errors import SpaceError
from epibatch.core.fill_values import fill_value
from epibatch.core.space_checks import check_row, get_base_struct_from_space
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.struct_batches import (
    BatchedNdArray,
    batch,
    convert_to_numpy,
    flatten_to_single_ndarray,
    make_action_immutable,
    sorted_leaves,
    unbatch,
)
from epibatch.core.structs import map_struct

__all__ = [
    "BatchedNdArray",
    "batch",
    "check_row",
    "clip_action",
    "convert_to_numpy",
    "fill_row",
    "flatten_inputs_to_1d_tensor",
    "flatten_to_single_ndarray",
    "get_base_struct_from_space",
    "get_dummy_batch_for_space",
    "make_action_immutable",
    "normalize_action",
    "one_hot",
    "one_hot_column",
    "one_hot_multidiscrete",
    "space_from_dict",
    "space_to_dict",
    "unbatch",
    "unsquash_action",
]


def fill_row(space: gym.Space[Any], value: Any) -> Any:
    """One row of `space` with `value`, cast to each leaf's type, everywhere.

    Raises:
        SpaceError: a leaf has no shape or type (Text, Graph, Sequence).
        ColumnError: a leaf's type cannot hold the value.

    Example:
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
        space: the space, nested or not.
        batch_size: rows; 0 gives a single value without a batch axis.
        fill_value: a number cast to each leaf's type, or "random" for samples of the space.
        time_size: length of an additional time axis after the batch axis.
        time_major: put the time axis first.
        one_hot_discrete: Discrete and MultiDiscrete leaves become float32 one-hots. With a number as
            `fill_value` the whole vector holds that number.

    Raises:
        SpaceError: a leaf has no shape or type and cannot be filled.

    Example:
        >>> get_dummy_batch_for_space(spaces.Discrete(3), 2, one_hot_discrete=True).shape
        (2, 3)
    """
    lead: tuple[int, ...] = (batch_size,) if batch_size else ()
    if time_size:
        lead = (time_size, *lead) if time_major else (*lead, time_size)

    def make(leaf: gym.Space[Any]) -> npt.NDArray[Any]:
        width = _one_hot_width(leaf) if one_hot_discrete else 0
        if fill_value == "random":
            drawn = np.array([leaf.sample() for _ in range(int(np.prod(lead)))])
            values = drawn.reshape(lead + drawn.shape[1:])
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
        depth: length of the vectors; 0 takes the largest integer plus one.
        on_value: the value at the integer's place.
        off_value: the value elsewhere.
        dtype: type of the result.

    Raises:
        SpaceError: `x` is not integral, or an integer lies outside [0, depth).

    Example:
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
        depths: length of each one-hot.

    Raises:
        SpaceError: the last axis does not have one entry per depth, or an entry is out of range.

    Example:
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
        data: leaves of shape [T, ...] (or any leading axes, also none).
        space: the space of one row; a Discrete's or MultiDiscrete's start counts as zero.

    Raises:
        SpaceError: a value lies outside its space.

    Example:
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
        inputs: a structure of arrays [B, ...], [B, T, ...] or (without batch axis) [...].
        spaces_struct: the matching spaces; Discrete and MultiDiscrete leaves are one-hot encoded with them.
        time_axis: a time axis follows the batch axis.
        batch_axis: there is a batch axis.

    Example:
        >>> flatten_inputs_to_1d_tensor({"a": np.ones((4, 2)), "b": np.ones((4, 3, 3))}).shape
        (4, 11)
    """
    data = convert_to_numpy(inputs)
    if spaces_struct is not None:
        data = one_hot_column(data, spaces_struct)
    lead = int(batch_axis) + int(time_axis)
    parts = [array.reshape(*array.shape[:lead], -1) for array in map(np.asarray, sorted_leaves(data))]
    return np.concatenate([part.astype(np.float32) for part in parts], axis=-1)
