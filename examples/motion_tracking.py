"""Hundreds of environments in tensors: point masses follow a reference motion, learned from a `RolloutStorage`.

Environment, network and rollout live on one device; no step is copied to the host. Write `--device cuda` for a GPU.

The observation has groups, which `obs_groups` maps to the two networks:

- `policy`: position and velocity, with noise.
- `ref`: the way to the reference now and soon. One in ten times it is missing; `mask` says so.
- `critic`: what only the simulator knows: exact velocity, wind and drag. Only the value function sees it.

Time-outs are bootstrapped from the values of their terminal observations. The learning rate follows the KL divergence.

Target: a mean distance of 0.2 from the reference; at random it is 0.5. Run it from the repository root:

    python examples/motion_tracking.py
    python examples/motion_tracking.py --device cuda --envs 4096
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core import DEFAULT_MODULE_ID, MaskedColumn
from epibatch.env_runner import TensorEnvRunner
from epibatch.learner import Learner, LearnerSettings, PPOLoss, PPOSettings, RolloutStorage


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    envs: int = 256
    rollout: int = 24
    iterations: int = 150
    device: str = "cpu"
    seed: int = 0


class PointMasses(gym.vector.VectorEnv[Any, torch.Tensor, torch.Tensor]):
    """Point masses in the plane, each with a reference that moves along a figure of eight at a speed of its own.

    Actions are forces in [-1, 1]. An episode is terminated far from the reference, truncated after 100 steps, and the
    next one begins in the same step.

    Args:
        num_envs: how many.
        device: where their tensors are.
        spread: distance from the reference at which episodes begin, at most, along each axis.
        farthest: distance at which they are terminated.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, num_envs: int, device: str = "cpu", spread: float = 0.3, farthest: float = 1.0) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.spread, self.farthest = spread, farthest
        sizes = {"policy": 4, "critic": 7}
        boxes = {name: gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()}
        reference = {"value": gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), "mask": gym.spaces.Discrete(2)}
        self.single_observation_space = gym.spaces.Dict(**boxes, ref=gym.spaces.Dict(reference))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.generator = torch.Generator(self.device)
        self.state = {name: torch.zeros(num_envs, size, device=self.device) for name, size in STATE.items()}

    def random(self, size: int, low: float, high: float) -> torch.Tensor:
        """Draw numbers [num_envs, size]."""
        return low + (high - low) * torch.rand(self.num_envs, size, generator=self.generator, device=self.device)

    def distance(self) -> torch.Tensor:
        """Return the distance from the reference, [num_envs]."""
        return (reference(self.state["phase"]) - self.state["position"]).norm(dim=1)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin all episodes."""
        if seed is not None:
            self.generator.manual_seed(seed if isinstance(seed, int) else seed[0])
        self.begin(torch.ones(self.num_envs, 1, dtype=torch.bool, device=self.device))
        return self.observe(), {}

    def begin(self, where: torch.Tensor) -> None:
        """Begin the next episodes of some environments; where: bool [num_envs, 1]."""
        phase = self.random(1, 0.0, 2 * math.pi)
        new = {
            "position": reference(phase) + self.random(2, -self.spread, self.spread),
            "velocity": torch.zeros_like(self.state["velocity"]),
            "phase": phase,
            "speed": self.random(1, 0.5, 1.5),
            "drag": self.random(1, 0.0, 2.0),
            "wind": self.random(2, -1.0, 1.0),
            "t": torch.zeros_like(phase),
        }
        self.state = {name: torch.where(where, new[name], value) for name, value in self.state.items()}

    def observe(self) -> dict[str, Any]:
        """Return the groups."""
        s = self.state
        now, soon = (reference(s["phase"] + ahead * s["speed"]) - s["position"] for ahead in (0.0, 0.2))
        return {
            "policy": torch.cat([s["position"], s["velocity"] + self.random(2, -0.2, 0.2)], 1),
            "ref": MaskedColumn(torch.cat([now, soon], 1), self.random(1, 0.0, 1.0)[:, 0] < 0.9),
            "critic": torch.cat([now, s["velocity"], s["wind"], s["drag"]], 1),
        }

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Push, and begin the next episodes where one ends."""
        s, dt = self.state, 0.05
        s["velocity"] = s["velocity"] + dt * (6.0 * actions - s["drag"] * s["velocity"] + s["wind"])
        s["position"] = s["position"] + dt * s["velocity"]
        s["phase"], s["t"] = s["phase"] + dt * s["speed"], s["t"] + 1
        distance = self.distance()
        terminated = distance > self.farthest
        truncated = (s["t"][:, 0] >= 100) & ~terminated
        final = self.observe()
        self.begin((terminated | truncated)[:, None])
        return self.observe(), torch.exp(-4.0 * distance.square()), terminated, truncated, {"final_obs": final}


