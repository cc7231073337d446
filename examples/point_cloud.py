"""Observations with any number of rows: a robot that collects the points it sees, and a policy for sets of points.

The robot stands in the middle of its view. The observation is where the points that are left lie, as seen from there:
from one to eight rows of two numbers, in no order, fewer after each one that is collected. Its space is
`Sequence(Box(..., (2,)))`. Each step moves the robot a little to one of four sides. A point within reach is collected,
for a reward of 1; each step costs 0.05. An episode ends when no point is left, or after 50 steps.

Episodes keep the rows as they came. `PadRaggedRows` stands in both pipelines: a batch is as long as its longest
observation, with a mask. The policy is a set function in the way of DeepSets: one network for every point, the maximum
over the real points, and a network on top. The mask keeps padding out of the maximum, so the outputs are the same
whatever the length of the batch: acting and learning agree.

Target: a mean return above 3 on 3 seeds; moving at random gets -0.84. Measured: 3.44 to 3.73 after 41,000 steps in 3 of
3 seeds.

Run it from the repository root (about a minute):

    python examples/point_cloud.py
    python examples/point_cloud.py --steps 4000
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.observations import PadRaggedRows
from epibatch.core.columns import Columns
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI

MOST = 8
MOVES = 0.2 * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
REACH = 0.25


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    steps: int = 40_000
    seed: int = 0


class Collect(gym.Env[Any, Any]):
    """Moves to points until none is left."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Sequence(gym.spaces.Box(-10.0, 10.0, (2,), np.float32), stack=True)
        self.action_space = gym.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.points = self.np_random.uniform(-1.0, 1.0, (self.np_random.integers(1, MOST + 1), 2))
        self.time = 0
        return self.points.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        points = self.points - MOVES[action]
        self.points = points[np.linalg.norm(points, axis=-1) > REACH]
        reward = float(len(points) - len(self.points)) - 0.05
        return self.points.astype(np.float32), reward, not len(self.points), self.time == 50, {}


class SetPolicy(TorchRLModule, ValueFunctionAPI):
    """One network for every point, the maximum over the points, and a head for actions and one for values."""

    def setup(self) -> None:
        size = self.observation_space["value"].feature_space.shape[0]
        self.each = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.actions = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, len(MOVES)))
        self.value = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def encode(self, batch: dict[str, Any]) -> torch.Tensor:
        """The features of each set: [B, 64]. That of a set without points is 0."""
        value, mask = batch[Columns.OBS]["value"], batch[Columns.OBS]["mask"]
        return (self.each(value) * mask.unsqueeze(-1)).amax(1)  # features are not negative

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.actions(self.encode(batch))}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self.value(self.encode(batch)).squeeze(-1)


def config_for(options: Options) -> PPOConfig:
    """PPO with the policy for sets, and the piece in both pipelines."""
    return (
        PPOConfig()
        .environment(Collect)
        .env_runners(num_envs_per_env_runner=16, env_to_module_connector=lambda env, spaces, device: PadRaggedRows())
        .training(
            lr=1e-3,
            gamma=0.97,
            lambda_=0.95,
            train_batch_size=2048,
            minibatch_size=256,
            num_epochs=6,
            grad_clip=0.5,
            clip_param=0.2,
            learner_connector=lambda observation_space, action_space: PadRaggedRows(),
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=SetPolicy))
        .debugging(seed=options.seed)
        .stopping(num_env_steps_sampled_lifetime=options.steps)
    )


def main(options: Options) -> float:
    """Train; returns the last mean return of an episode."""
    algorithm = config_for(options).build_algo()
    mean = 0.0
    for results in algorithm.iterations():
        mean = results["env_runners"]["episode_return_mean"]
        if results["training_iteration"] % 10 == 0:
            print(f"{results['num_env_steps_sampled_lifetime']:7d} steps  mean return {mean:.3f}")
    algorithm.stop()
    print(f"mean return {mean:.3f}")
    return mean


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
