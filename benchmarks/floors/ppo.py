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
from torch import nn
from torch.nn import functional

GAMMA, LAMBDA = 0.99, 1.0
CLIP, VALUE_CLIP = 0.3, 10.0
KL_TARGET = 0.01

Batch = dict[str, torch.Tensor]


def mlp(inputs: int, outputs: int, hidden: int = 256) -> nn.Sequential:
    """Two hidden layers with tanh."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


class BareLoop:
    """Acts in N environments with a policy network, and keeps everything.

    Args:
        env: A Gymnasium vector environment with four observations and two actions.
        seed: Of the environments.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], seed: int = 0) -> None:
        self.env = env
        self.policy = mlp(4, 2)
        self.observation, _ = env.reset(seed=seed)
        self.ended = np.zeros(env.num_envs, np.bool_)

    @torch.no_grad()
    def collect(self, vector_steps: int) -> list[tuple[Any, ...]]:
        """Take so many vector steps.

        In the step after an end Gymnasium ignores the action and gives the reset observation with reward 0. Such steps
        are in the result too.

        Returns:
            The columns `NAMES` for each vector step.
        """
        env, policy, observation, only_reset = self.env, self.policy, self.observation, self.ended
        kept = []
        for _ in range(vector_steps):
            logits = policy(torch.from_numpy(observation))
            log_probabilities = torch.log_softmax(logits, -1)
            action = torch.multinomial(log_probabilities.exp(), 1)
            logp = log_probabilities.gather(1, action)
            following, reward, terminated, truncated, _ = env.step(action[:, 0].numpy())
            kept.append((observation, following, action, logp, logits, reward, terminated, truncated, only_reset))
            observation, only_reset = following, terminated | truncated
        self.observation, self.ended = observation, only_reset
        return kept


NAMES = ("obs", "next_obs", "actions", "logp", "logits", "rewards", "terminated", "truncated")


def transitions(kept: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the steps of a rollout in flat rows, without those that only reset.

    Returns:
        The columns `NAMES`, and `resets`: the share of the rollout's steps that is left out.
    """
    *columns, only_reset = map(np.stack, zip(*kept))
    rows = {name: column[~only_reset] for name, column in zip(NAMES, columns)}
    rows.update(actions=rows["actions"][:, 0], logp=rows["logp"][:, 0], resets=only_reset.mean())
    return rows


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
        self.loop = BareLoop(gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync"), seed)
        self.policy, self.value = self.loop.policy, mlp(4, 1)
        self.optimizer = torch.optim.Adam([*self.policy.parameters(), *self.value.parameters()], lr=5e-5)
        self.kl_coeff = 0.2
        self.episode_return = 0.0
        self.returns: deque[float] = deque(maxlen=100)

    def iteration(self) -> float:
        """Collect and learn; returns the mean return of the last hundred episodes."""
        rollout = self.collect()
        self.learn(self.batch(rollout))
        return float(np.mean(self.returns)) if self.returns else float("nan")

    def collect(self) -> dict[str, Any]:
        """Act until there are enough steps.

        Returns:
            A row per step: `NAMES`, and `cut`: True where the next row is of another episode, or there is none.
        """
        kept = self.loop.collect(self.steps)
        while missing := self.steps - sum(not only_reset[0] for *_, only_reset in kept):
            kept += self.loop.collect(missing)
        rollout = transitions(kept)
        rollout["rewards"] = rollout["rewards"].astype(np.float32)
        ended = rollout["terminated"] | rollout["truncated"]
        for reward, end in zip(rollout["rewards"].tolist(), ended.tolist()):
            self.episode_return += reward
            if end:
                self.returns.append(self.episode_return)
                self.episode_return = 0.0
        return {**rollout, "cut": ended | (np.arange(self.steps) == self.steps - 1)}

    @torch.no_grad()
    def batch(self, rollout: dict[str, Any]) -> Batch:
        """What is learned from: the rollout with advantages and value targets."""
        kept = {name: torch.from_numpy(rollout[name]) for name in NAMES}
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
