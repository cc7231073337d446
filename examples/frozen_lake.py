"""FrozenLake without slipping: integer observations, and a single reward at the goal.

The observation is the number of a square, `Discrete(16)`. The default network encodes it as a one-hot vector, without
a setting in the config. The task is hard because the only reward is at the goal. Random actions reach
the goal in one of about 70 episodes, and a policy that becomes deterministic before that never reaches it.
`entropy_coeff` keeps it exploring.

Target: 95 of the last 100 episodes reach the goal within 100,000 steps. Measured in 5 of 5 seeds: after 8,200 to
10,300 steps, 2 s; every greedy episode arrives.

`epibatch train examples/frozen_lake.yaml` trains the same and keeps a run folder. Run it from the repository root
(some seconds); afterwards the squares are shown with the action that the policy takes on each:

    python examples/frozen_lake.py
    python examples/frozen_lake.py --steps 2000
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import MAPS

from epibatch.algorithms.algorithm import Algorithm
from epibatch.algorithms.ppo import PPOConfig

ARROWS = "<v>^"


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    config: str = str(Path(__file__).with_suffix(".yaml"))
    steps: int = 100_000
    seed: int = 0


def config_for(options: Options) -> PPOConfig:
    """The config of the file, with the seed and the limit of the options."""
    config = PPOConfig.from_yaml(Path(options.config)).debugging(seed=options.seed)
    return config.stopping(num_env_steps_sampled_lifetime=options.steps)


def show_policy(algorithm: Algorithm) -> list[str]:
    """The map, with the greedy action in place of every square that can be walked on."""
    arrows = [ARROWS[action] for action in algorithm.act(np.arange(16))[0]]
    squares = "".join(MAPS["4x4"])
    shown = [square if square in "HG" else arrow for square, arrow in zip(squares, arrows)]
    return [" ".join(shown[start : start + 4]) for start in range(0, 16, 4)]


def main(options: Options) -> tuple[float, int]:
    """Train until the goal or the limit; returns the share of greedy episodes that arrive, and the steps taken."""
    algorithm = config_for(options).build_algo()
    steps = 0
    for results in algorithm.iterations():
        steps = results["num_env_steps_sampled_lifetime"]
        print(f"{steps:6d} steps  {results['env_runners']['episode_return_mean']:4.2f} of the last 100 arrive")
    share = algorithm.evaluate()["env_runners"]["episode_return_mean"]
    print(f"acting greedily, {share:4.2f} arrive:")
    print("\n".join(show_policy(algorithm)))
    algorithm.stop()
    return share, steps


def parse(arguments: list[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
