"""Training rows: PPO on CartPole with RLlib's network and numbers, everything included."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.libraries import library, library_names
from benchmarks.ppo_seeds import RECORD, read_record
from benchmarks.row import FLOOR, OURS, RLLIB, Measured, Options, Row, Target, at_most
from benchmarks.timing import Side, Spread, measure, spread
from benchmarks.workers import team

STEPS, MINIBATCH, EPOCHS = 4000, 128, 10
ITERATIONS = 20

Train = Callable[[], float]


def bare(seed: int) -> Train:
    """What does an iteration of the loop written by hand; it returns the mean return."""
    from benchmarks.floors.ppo import BarePPO

    return BarePPO(seed, STEPS, MINIBATCH, EPOCHS).iteration


def of_library(name: str, seed: int) -> Train:
    """What does an iteration of a library's PPO."""
    if name == RLLIB:
        import ray

        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=1, object_store_memory=200 << 20, **quiet)
    config = library(name).PPOConfig().environment("CartPole-v1")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=1).learners(num_learners=0)
    config.training(train_batch_size=STEPS, minibatch_size=MINIBATCH, num_epochs=EPOCHS)
    algorithm = config.debugging(seed=seed).build_algo()

    def train() -> float:
        return float(algorithm.train()["env_runners"]["episode_return_mean"])

    return train


def trainers(options: Options) -> dict[str, Callable[[int], Train]]:
    """Side to what begins a training with a seed."""
    libraries = {name: partial(of_library, name) for name in library_names(options)}
    return {**libraries, FLOOR: bare}


@dataclass(frozen=True)
class Iterations:
    """A workload of single iterations."""

    sides: Mapping[str, Callable[[], Side]]


def iterations(options: Options) -> Iterations:
    """Each side's next iteration."""

    def begun(begin: Callable[[int], Train]) -> Side:
        train = begin(0)
        return Side(lambda _: train(), single=True)

    return Iterations({name: partial(begun, begin) for name, begin in trainers(options).items()})


def measure_iterations(options: Options) -> Measured:
    """Seconds of an iteration; RLlib goes last and alone, as the processes that it starts take time from the others."""
    rounds = options.rounds or (2 if options.quick else ITERATIONS)
    names = list(iterations(options).sides)
    values: dict[str, list[float]] = {}
    for group in ([OURS, FLOOR], [RLLIB] if RLLIB in names else []):
        with team(iterations, options, group) as sides:
            values.update(measure(sides, rounds=rounds, seconds=options.seconds))
    totals = ", ".join(f"{name} {sum(own):.1f} s" for name, own in values.items())
    return Measured(values, steps=STEPS, note=f"{rounds} iterations: {totals}")


@dataclass(frozen=True)
class LearnsAsWell(Target):
    """The mean return is not below another side's by more than that one's own spread."""

    def compared(self, measured: Measured) -> Spread | None:
        """How far it is above that."""
        own, other = measured.side(OURS), measured.side(RLLIB)
        if own is None or other is None:
            return None
        return spread([statistics.mean(own) - (statistics.mean(other) - statistics.stdev(other))])

    @property
    def unit(self) -> str:
        """That of the row: it is a difference."""
        return ""


def recorded_returns(options: Options) -> Measured:
    """What `python -m benchmarks.ppo_seeds` found; that takes minutes per seed, so it is kept."""
    record = {name: side["returns"] for name, side in read_record().items()}
    seeds = [seed for seed in record.get(OURS, ()) if all(seed in returns for returns in record.values())]
    if len(seeds) < 2:  # no spread
        return Measured({}, unit="return", note=f"{RECORD.name} has no two seeds of all sides")
    values = {name: [returns[seed] for seed in seeds] for name, returns in record.items()}
    means = [
        f"{name} {statistics.mean(own):.0f} +- {statistics.stdev(own):.0f} over {len(own)} seeds"
        for name, own in values.items()
    ]
    return Measured(values, unit="return", note=f"{', '.join(means)}; recorded in {RECORD.name}")


ROW_MAP = [
    Row(
        "R2",
        "PPO on CartPole, N = 1, 4,000 steps, minibatches of 128, 10 epochs; per iteration",
        measure_iterations,
        (at_most(1.05),),
    ),
    Row(
        "R2/return",
        "the mean return that it reports after 20 iterations, per seed; more is better",
        recorded_returns,
        (LearnsAsWell("mean above RLlib's less its standard deviation", 0.0, RLLIB, times_faster=True),),
    ),
]
