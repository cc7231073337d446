"""Training rows: PPO on CartPole with RLlib's network and numbers, and DQN with its own, everything included."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.libraries import library, library_names
from benchmarks.row import FLOOR, OURS, RLLIB, Measured, Options, Row, Target, Workload, at_most
from benchmarks.timing import Side, Spread, in_a_process, measure, remote_sides, spread

STEPS, MINIBATCH, EPOCHS = 4000, 128, 10
DQN_STEPS, DQN_BATCH = 1000, 32
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"train_batch_size": STEPS, "minibatch_size": MINIBATCH, "num_epochs": EPOCHS},
    "DQN": {
        "train_batch_size": DQN_BATCH,
        "num_steps_sampled_before_learning_starts": DQN_STEPS,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 100_000},
    },
}
ITERATIONS, DQN_ITERATIONS = 20, 8
RECORD = Path(__file__).parents[1] / "ppo_seeds.json"

Train = Callable[[], float]


def bare(algorithm: str, seed: int) -> Train:
    """Return what does an iteration of the loop written by hand; it returns the mean return."""
    from benchmarks.floors.dqn import BareDQN
    from benchmarks.floors.ppo import BarePPO

    if algorithm == "DQN":
        return BareDQN(seed, DQN_STEPS, DQN_BATCH).iteration
    return BarePPO(seed, STEPS, MINIBATCH, EPOCHS).iteration


def of_library(name: str, algorithm: str, seed: int) -> Train:
    """Return what does an iteration of a library's algorithm."""
    if name == RLLIB:
        import ray

        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=1, object_store_memory=200 << 20, **quiet)
    config = getattr(library(name), f"{algorithm}Config")().environment("CartPole-v1")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=1).learners(num_learners=0)
    config.training(**SETTINGS[algorithm])
    trained = config.debugging(seed=seed).build_algo()
    return lambda: float(trained.train()["env_runners"]["episode_return_mean"])


def trainers(options: Options, algorithm: str = "PPO") -> dict[str, Callable[[int], Train]]:
    """Return side to what begins a training with a seed."""
    sides = {name: partial(of_library, name, algorithm) for name in library_names(options)}
    return {**sides, FLOOR: partial(bare, algorithm)}


def iterations(options: Options, algorithm: str = "PPO") -> Workload:
    """R2 and R5: the next iteration of each side, after those without an update."""

    def begun(begin: Callable[[int], Train]) -> Side:
        train = begin(0)
        for _ in range(2 if algorithm == "DQN" else 0):
            train()
        return Side(lambda _: train(), single=True)

    sides = {name: partial(begun, begin) for name, begin in trainers(options, algorithm).items()}
    return Workload(sides, lambda outputs: None)


def measure_iterations(options: Options, algorithm: str = "PPO") -> Measured:
    """Measure seconds of an iteration; RLlib goes last and alone, as the processes that it starts take time."""
    rounds = options.rounds or (2 if options.quick else DQN_ITERATIONS if algorithm == "DQN" else ITERATIONS)
    values: dict[str, list[float]] = {}
    for group in ([OURS, FLOOR], [RLLIB] if options.rllib else []):
        with remote_sides(partial(iterations, algorithm=algorithm), options, group) as sides:
            values.update(measure(sides, rounds=rounds, seconds=options.seconds))
    totals = ", ".join(f"{name} {sum(seconds):.1f} s" for name, seconds in values.items())
    return Measured(values, note=f"{rounds} iterations: {totals}")


# --------------------------------------------------------------------------------- returns of seeds


@dataclass(frozen=True)
class LearnsAsWell(Target):
    """The mean return is not below another side's by more than that one's own spread."""

    unit = None

    def compared(self, measured: Measured) -> Spread | None:
        """Return how far it is above that."""
        ours, theirs = measured.side(OURS), measured.side(RLLIB)
        if not (ours and theirs):
            return None
        return spread([statistics.mean(ours) - (statistics.mean(theirs) - statistics.stdev(theirs))])


def read_record() -> dict[str, dict[str, Any]]:
    """Return what was recorded so far: side to `returns` by seed, and `command`."""
    record: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return record


def recorded_returns(options: Options) -> Measured:
    """Return what `python -m benchmarks seeds` recorded, since it takes minutes per seed."""
    record = {name: side["returns"] for name, side in read_record().items()}
    seeds = [seed for seed in record.get(OURS, ()) if all(seed in returns for returns in record.values())]
    if len(seeds) < 2:  # no spread
        return Measured({}, unit="return", note=f"{RECORD.name} has no two seeds of all sides")
    values = {name: [returns[seed] for seed in seeds] for name, returns in record.items()}
    means = [
        f"{name} {statistics.mean(returns):.0f} +- {statistics.stdev(returns):.0f} over {len(returns)} seeds"
        for name, returns in values.items()
    ]
    return Measured(values, unit="return", note=f"{', '.join(means)}; recorded in {RECORD.name}")


def final_return(side: str, seed: int) -> float:
    """Train with a seed; return the mean return that the side reports at the end."""
    train = trainers(Options())[side](seed)
    return [train() for _ in range(ITERATIONS)][-1]


def record_returns(sides: Sequence[str], seeds: Sequence[int]) -> None:
    """Train each side with each seed, and keep what came out."""
    for side in sides:
        for seed in seeds:
            value = in_a_process(final_return, side, seed)  # one each: seeds are the process's
            print(f"{side}, seed {seed}: {value:.1f}", flush=True)
            record = read_record()
            returns = {**record.get(side, {}).get("returns", {}), str(seed): value}
            record[side] = {"returns": returns, "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])}
            RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


ROWS = [
    Row(
        "R2",
        "PPO on CartPole, N = 1, 4,000 steps, minibatches of 128, 10 epochs; per iteration",
        measure_iterations,
        (at_most(1.05),),
    ),
    Row(
        "R5",
        "DQN on CartPole, N = 1, 1,000 steps, an update of 32 steps for each; per iteration",
        partial(measure_iterations, algorithm="DQN"),
        (at_most(1.1),),
        missed="a quarter of the time is acting, step by step through two pipelines into episodes, where the floor "
        "calls its network and writes five numbers",
    ),
    Row(
        "R2/return",
        "the mean return that it reports after 20 iterations, per seed; more is better",
        recorded_returns,
        (LearnsAsWell("mean above RLlib's less its standard deviation", 0.0, RLLIB, faster=True),),
    ),
]
