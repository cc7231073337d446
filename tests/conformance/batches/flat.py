"""Members of nested spaces as vectors, and the parts of such spaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def flat(space: Any, value: Any, removed: Any = ()) -> Any:
    """A member of a space as one vector."""
    if isinstance(space, gym.spaces.Dict):
        kept = [key for key in sorted(space.spaces) if key not in removed]
        return np.concatenate([flat(space[key], value[key]) for key in kept])
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([flat(own, part) for own, part in zip(space.spaces, value)])
    if isinstance(space, gym.spaces.Discrete):
        return np.arange(space.start, space.start + space.n) == value
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts, numbers = np.ravel(space.nvec), np.ravel(value)
        return np.concatenate([np.arange(n) == number for n, number in zip(counts, numbers)])
    return np.ravel(value)


def parts(space: Any, kind: type) -> list[Any]:
    """The parts of a space that are of one kind."""
    if isinstance(space, gym.spaces.Dict):
        return [own for part in space.spaces.values() for own in parts(part, kind)]
    if isinstance(space, gym.spaces.Tuple):
        return [own for part in space.spaces for own in parts(part, kind)]
    return [space] if isinstance(space, kind) else []
