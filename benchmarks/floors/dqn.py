"""DQN as one writes it by hand: one loop, a Gymnasium environment, a ring of arrays, a torch network, nothing else.

The algorithm, its network and its numbers are epibatch's defaults: double Q-learning of a dueling network, Huber loss,
Adam, an update for each step, a target that is copied every 500 updates.
"""

from __future__ import annotations

import copy
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.floors.ppo import mlp

CAPACITY, WARM_UP = 100_000, 1000
GAMMA, RATE, TARGET = 0.99, 5e-4, 500
DECAY, LEAST = 10_000, 0.05


class Dueling(nn.Module):
    """A value of the observation and an advantage of each action, on two hidden layers with tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*mlp(4, 1)[:-1])
        self.value, self.advantage = nn.Linear(256, 1), nn.Linear(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the value of each action."""
        hidden = self.body(x)
        advantage = self.advantage(hidden)
        values: torch.Tensor = self.value(hidden) + advantage - advantage.mean(-1, keepdim=True)
        return values


class BareDQN:
    """Trains on CartPole, in one environment.

    Args:
        seed: Of everything.
        steps: Of an iteration.
        batch_size: Steps of an update.
    """

    def __init__(self, seed: int, steps: int = 1000, batch_size: int = 32) -> None:
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.steps, self.batch_size = steps, batch_size
        self.env = gym.make("CartPole-v1")
        self.network = Dueling()
        self.target = copy.deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=RATE)
        shapes = {"obs": (4,), "next": (4,), "action": (), "reward": (), "terminated": ()}
        self.ring = {
            name: np.zeros((CAPACITY, *shape), np.int64 if name == "action" else np.float32)
            for name, shape in shapes.items()
        }
        self.observation, _ = self.env.reset(seed=seed)
        self.count = self.updates = 0
        self.episode_return = 0.0
        self.returns: deque[float] = deque(maxlen=100)

    def iteration(self) -> float:
        """Act, and learn after each step; returns the mean return of the last hundred episodes."""
        for _ in range(self.steps):
            self.act()
            if self.count > WARM_UP:
                self.learn()
        return float(np.mean(self.returns)) if self.returns else float("nan")

    def act(self) -> None:
        """Take a step, and keep it."""
        observation, epsilon = self.observation, max(LEAST, 1 - (1 - LEAST) * self.count / DECAY)
        if self.count < WARM_UP or self.rng.random() < epsilon:
            action = int(self.rng.integers(2))
        else:
            with torch.no_grad():
                action = int(self.network(torch.from_numpy(observation)[None]).argmax())
        following, reward, terminated, truncated, _ = self.env.step(action)
        at = self.count % CAPACITY
        for name, value in zip(self.ring, (observation, following, action, reward, terminated)):
            self.ring[name][at] = value
        self.observation, self.count = following, self.count + 1
        self.episode_return += float(reward)
        if terminated or truncated:
            self.observation, _ = self.env.reset()
            self.returns.append(self.episode_return)
            self.episode_return = 0.0

    def learn(self) -> None:
        """Draw, and take a step of the optimiser."""
        rows = self.rng.integers(0, min(self.count, CAPACITY), self.batch_size)
        obs, following, action, reward, terminated = (
            torch.from_numpy(column.take(rows, 0)) for column in self.ring.values()
        )
        with torch.no_grad():
            best = self.network(following).argmax(-1, keepdim=True)
            after = self.target(following).gather(-1, best)[:, 0]
        goal = reward + GAMMA * (1 - terminated) * after
        loss = functional.huber_loss(self.network(obs).gather(-1, action[:, None])[:, 0], goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % TARGET == 0:
            self.target.load_state_dict(self.network.state_dict())
