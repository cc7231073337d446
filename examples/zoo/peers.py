"""The same tasks with Stable-Baselines3, and the same settings where it has them.

Run it from the repository root: `python -m examples.zoo.peers hopper_ppo 0 300000 hopper.csv`. `train.py` calls it.
"""

from __future__ import annotations

import csv
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from examples.lstm_memory import HiddenVelocities
from examples.zoo.environments import TMaze, breakout, spread
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn


class SmallImages(BaseFeaturesExtractor):
    """The encoder of breakout_ppo.yaml: 16 filters of 3 by 3 on images whose channels come last."""

    def __init__(self, observation_space: gym.spaces.Box) -> None:
        super().__init__(observation_space, 128)
        self.layers = nn.Sequential(nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the features [B, 128] of images [B, 10, 10, 4]."""
        return self.layers(observations.permute(0, 3, 1, 2))


class AgentsAsEnvs(VecEnv):
    """Agents that share a policy, each as an environment: what SB3 needs to train several agents."""

    def __init__(self, count: int) -> None:
        self.envs = [spread() for _ in range(count)]
        self.agents = list(self.envs[0].possible_agents)
        self.returns = np.zeros(count)
        one = self.envs[0]
        spaces = (one.get_observation_space(self.agents[0]), one.get_action_space(self.agents[0]))
        super().__init__(count * len(self.agents), *spaces)

    def rows(self, of_agents: Sequence[dict[str, Any]]) -> list[Any]:
        """Return what the agents of all environments have, in order."""
        return [values[agent] for values in of_agents for agent in self.agents]

    def reset(self) -> Any:
        """Reset all environments."""
        seeds = self._seeds[:: len(self.agents)]
        return np.stack(self.rows([env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=True)]))

    def step_async(self, actions: Any) -> None:
        """Keep the actions."""
        self.actions = actions.reshape(len(self.envs), -1)

    def step_wait(self) -> Any:
        """Step all environments, and reset those whose episode ended."""
        observations, rewards, dones, infos = [], [], [], []
        for place, env in enumerate(self.envs):
            chosen = {agent: int(action) for agent, action in zip(self.agents, self.actions[place], strict=True)}
            seen, paid, _, truncateds, _ = env.step(chosen)
            last = {agent: {"terminal_observation": seen[agent], "TimeLimit.truncated": True} for agent in self.agents}
            self.returns[place] += sum(paid.values())
            if truncateds["__all__"]:
                last[self.agents[0]]["episode"] = {"r": self.returns[place], "l": 25, "t": 0.0}
                self.returns[place] = 0.0
                seen, _ = env.reset()
            observations.append(seen)
            rewards.append(paid)
            dones += [truncateds["__all__"]] * len(self.agents)
            infos.append(last if truncateds["__all__"] else {agent: {} for agent in self.agents})
        rows = np.asarray(self.rows(rewards), np.float32), np.asarray(dones), self.rows(infos)
        return np.stack(self.rows(observations)), *rows

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each: their returns are counted here."""
        return [False] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return the attribute of each, None where there is none."""
        return [getattr(env, attr_name, None) for env in self.envs for _ in self.agents]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set it in each environment."""
        for env in self.envs:
            setattr(env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call it in each environment."""
        return [getattr(env, method_name)(*args, **kwargs) for env in self.envs for _ in self.agents]


def falling(start: float) -> Callable[[float], float]:
    """Return a learning rate that falls to 0 in a straight line."""
    return lambda left: start * left


def ppo_mujoco(env: str, seed: int) -> BaseAlgorithm:
    """PPO as in hopper_ppo.yaml, with normalised observations and rewards."""
    normalised = VecNormalize(make_vec_env(env, 1, seed=seed), clip_obs=10.0, clip_reward=10.0, gamma=0.99)
    policy = {"net_arch": [64, 64], "activation_fn": nn.Tanh}
    sizes: dict[str, Any] = {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "stats_window_size": 20}
    return PPO("MlpPolicy", normalised, seed=seed, learning_rate=falling(3e-4), policy_kwargs=policy, **sizes)


def sac_mujoco(env: str, window: int, seed: int) -> BaseAlgorithm:
    """SAC as in hopper_sac.yaml."""
    made = make_vec_env(env, 1, seed=seed)
    policy = {"net_arch": [256, 256], "activation_fn": nn.Tanh}
    return SAC("MlpPolicy", made, seed=seed, policy_kwargs=policy, learning_starts=1000, stats_window_size=window)


def ppo_breakout(seed: int) -> BaseAlgorithm:
    """PPO as in breakout_ppo.yaml."""
    policy = {"features_extractor_class": SmallImages, "net_arch": [], "share_features_extractor": False}
    sizes: dict[str, Any] = {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "stats_window_size": 20}
    made = make_vec_env(breakout, 8, seed=seed)
    rest: dict[str, Any] = {"clip_range": 0.1, "ent_coef": 0.01, "seed": seed}
    return PPO("MlpPolicy", made, learning_rate=falling(5e-4), policy_kwargs=policy, **rest, **sizes)


def dqn_breakout(seed: int) -> BaseAlgorithm:
    """DQN as in breakout_dqn.yaml."""
    policy = {"features_extractor_class": SmallImages, "net_arch": []}
    explore: dict[str, Any] = {"exploration_fraction": 1 / 3, "exploration_final_eps": 0.05}
    sizes: dict[str, Any] = {"buffer_size": 100_000, "learning_starts": 5000, "batch_size": 32, "train_freq": 4}
    made, rest = make_vec_env(breakout, 1, seed=seed), {"target_update_interval": 1000, "stats_window_size": 20}
    return DQN("MlpPolicy", made, 2.5e-4, seed=seed, policy_kwargs=policy, **explore, **sizes, **rest)


def recurrent_ppo(env: Any, seed: int, **settings: Any) -> BaseAlgorithm:
    """PPO with an LSTM, as in hidden_velocities_ppo.yaml and t_maze_ppo.yaml."""
    sizes: dict[str, Any] = {"n_steps": 256, "batch_size": 256, "n_epochs": 8, "learning_rate": 1e-3}
    made = make_vec_env(env, 8, seed=seed)
    return RecurrentPPO("MlpLstmPolicy", made, seed=seed, **sizes, **settings)


def ppo_spread(seed: int) -> BaseAlgorithm:
    """PPO as in spread_ppo.yaml."""
    normalised = VecNormalize(AgentsAsEnvs(8), norm_obs=False, gamma=0.95)
    sizes: dict[str, Any] = {"n_steps": 200, "batch_size": 480, "n_epochs": 10, "learning_rate": 1e-3}
    rest: dict[str, Any] = {"gamma": 0.95, "ent_coef": 0.01, "stats_window_size": 100, "seed": seed}
    return PPO("MlpPolicy", normalised, **sizes, **rest)


PEERS: dict[str, Callable[[int], BaseAlgorithm]] = {
    "hopper_ppo": partial(ppo_mujoco, "Hopper-v5"),
    "halfcheetah_ppo": partial(ppo_mujoco, "HalfCheetah-v5"),
    "walker2d_ppo": partial(ppo_mujoco, "Walker2d-v5"),
    "hopper_sac": partial(sac_mujoco, "Hopper-v5", 20),
    "halfcheetah_sac": partial(sac_mujoco, "HalfCheetah-v5", 5),
    "walker2d_sac": partial(sac_mujoco, "Walker2d-v5", 20),
    "breakout_ppo": ppo_breakout,
    "breakout_dqn": dqn_breakout,
    "hidden_velocities_ppo": lambda seed: recurrent_ppo(
        HiddenVelocities, seed, vf_coef=0.05, policy_kwargs={"lstm_hidden_size": 64}, stats_window_size=20
    ),
    "t_maze_ppo": lambda seed: recurrent_ppo(
        TMaze, seed, gamma=0.98, ent_coef=0.01, policy_kwargs={"lstm_hidden_size": 32}, stats_window_size=100
    ),
    "spread_ppo": ppo_spread,
}
"""The tasks: seed -> model."""


class Curve(BaseCallback):
    """Writes the mean return of the last episodes, a hundred times in a run."""

    def __init__(self, path: str, steps: int, agents: int) -> None:
        super().__init__()
        self.path, self.every, self.agents, self.rows = path, steps // 100, agents, deque[tuple[int, float]]()

    def _on_step(self) -> bool:
        steps = self.num_timesteps // self.agents
        if steps >= self.every * (len(self.rows) + 1):
            returns = [info["r"] for info in self.model.ep_info_buffer or []]
            self.rows.append((steps, float(np.mean(returns)) if returns else float("nan")))
        return True

    def _on_training_end(self) -> None:
        with open(self.path, "w", newline="") as file:
            csv.writer(file).writerows(self.rows)


def main(task: str, seed: int, steps: int, path: str) -> None:
    """Train a task, and write rows of steps and mean return."""
    torch.set_num_threads(1)
    agents = 3 if task == "spread_ppo" else 1
    PEERS[task](seed).learn(steps * agents, callback=Curve(path, steps, agents))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
