"""Frame stacking in both pipelines: CartPole without velocities, solved with four frames.

The environment returns positions and angles only, as a column of shape (2, 1). One frame does not show in which
direction the pole falls. `FrameStacking(num_frames=4)` concatenates the last four frames, shape (2, 4). It is in
the env-to-module pipeline for acting, and in the learner pipeline for the loss. Episodes store single
frames. Chunks keep the three frames before their start, because the piece declares this lookback.
The default network flattens the stacks.

The script trains twice, on single frames and on stacks, and prints both returns.

Run it from the repository root (under a minute):

    python examples/frame_stacking.py
    python examples/frame_stacking.py --iterations 1
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.common.frame_stacking import FrameStacking


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    iterations: int = 25
    num_frames: int = 4
    seed: int = 0


class PositionsOnly(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole's position and angle, relative to where an episode ends, as a frame of shape (2, 1)."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.limits = np.array([[2.4], [0.2095]], np.float32)
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2, 1), np.float32)

    def observation(self, observation: Any) -> Any:
        """Leave the velocities out."""
        return observation[[0, 2], None] / self.limits


def config_for(options: Options, num_frames: int) -> PPOConfig:
    """PPO on stacks of `num_frames` frames; the two pieces are all that stacking takes."""
    return (
        PPOConfig()
        .environment(PositionsOnly)
        .env_runners(
            num_envs_per_env_runner=8,
            env_to_module_connector=lambda env, spaces, device: FrameStacking(num_frames=num_frames),
        )
        .learners(
            learner_connector=lambda obs_space, act_space: FrameStacking(num_frames=num_frames),
        )
        .training(
            lr=1e-3,
            lambda_=0.95,
            train_batch_size=2048,
            minibatch_size=256,
            num_epochs=10,
            clip_param=0.2,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .debugging(seed=options.seed)
    )


def train(options: Options, num_frames: int) -> float:
    """Train; returns the mean return over the last 100 episodes."""
    algorithm = config_for(options, num_frames).build_algo()
    print(f"{num_frames} frame(s): the module sees {algorithm.get_module().observation_space.shape}")
    mean = 0.0
    for _ in range(options.iterations):
        result = algorithm.train()
        mean = result["env_runners"]["episode_return_mean"]
        if result["training_iteration"] % 5 == 0 or result["training_iteration"] == options.iterations:
            print(f"  iteration {result['training_iteration']:3d}  mean return {mean:6.1f}")
    algorithm.stop()
    return mean


def main(options: Options) -> dict[int, float]:
    """Train on single frames and on stacks; returns the mean return for each number of frames."""
    means = {num_frames: train(options, num_frames) for num_frames in (1, options.num_frames)}
    for num_frames, mean in means.items():
        print(f"{num_frames} frame(s): mean return {mean:.1f}")
    return means


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", dest=field.name, type=type(field.default), default=field.default
        )
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
