"""The library in a training loop of your own: no runner, no Algorithm, one plain Gymnasium environment.

PPO solves CartPole with the three default pipelines:

    environment --> episode --[env-to-module]--> module --[module-to-env]--> environment
                       |
                       +--[learner: one bootstrap row per chunk, columns, tensors, advantages]--> loss

Run it from the repository root (about 15 seconds):

    python examples/own_loop.py
    python examples/own_loop.py --iterations 1
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from epibatch.connectors import env_to_module, learner, module_to_env
from epibatch.core.columns import Columns
from epibatch.core.rl_module import TorchRLModule, ValueFunctionAPI
from epibatch.episodes import SingleAgentEpisode
from epibatch.learner import Minibatches, PPOSettings
from epibatch.learner.ppo_loss import ppo_loss


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    iterations: int = 20
    steps_per_iteration: int = 2048
    minibatch_size: int = 256
    epochs: int = 10
    lr: float = 1e-3
    gamma: float = 0.99
    lambda_: float = 0.95
    seed: int = 0


class ActorCritic(TorchRLModule, ValueFunctionAPI):
    """Two small networks: one for the policy's logits, one for values."""

    def setup(self) -> None:
        size = self.observation_space.shape[0]
        self.policy = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, self.action_space.n))
        self.value = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1))

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self.value(batch[Columns.OBS]).squeeze(-1)


class Loop:
    """Environment, pipelines and network, and what is done with them in turn."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.env = gym.make("CartPole-v1")
        spaces = self.env.observation_space, self.env.action_space
        self.env_to_module = env_to_module.default_pipeline(*spaces)
        self.module = ActorCritic(observation_space=self.env_to_module.observation_space, action_space=spaces[1])
        self.module_to_env = module_to_env.default_pipeline(*spaces)
        self.learner_pipeline = learner.default_pipeline(*spaces, gamma=options.gamma, lambda_=options.lambda_)
        self.loss_settings = PPOSettings(clip_param=0.2, use_kl_loss=False)
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=options.lr)
        self.returns: deque[float] = deque(maxlen=50)
        self.running_return = 0.0
        self.start_episode(seed=options.seed)

    def start_episode(self, seed: int | None = None) -> None:
        """Reset the environment and begin an episode, which knows its spaces."""
        spaces = {"observation_space": self.env.observation_space, "action_space": self.env.action_space}
        self.episode = SingleAgentEpisode(**spaces)
        self.episode.add_env_reset(*self.env.reset(seed=seed))

    def act(self) -> dict[str, Any]:
        """The module's outputs for the newest observation: actions, `actions_for_env`, log-probabilities."""
        call: dict[str, Any] = {
            "rl_module": self.module,
            "episodes": [self.episode],
            "explore": True,
            "shared_data": {},  # one dict for the two calls of a step
        }
        outputs = self.module.forward_exploration(self.env_to_module(batch={}, **call))
        columns = self.module_to_env(batch=outputs, **call)
        return {name: column[0] for name, column in columns.items()}

    def step(self) -> None:
        """Take one step and write it into the episode."""
        extras = self.act()
        action, for_env = extras.pop(Columns.ACTIONS), extras.pop(Columns.ACTIONS_FOR_ENV)
        observation, reward, terminated, truncated, infos = self.env.step(for_env)
        self.episode.add_env_step(
            observation,
            action,
            reward,
            infos,
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs=extras,
        )
        self.running_return += float(reward)

    def collect(self) -> list[SingleAgentEpisode]:
        """Take `steps_per_iteration` steps: whole episodes, and the chunk of the one that goes on."""
        chunks = []
        for _ in range(self.options.steps_per_iteration):
            self.step()
            if self.episode.is_done:
                chunks.append(self.episode)
                self.returns.append(self.running_return)
                self.running_return = 0.0
                self.start_episode()
        if len(self.episode):
            chunks.append(self.episode)
            self.episode = self.episode.cut()
        return chunks

    def learn(self, episodes: list[SingleAgentEpisode]) -> float:
        """Turn episodes into one batch and take PPO's steps on it; returns the last loss."""
        batch = self.learner_pipeline(rl_module=self.module, batch={}, episodes=episodes)
        minibatches = Minibatches(batch, size=self.options.minibatch_size, epochs=self.options.epochs, shuffle="epoch")
        last = 0.0
        for minibatch in minibatches:
            outputs = self.module.forward_train(minibatch)
            outputs[Columns.VF_PREDS] = self.module.compute_values(minibatch)
            distribution = self.module.get_train_action_dist_cls()
            loss, _ = ppo_loss(minibatch, outputs, distribution, self.loss_settings, kl_coeff=0.0)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), 0.5)
            self.optimizer.step()
            last = loss.item()
        return last


def main(options: Options) -> float:
    """Train, print a line per iteration, and return the mean return of the newest episodes."""
    torch.manual_seed(options.seed)
    loop = Loop(options)
    mean = 0.0
    for iteration in range(1, options.iterations + 1):
        loss = loop.learn(loop.collect())
        mean = float(np.mean(loop.returns)) if loop.returns else 0.0
        steps = iteration * options.steps_per_iteration
        print(f"iteration {iteration:3d}  {steps:6d} steps  mean return {mean:6.1f}  loss {loss:8.3f}")
    loop.env.close()
    return mean


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(
            f"--{field.name.strip('_').replace('_', '-')}",
            dest=field.name,
            type=type(field.default),
            default=field.default,
        )
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