STATE = {"position": 2, "velocity": 2, "phase": 1, "speed": 1, "drag": 1, "wind": 2, "t": 1}


def reference(phase: torch.Tensor) -> torch.Tensor:
    """Return the points [n, 2] of the figure of eight at phases [n, 1]."""
    return torch.cat([torch.cos(phase), torch.sin(2 * phase)], 1)


def config_for(options: Options, actor: Sequence[str] = ("policy", "ref"), **environment: float) -> PPOConfig:
    """Return a config of the environments, and of networks that see groups of the observation."""
    groups = {"actor": list(actor), "critic": ["policy", "ref", "critic"]}
    return (
        PPOConfig()
        .environment(PointMasses, env_config={"device": options.device, **environment})
        .env_runners(num_envs_per_env_runner=options.envs, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(model_config={"obs_groups": groups, "fcnet_hiddens": [64, 64], "free_log_std": True})
        .debugging(seed=options.seed)
    )


class Training:
    """PPO: a runner that fills a storage, and a learner that empties it.

    Args:
        options: of the command line.
        config: as `config_for` returns it.
    """

    def __init__(self, options: Options, config: PPOConfig) -> None:
        self.runner = TensorEnvRunner(config=config)
        self.storage = RolloutStorage(options.rollout, options.envs, device=options.device)
        self.learner = Learner(
            module=self.runner.module,
            connector=None,
            settings=LearnerSettings(
                lr=1e-3, minibatch_size=options.rollout * options.envs // 4, num_epochs=5, grad_clip=1.0
            ),
            loss=PPOLoss(PPOSettings(clip_param=0.2, desired_kl=0.01, use_kl_loss=False, vf_clip_param=math.inf)),
        )

    def sample(self) -> float:
        """Fill the storage; returns the mean distance from the reference at the end."""
        self.storage.clear()
        self.runner.sample(self.storage)
        return float(self.runner.env.unwrapped.distance().mean())

    def learn(self) -> dict[str, float]:
        """Learn from the storage; returns the metrics."""
        self.storage.compute_returns(self.runner.last_values(), gamma=0.99, lambda_=0.95)
        return self.learner.update(batch={DEFAULT_MODULE_ID: self.storage.batch()})[DEFAULT_MODULE_ID]


def main(options: Options) -> float:
    """Train, and return the mean distance over the last ten iterations."""
    torch.manual_seed(options.seed)
    training, start, distances = Training(options, config_for(options)), time.perf_counter(), []
    for iteration in range(options.iterations):
        distances.append(training.sample())
        metrics = training.learn()
        if iteration % 10 == 0 or iteration == options.iterations - 1:
            steps = (iteration + 1) * options.rollout * options.envs
            seconds = time.perf_counter() - start
            print(f"{steps:8,} steps  distance {distances[-1]:.3f}  lr {metrics['lr']:.1e}  {seconds:5.1f} s")
    return sum(distances[-10:]) / len(distances[-10:])


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
