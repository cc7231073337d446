"""Random spaces and rows of them, made of integers only, so that they are the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Random = np.random.Generator

OBSERVATIONS: dict[str, Callable[[], gym.Space[Any]]] = {
    "box": lambda: spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "matrix": lambda: spaces.Box(-2.0, 2.0, (2, 3), np.float64),
    "image": lambda: spaces.Box(0, 255, (6, 5, 1), np.uint8),
    "discrete": lambda: spaces.Discrete(5),
    "dict": lambda: spaces.Dict(
        b=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        a=spaces.Dict(image=spaces.Box(0, 255, (2, 2), np.uint8), kind=spaces.Discrete(3)),
    ),
    "tuple": lambda: spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiDiscrete([3, 2]))),
}
ACTIONS: dict[str, Callable[[], gym.Space[Any]]] = {
    "discrete": lambda: spaces.Discrete(4),
    "box": lambda: spaces.Box(-2.0, np.array([2.0, 6.0], np.float32), (2,), np.float32),
    "multi": lambda: spaces.MultiDiscrete([3, 4]),
    "dict": lambda: spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1.0, 1.0, (2,), np.float32)),
}
STATES: dict[str, Any] = {
    "": {},
    "h": {"h": (3,)},
    "nested": {"lstm": {"h": (2,), "c": (2,)}, "clock": (1,)},
}
"""Layouts of recurrent states: names, and the shape of each leaf."""


def map_shapes(layout: Any, make: Callable[[tuple[int, ...]], Any]) -> Any:
    """Return a struct like a layout, with `make(shape)` in place of each shape."""
    return {name: map_shapes(inner, make) if isinstance(inner, dict) else make(inner) for name, inner in layout.items()}


def chance(rng: Random, percent: int) -> bool:
    """Return True in `percent` of 100 cases."""
    return int(rng.integers(100)) < percent


def pick(rng: Random, options: Any) -> Any:
    """Return one of several options."""
    options = list(options)
    return options[int(rng.integers(len(options)))]


def eighths(rng: Random, shape: Any, dtype: Any = np.float32) -> Any:
    """Draw multiples of 1/8 between -2 and 2."""
    return (rng.integers(-16, 17, shape) / 8).astype(dtype)


def draw(space: gym.Space[Any], rng: Random, count: int) -> Any:
    """Draw rows of a space: a struct of arrays with `count` as first axis."""
    if isinstance(space, spaces.Dict):
        return {key: draw(inner, rng, count) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw(inner, rng, count) for inner in space.spaces)
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, count)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (count, *space.shape)).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    if space.dtype.kind != "f":
        return rng.integers(0, 256, (count, *space.shape)).astype(space.dtype)
    return np.clip(eighths(rng, (count, *space.shape), space.dtype), space.low, space.high)


def row(struct: Any, index: Any) -> Any:
    """Take one row (or a slice of rows) of a struct of arrays."""
    if isinstance(struct, dict):
        return {key: row(inner, index) for key, inner in struct.items()}
    if isinstance(struct, tuple):
        return tuple(row(inner, index) for inner in struct)
    return struct[index]
