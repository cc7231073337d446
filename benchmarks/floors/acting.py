"""The loop that one writes by hand to collect steps: Gymnasium's vector environment, a torch network, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn


def mlp(inputs: int, outputs: int, hidden: int = 256) -> nn.Sequential:
    """Two hidden layers with tanh."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


@dataclass
class Rollout:
    """What was seen and done, one entry per vector step.

    In the step behind an end Gymnasium ignores the action and gives the reset observation with reward 0. Such steps are
    in here too.
    """

    observations: list[Any]
    actions: list[Any]
    log_probabilities: list[Any]
    rewards: list[Any]
    terminated: list[Any]
    truncated: list[Any]

    def __len__(self) -> int:
        return len(self.actions)


class BareLoop:
    """Acts in N environments with a policy network, and keeps everything.

    Args:
        env: A Gymnasium vector environment with four observations and two actions.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.policy = mlp(4, 2)
        self.observation, _ = env.reset(seed=0)

    @torch.no_grad()
    def collect(self, vector_steps: int) -> Rollout:
        """Take so many vector steps."""
        env, policy, observation = self.env, self.policy, self.observation
        kept = Rollout([observation], [], [], [], [], [])
        for _ in range(vector_steps):
            log_probabilities = torch.log_softmax(policy(torch.from_numpy(observation)), -1)
            action = torch.multinomial(log_probabilities.exp(), 1)
            kept.actions.append(action)
            kept.log_probabilities.append(log_probabilities.gather(1, action))
            observation, reward, terminated, truncated, _ = env.step(action[:, 0].numpy())
            kept.observations.append(observation)
            kept.rewards.append(reward)
            kept.terminated.append(terminated)
            kept.truncated.append(truncated)
        self.observation = observation
        return kept


def transitions(kept: Rollout) -> dict[str, Any]:
    """The steps of a rollout in flat rows, those left out that only reset.

    Returns:
        `obs`, `actions`, `next_obs`, and `resets`: which share of the rollout's steps is left out.
    """
    actions = np.stack([own.numpy()[:, 0] for own in kept.actions])
    done = np.logical_or(kept.terminated, kept.truncated)
    real = np.vstack([np.ones_like(done[:1]), ~done[:-1]])
    observations = np.stack(kept.observations)
    return {
        "obs": observations[:-1][real],
        "actions": actions[real],
        "next_obs": observations[1:][real],
        "resets": 1.0 - real.mean(),
    }
