"""Steps a vector of multi-agent environments, and draws random actions for it."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from .vector_multi_agent_env import VectorAgentStep, VectorMultiAgentEnv

__all__ = ["MultiAgentStepper"]


class MultiAgentStepper:
    """What a runner asks of its environments.

    Args:
        env: The environments.
        seconds: Spent in steps of environments that these replace.

    Attributes:
        seconds: Spent in steps so far.

    Example:
        >>> from epibatch.env_runner import make_multi_agent
        >>> stepper = MultiAgentStepper(VectorMultiAgentEnv([make_multi_agent("CartPole-v1")] * 2))
        >>> observations, infos = stepper.reset(seed=0)
        >>> actions = stepper.random_actions(observations)
        >>> stepper.step(actions).rewards
        [{0: 1.0}, {0: 1.0}]
        >>> stepper.close()
    """

    def __init__(self, env: VectorMultiAgentEnv, *, seconds: float = 0.0) -> None:
        self.env = env
        self.seconds = seconds
        spaces = {agent: copy.deepcopy(space) for agent, space in env.action_spaces.items()}
        self._action_space = gym.spaces.Dict(spaces)

    @property
    def rng(self) -> np.random.Generator:
        """Where random actions are drawn from."""
        return self._action_space.np_random

    @property
    def broken(self) -> bool:
        """Whether the environments must be made anew before the next reset."""
        return self.env.closed or self.env.broken

    def reset(self, seed: int | None) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
        """Reset all environments.

        Args:
            seed: For the first environment; the others get the following numbers. It also seeds the random
                actions. None leaves the random streams as they are.
        """
        if seed is not None:
            self._action_space.seed(seed)
        return self.env.reset(seed=seed)

    def step(self, actions: Sequence[dict[Any, Any]]) -> VectorAgentStep:
        """Step all environments, and reset those that have ended."""
        started = time.perf_counter()
        step = self.env.try_step(actions)
        self.seconds += time.perf_counter() - started
        return step

    def random_actions(self, agents: Sequence[Collection[Any]]) -> list[dict[Any, Any]]:
        """An action from its space for each agent that is to act.

        Args:
            agents: Those that are to act, for each environment.
        """
        spaces = self._action_space.spaces
        return [{agent: spaces[agent].sample() for agent in own} for own in agents]

    def interrupted(self) -> None:
        """Nothing to note: the environments know which of them did not come to an end."""

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
