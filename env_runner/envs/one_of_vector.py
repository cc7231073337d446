"""A vector environment of one as a single environment."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.structs import map_struct

from .tensor_envs import device_of, to_arrays, to_tensor


class OneOfVector(gym.Env[Any, Any]):
    """The environment of a vector environment of one, as a single environment of arrays.

    Args:
        vector: Takes and returns arrays or tensors.
    """

    def __init__(self, vector: Any) -> None:
        self.vector, self.render_mode, self.metadata = vector, vector.render_mode, vector.metadata
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self._device: Any = None  # of its tensors, if it gives some

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observations, _ = self.vector.reset(seed=seed, options=options)
        self._device = device_of(observations)
        return self._row(observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        actions = map_struct(lambda leaf: np.asarray(leaf)[None], action)
        if self._device is not None:
            actions = map_struct(partial(to_tensor, device=self._device), actions)
        observations, rewards, terminateds, truncateds, _ = self.vector.step(actions)
        (reward,), (terminated,), (truncated,) = map(to_arrays, (rewards, terminateds, truncateds))
        return self._row(observations), float(reward), bool(terminated), bool(truncated), {}

    def render(self) -> Any:
        """Return the vector environment's image, which may be in a tuple of one."""
        image = self.vector.render()
        while isinstance(image, (list, tuple)) and len(image) == 1:
            (image,) = image
        return image

    def close(self) -> None:
        """Close the vector environment."""
        self.vector.close()

    @staticmethod
    def _row(observations: Any) -> Any:
        return map_struct(lambda leaf: leaf[0], to_arrays(observations))
