"""Count-based intrinsic rewards: a learner piece that rewards seldom seen observations.

The piece adds `scale / N(observation)` to each reward. N counts how often the observation was seen. So the policy
gets rewards before it finds the goal, where the environment gives its only reward. The piece writes
into the episodes before the default pieces read them. Reported returns are the environment's.
The counts are the piece's state, which the pipeline saves and restores.

The environment is FrozenLake with a custom map: a path around a row of holes, 16 steps from start to goal.
The reward is 1 at the goal and 0 everywhere else. Random actions almost never reach the goal. The script trains
twice, without and with the piece, and prints both returns.

Run it from the repository root (about 20 seconds):

    python examples/count_based_rewards.py
    python examples/count_based_rewards.py --iterations 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from epibatch.algorithms.algorithm import Algorithm
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import ConnectorV2

LAKE = ["SFFFFFFF", "HHHHHHHF", "GFFFFFFF"]


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    iterations: int = 20
    scale: float = 1.0
    seed: int = 0


class CountBasedRewards(ConnectorV2):
    """Adds `scale / N(observation)` to every reward, N being the visits so far, this one included.

    Args:
        num_states: Number of observations; they are the ints below it.
        scale: The reward for an observation that was never seen before.
    """

    mutates_episodes: ClassVar[bool] = True

    def __init__(self, *spaces: Any, num_states: int, scale: float = 1.0) -> None:
        super().__init__(*spaces)
        self.scale = scale
        self.counts = np.zeros(num_states, np.int64)

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rewards = np.array(episode.get_rewards(), np.float64)
            # The observation that an action was taken in; the last one has no action yet.
            for t, state in enumerate(episode.get_observations(slice(0, len(episode)))):
                self.counts[state] += 1
                rewards[t] += self.scale / self.counts[state]
            episode.set_rewards(new_data=rewards)
        return batch

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {"counts": self.counts.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.counts = np.array(state["counts"])

    def reset_state(self) -> None:
        self.counts[:] = 0


def config_for(options: Options, *, shaped: bool) -> PPOConfig:
    """PPO on FrozenLake, with the piece at the start of the learner pipeline or without."""
    config = (
        PPOConfig()
        .environment("FrozenLake-v1", env_config={"desc": LAKE, "is_slippery": False})
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=1e-3, train_batch_size=2048, minibatch_size=256, num_epochs=8, lambda_=0.95, use_kl_loss=False)
        .rl_module(model_config={"fcnet_hiddens": [64]})
        .debugging(seed=options.seed)
    )
    if shaped:
        config.learners(
            learner_connector=lambda obs_space, act_space: CountBasedRewards(
                num_states=int(obs_space.n), scale=options.scale
            )
        )
    return config


def train(algorithm: Algorithm, iterations: int) -> float:
    """Train; returns the mean of the environment's own returns over the last 100 episodes."""
    mean = 0.0
    for _ in range(iterations):
        result = algorithm.train()
        mean = result["env_runners"]["episode_return_mean"]
        if result["training_iteration"] % 5 == 0 or result["training_iteration"] == iterations:
            print(f"  iteration {result['training_iteration']:3d}  mean return {mean:.2f}")
    return mean


def show_state(algorithm: Algorithm, config: PPOConfig) -> np.ndarray[Any, Any]:
    """Print the visits per square, and hand them to a second algorithm; returns what that one then has."""
    state = algorithm.learner.connector.get_state()
    print("visits of each square (start at the top left, goal at the bottom left):")
    for row in state["count_based_rewards"]["counts"].reshape(len(LAKE), -1):
        print("  " + " ".join(f"{count:6d}" for count in row))
    other = config.build_algo()
    other.learner.connector.set_state(state)
    restored = other.learner.connector["count_based_rewards"].counts
    print(f"restored in a new pipeline: {restored.sum()} visits of {np.count_nonzero(restored)} squares")
    other.stop()
    return restored


def main(options: Options) -> dict[str, float]:
    """Train without and with intrinsic rewards; returns both means."""
    means = {}
    for name, shaped in (("environment's rewards only", False), ("with count-based rewards", True)):
        print(name)
        config = config_for(options, shaped=shaped)
        algorithm = config.build_algo()
        means[name] = train(algorithm, options.iterations)
        if shaped:
            show_state(algorithm, config)
        algorithm.stop()
    for name, mean in means.items():
        print(f"{name}: mean return {mean:.2f}")
    return means


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
