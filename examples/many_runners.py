"""Runners and learners in processes of their own: CartPole with PPO, on one machine or on a Ray cluster.

Two lines of the config make the difference: `num_env_runners` processes sample, `num_learners` processes learn. Ray
starts them. Everything else is as in one process: the same pieces, results, checkpoints and callbacks.

`MeanStdFilter` is there to show what usually goes wrong with several runners. Each runner counts the observations that
it has seen itself. After every iteration their statistics are merged exactly and sent back, so all runners and the
main process know the mean and deviation of all observations.

Run it from the repository root, with the extra `ray`:

    python examples/many_runners.py
    python examples/many_runners.py --runners 1 --learners 2
    python examples/many_runners.py --runners 0              # without Ray: the same in one process
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import MeanStdFilter


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    runners: int = 2
    learners: int = 0
    steps: int = 300_000
    goal: float = 400.0
    seed: int = 0


def config_for(options: Options) -> PPOConfig:
    """PPO whose batches are sampled by some processes, and learned from by some."""
    learners = max(1, options.learners)
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=options.runners,
            num_envs_per_env_runner=8 if options.runners < 2 else 4,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .learners(num_learners=options.learners)
        .training(
            lr=1e-3,
            lambda_=0.95,
            train_batch_size_per_learner=2048 // learners,
            minibatch_size=256 // learners,
            num_epochs=10,
            entropy_coeff=0.005,
            use_kl_loss=False,
        )
        .debugging(seed=options.seed)
        .stopping(episode_return_mean=options.goal, num_env_steps_sampled_lifetime=options.steps)
    )


def main(options: Options) -> tuple[float, int]:
    """Train until the goal or the limit; returns the mean return of the last 100 episodes and the steps taken."""
    algorithm = config_for(options).build_algo()
    mean, steps = float("nan"), 0
    try:
        for results in algorithm.iterations():
            steps = results["num_env_steps_sampled_lifetime"]
            mean = results["env_runners"]["episode_return_mean"]
            print(f"{steps:7d} steps  mean return {mean:6.1f}  {results['time_this_iter_s']:5.2f} s")
        (moments,) = algorithm.pipelines["env_to_module"].get_state().values()
        count = sum(moments[part]["count"] for part in ("synchronised", "since"))
        print(f"observations in the statistics of all runners: {count:,}")
    finally:
        algorithm.stop()
    return mean, steps


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(parse())
