"""Environments whose values are no arrays of one shape, with arrays: Sequence and Graph spaces, and registered ones."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from epibatch.core.ragged import has_ragged_parts, ragged_row, ragged_space
from epibatch.core.registered_spaces import decoded, encoded_space, has_registered_parts

from .env_checks import check_space
from .vector_envs import with_objects


def with_ragged_rows(env: Any) -> Any:
    """Return an environment whose Sequences and Graphs are arrays of rows, as `ragged_space` says; others as they are.

    Observations and actions of registered spaces are their arrays.

    Raises:
        SpaceError: observations that cannot be stored as arrays.

    Examples:
        >>> from gymnasium.spaces import Box, Sequence
        >>> class Points(gym.Env):
        ...     observation_space, action_space = Sequence(Box(0, 1, (2,))), Box(0, 1)
        ...     def reset(self, *, seed=None, options=None):
        ...         return (np.ones(2, np.float32),) * 3, {}
        >>> with_ragged_rows(Points()).reset()[0].shape
        (3, 2)
    """
    if has_registered_parts(env.action_space):
        env = gym.wrappers.TransformAction(env, partial(decoded, env.action_space), encoded_space(env.action_space))
    space = env.observation_space
    check_space(ragged_space(space), f"environment {type(env.unwrapped).__name__}, observation space")
    if not has_ragged_parts(space):
        return env
    return gym.wrappers.TransformObservation(env, partial(ragged_row, space), ragged_space(space))


def with_ragged_vectors(env: Any) -> Any:
    """Return a vector environment with an object array [N] for each Sequence, whose items are arrays of rows."""
    space = getattr(env, "single_observation_space", None)
    return env if space is None or not has_ragged_parts(space) else _RaggedVectors(env)


@final
class _RaggedVectors(gym.vector.VectorWrapper):
    """Gymnasium batches such spaces as tuples of N values, and terminal observations as an object array."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._given = env.single_observation_space
        self.single_observation_space = ragged_space(self._given)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._arrays(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments."""
        observations, *rest, infos = self.env.step(actions)
        if (final := infos.get("final_obs")) is not None:
            rows = np.empty(len(final), object)
            for i in range(len(final)):
                rows[i] = None if final[i] is None else ragged_row(self._given, final[i])
            infos = {**infos, "final_obs": rows}
        return (self._arrays(observations), *rest, infos)

    def _arrays(self, observations: Any) -> Any:
        rows = iterate(self.env.observation_space, observations)
        return with_objects(self.single_observation_space, [ragged_row(self._given, row) for row in rows])
