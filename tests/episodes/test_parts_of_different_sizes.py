"""Long episodes whose observations have small and large parts: each part grows with the others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode


class Parts(gym.Env[Any, Any]):
    """The parts count steps; the first of them is a number, the second has `size` of them."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size: int) -> None:
        bounds = gym.spaces.Box(-np.inf, np.inf, (), np.float64), gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.observation_space = gym.spaces.Dict(few=bounds[0], many=bounds[1])
        self.size, self.t = size, 0

    def observe(self) -> Any:
        return {"few": np.array(self.t, np.float64), "many": np.full(self.size, self.t, np.float64)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t == 400, False, {}


@pytest.mark.parametrize("size", [14, 500])
@pytest.mark.parametrize("count", [1, 4])
def test_each_row_is_that_of_its_step(size: int, count: int) -> None:
    config = PPOConfig().environment(lambda _: Parts(size)).env_runners(num_envs_per_env_runner=count)
    runner = SingleAgentEnvRunner(config=config)
    chunks = [chunk for _ in range(2) for chunk in runner.sample(num_timesteps=400 * count // 2)]
    for chunk in chunks:
        seen = chunk.get_observations()
        expected = np.arange(chunk.t_started, chunk.t + 1)
        assert (seen["few"] == expected).all() and (seen["many"] == expected[:, None]).all()
    episode = SingleAgentEpisode(observation_space=runner.env.single_observation_space)
    env = Parts(size)
    episode.add_env_reset(env.reset()[0])
    for _ in range(300):
        episode.add_env_step(env.step(0)[0], 0, 1.0)
    assert episode.get_observations()["many"][:, -1].tolist() == list(range(301))
