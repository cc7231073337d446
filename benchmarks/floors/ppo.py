"""PPO as one writes it by hand: one loop, a Gymnasium vector environment, two torch networks, nothing else.

The algorithm, its network and its numbers are RLlib's defaults: a clipped surrogate, a clipped value error, a penalty
on the divergence from the acting policy, advantages by GAE with values predicted in one pass over the batch.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional

from benchmarks.floors.acting import mlp

GAMMA, LAMBDA = 0.99, 1.0
CLIP, VALUE_CLIP = 0.3, 10.0
KL_TARGET = 0.01

Batch = dict[str, torch.Tensor]


class BarePPO:
    """Trains on CartPole, in one environment.

    Args:
        seed: Of everything.
        steps: Of an iteration, those that only reset not counted.
        minibatch_size: Steps of a minibatch.
        epochs: Passes through the steps of an iteration.
    """

    def __init__(self, seed: int, steps: int = 4000, minibatch_size: int = 128, epochs: int = 10) -> None:
        torch.manual_seed(seed)
        self.steps, self.minibatch_size, self.epochs = steps, minibatch_size, epochs
        self.env = gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
        self.policy, self.value = mlp(4, 2), mlp(4, 1)
        self.optimizer = torch.optim.Adam([*self.policy.parameters(), *self.value.parameters()], lr=5e-5)
        self.kl_coeff = 0.2
        self.observation = self.env.reset(seed=seed)[0]
        self.ended = False
        self.episode_return = 0.0
        self.returns: deque[float] = deque(maxlen=100)

    def iteration(self) -> float:
        """Collect and learn; returns the mean return of the last hundred episodes."""
        rollout = self.collect()
        self.learn(self.batch(rollout))
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @torch.no_grad()
    def collect(self) -> dict[str, Any]:
        """Act until there are enough steps.

        Returns:
            A row per step: `obs`, `next_obs`, `actions`, `logp`, `logits`, `rewards`, `terminated`, and `cut`, which is
            True where the next row is of another episode, or there is none.
        """
        steps = self.steps
        kept: dict[str, Any] = {
            "obs": np.empty((steps, 4), np.float32),
            "next_obs": np.empty((steps, 4), np.float32),
            "actions": np.empty(steps, np.int64),
            "logp": np.empty(steps, np.float32),
            "logits": np.empty((steps, 2), np.float32),
            "rewards": np.empty(steps, np.float32),
            "terminated": np.empty(steps, bool),
            "cut": np.empty(steps, bool),
        }
        step = 0
        while step < steps:
            logits = self.policy(torch.from_numpy(self.observation))
            log_probabilities = torch.log_softmax(logits, -1)
            action = torch.multinomial(log_probabilities.exp(), 1)
            observation, reward, terminated, truncated, _ = self.env.step(action[:, 0].numpy())
            if self.ended:  # Gymnasium has only reset the environment
                self.ended, self.episode_return = False, 0.0
            else:
                kept["obs"][step] = self.observation[0]
                kept["next_obs"][step] = observation[0]
                kept["actions"][step] = action[0, 0]
                kept["logp"][step] = log_probabilities[0, action[0, 0]]
                kept["logits"][step] = logits[0]
                kept["rewards"][step] = reward[0]
                kept["terminated"][step] = terminated[0]
                self.ended = kept["cut"][step] = bool(terminated[0] or truncated[0])
                self.episode_return += float(reward[0])
                if self.ended:
                    self.returns.append(self.episode_return)
                step += 1
            self.observation = observation
        kept["cut"][-1] = True
        return kept

    @torch.no_grad()
    def batch(self, rollout: dict[str, Any]) -> Batch:
        """What is learned from: the rollout with advantages and value targets."""
        kept = {name: torch.from_numpy(column) for name, column in rollout.items()}
        cuts = np.flatnonzero(rollout["cut"])
        values = self.value(torch.cat([kept["obs"], kept["next_obs"][cuts]]))[:, 0].numpy()
        after = np.append(values[1 : self.steps], 0.0)
        after[cuts] = values[self.steps :]  # a cut episode goes on
        after[rollout["terminated"]] = 0.0
        errors = rollout["rewards"] + GAMMA * after - values[: self.steps]
        decay = np.where(rollout["cut"], 0.0, GAMMA * LAMBDA).tolist()
        advantages, advantage = [0.0] * self.steps, 0.0
        for step, error in zip(range(self.steps - 1, -1, -1), errors[::-1].tolist()):
            advantage = advantages[step] = error + decay[step] * advantage
        estimated = torch.tensor(advantages)
        return {
            **{name: kept[name] for name in ("obs", "actions", "logp", "logits")},
            "advantages": (estimated - estimated.mean()) / estimated.std(unbiased=False).clamp(min=1e-4),
            "targets": estimated + torch.from_numpy(values[: self.steps]),
        }

    def learn(self, batch: Batch) -> None:
        """All epochs of minibatches, then the weight of the penalty for the next iteration."""
        divergence = 0.0
        for _ in range(self.epochs):
            order, total = torch.randperm(self.steps), 0.0
            shuffled = {name: column[order] for name, column in batch.items()}
            for start in range(0, self.steps, self.minibatch_size):
                rows = {name: column[start : start + self.minibatch_size] for name, column in shuffled.items()}
                loss, kl = self.loss(rows)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += kl.item() * len(rows["actions"])
            divergence = total / self.steps
        if divergence > 2.0 * KL_TARGET:
            self.kl_coeff *= 1.5
        elif divergence < 0.5 * KL_TARGET:
            self.kl_coeff *= 0.5

    def loss(self, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """PPO's loss of a minibatch, and the divergence from the acting policy."""
        new, old = torch.log_softmax(self.policy(rows["obs"]), -1), torch.log_softmax(rows["logits"], -1)
        ratio = torch.exp(new.gather(1, rows["actions"][:, None])[:, 0] - rows["logp"])
        advantages = rows["advantages"]
        surrogate = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
        error = functional.mse_loss(self.value(rows["obs"])[:, 0], rows["targets"], reduction="none")
        kl = (old.exp() * (old - new)).sum(-1).mean()
        return -surrogate.mean() + error.clamp(max=VALUE_CLIP).mean() + self.kl_coeff * kl, kl.detach()
