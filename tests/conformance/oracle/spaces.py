"""Random Gymnasium spaces, drawn by Hypothesis, and rows of them from a seeded generator."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, max_axes: int = 3, dtypes: tuple[str, ...] = FLOATS + INTEGERS) -> gym.spaces.Box:
    """Boxes of 0 to 3 axes; floats bounded on both sides, on one, or not at all."""
    shape = draw(st.lists(st.integers(1, 3), max_size=max_axes).map(tuple))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    if dtype.kind == "f":
        low, high = draw(st.sampled_from([(-np.inf, np.inf), (-2.0, 3.0), (0.0, np.inf), (-np.inf, 1.0)]))
    elif dtype.kind == "u":
        low, high = draw(st.sampled_from([(0, 255), (1, 9)]))
    else:
        low, high = draw(st.sampled_from([(-100, 100), (0, 7)]))
    return gym.spaces.Box(low, high, shape, dtype.type)


discretes = st.builds(
    lambda n, start: gym.spaces.Discrete(n, start=start), st.integers(1, 5), st.sampled_from([0, 0, 3])
)
multi_discretes = st.one_of(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(gym.spaces.MultiDiscrete),
    st.just(gym.spaces.MultiDiscrete([[2, 3], [4, 2]])),
)
multi_binaries = st.sampled_from([1, 4, (2, 3)]).map(gym.spaces.MultiBinary)
leaf_spaces = st.one_of(boxes(), discretes, multi_discretes, multi_binaries)


def nested(leaves: st.SearchStrategy[gym.Space[Any]]) -> st.SearchStrategy[gym.Space[Any]]:
    """The leaves alone, and Dicts and Tuples of them in each other."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(gym.spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
        ),
        max_leaves=4,
    )


spaces = nested(leaf_spaces)
"""Any space that both libraries can store."""


def rows(space: gym.Space[Any], rng: np.random.Generator, count: int) -> list[Any]:
    """Draw members of a space, as an environment would deliver them.

    Returns:
        `count` structures with the space's shapes and types; Discrete ones are `np.int64`.
    """
    if isinstance(space, gym.spaces.Dict):
        columns = {key: rows(inner, rng, count) for key, inner in space.spaces.items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if isinstance(space, gym.spaces.Tuple):
        parts = [rows(inner, rng, count) for inner in space.spaces]
        return [tuple(part[i] for part in parts) for i in range(count)]
    return list(_leaf_rows(space, rng, count))


def _leaf_rows(space: gym.Space[Any], rng: np.random.Generator, count: int) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, count)
    if isinstance(space, gym.spaces.MultiDiscrete):
        low = space.start
        return rng.integers(low, low + space.nvec, (count, *space.shape)).astype(space.dtype)
    if isinstance(space, gym.spaces.MultiBinary):
        return rng.integers(0, 2, (count, *space.shape)).astype(space.dtype)
    assert isinstance(space, gym.spaces.Box)
    if space.dtype.kind != "f":
        values = rng.integers(space.low, space.high, (count, *space.shape), endpoint=True)
    else:
        values = np.clip(rng.standard_normal((count, *space.shape)) * 2, space.low, space.high)
    values = values.astype(space.dtype)
    return [np.asarray(row) for row in values]
