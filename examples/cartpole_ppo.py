"""PPO on CartPole from a YAML file, in a loop that you can read and change.

`epibatch train examples/cartpole_ppo.yaml` does the same with a progress bar, a learning curve and a
checkpoint. This script reads the config, builds the algorithm, and trains in a loop until it reaches the file's goal.

Run it from the repository root (about half a minute):

    python examples/cartpole_ppo.py
    python examples/cartpole_ppo.py --iterations 1
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

from epibatch.algorithms.ppo import PPOConfig


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    config: str = str(Path(__file__).with_name("cartpole_ppo.yaml"))
    iterations: int = 75
    goal: float = 475.0


def main(options: Options) -> float:
    """Train, print a line per iteration, and return the mean return of the last 100 episodes."""
    algorithm = PPOConfig.from_yaml(Path(options.config)).build_algo()
    mean = 0.0
    for _ in range(options.iterations):
        result = algorithm.train()
        mean = result["env_runners"]["episode_return_mean"]
        losses = result["learners"]["default_policy"]
        print(
            f"iteration {result['training_iteration']:3d}  {result['num_env_steps_sampled_lifetime']:6d} steps  "
            f"mean return {mean:6.1f}  entropy {losses['entropy']:.3f}  "
            f"sample {result['timers']['sample']:.2f} s  learn {result['timers']['learn']:.2f} s"
        )
        if mean >= options.goal:
            print(f"solved: mean return {mean:.1f} over the last 100 episodes")
            break
    algorithm.stop()
    return mean


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(
            f"--{field.name}",
            type=type(field.default),
            default=field.default,
        )
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
