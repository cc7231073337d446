"""How fast the examples learn: each is trained until its target, once per seed, and a table says what it took.

Run it from the repository root, or with `make learning`:

    python benchmarks/learning.py                       # everything, five seeds each
    python benchmarks/learning.py pendulum frozen_lake  # some of it
    python benchmarks/learning.py --seeds 1 --jobs 2

Every training runs in one thread. Minutes and steps per second are its CPU time's, environments, network and learner
together, so that other load on the machine does not change them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

Run = Callable[[ModuleType, int], "tuple[float, int]"]


def run_main(example: ModuleType, seed: int) -> tuple[float, int]:
    """Run the whole example: the figure that its target is about, and the steps it took."""
    value, steps = example.main(example.Options(seed=seed))
    return float(value), int(steps)


def run_lstm(example: ModuleType, seed: int, *, memory: bool) -> tuple[float, int]:
    """One of the two trainings of the LSTM example, with its own limit of steps."""
    value, steps = example.train(example.config_for(example.Options(seed=seed), memory=memory))
    return float(value), int(steps)


@dataclass(frozen=True)
class Target:
    """What an example has to reach.

    Args:
        example: its file in examples/, without `.py`.
        figure: what the value is.
        bound: the value to reach, or to stay under.
        run: trains it; takes the example's module and a seed.
        below: whether the value has to stay under the bound.
    """

    example: str
    figure: str
    bound: float
    run: Run = run_main
    below: bool = False

    def reached(self, value: float) -> bool:
        """Whether this value is good enough."""
        return value < self.bound if self.below else value >= self.bound


@dataclass(frozen=True)
class Outcome:
    """What one training came to."""

    value: float
    steps: int
    seconds: float


TARGETS = {
    "lstm_memory": Target("lstm_memory", "mean return", 350.0, partial(run_lstm, memory=True)),
    "no_memory": Target(
        "lstm_memory", "mean return without the LSTM", 100.0, partial(run_lstm, memory=False), below=True
    ),
    "pendulum": Target("pendulum", "mean return", -300.0),
    "frozen_lake": Target("frozen_lake", "share of greedy episodes that arrive", 0.95),
    "cleanrl_style": Target("cleanrl_style", "mean return", 450.0),
    "action_mask": Target("action_mask", "mean return, greedy", 2.6),
    "pixel_catch": Target("pixel_catch", "share of balls caught", 0.95),
    "two_cartpoles": Target("two_cartpoles", "smaller mean return of the two agents", 450.0),
    "tictactoe_self_play": Target("tictactoe_self_play", "share of games won against random", 0.8),
    "centralised_critic": Target("centralised_critic", "share of games with a catch", 0.8),
    "blackjack": Target("blackjack", "mean return of 20,000 greedy games", -0.08),
}


def load_example(name: str) -> ModuleType:
    """Import an example from its file."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def train(name: str, seed: int) -> Outcome:
    """Train one example with one seed, without its own output."""
    import torch

    torch.set_num_threads(1)
    target = TARGETS[name]
    example = load_example(target.example)
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        value, steps = target.run(example, seed)
    return Outcome(value, steps, time.process_time() - start)


def train_task(task: tuple[str, int]) -> Outcome:
    """`train` for a pool of processes."""
    return train(*task)


def row(name: str, seed: int, outcome: Outcome) -> str:
    """One line of the table."""
    reached = "yes" if TARGETS[name].reached(outcome.value) else "NO"
    return (
        f"{name:15s} {seed:4d} {outcome.value:9.3f} {reached:>7s} {outcome.steps:9d} "
        f"{outcome.seconds / 60:7.2f} {outcome.steps / outcome.seconds:8.0f}"
    )


def summary(name: str, outcomes: Sequence[Outcome]) -> str:
    """How many seeds reached the target."""
    target = TARGETS[name]
    count = sum(target.reached(outcome.value) for outcome in outcomes)
    sign = "<" if target.below else ">="
    return f"{name}: {target.figure} {sign} {target.bound:g} in {count} of {len(outcomes)} seeds"


def main(names: Sequence[str], seeds: int, jobs: int) -> dict[str, list[Outcome]]:
    """Train everything, print a line as each training ends, then the summaries."""
    print(f"{'example':15s} {'seed':>4s} {'value':>9s} {'reached':>7s} {'steps':>9s} {'minutes':>7s} {'steps/s':>8s}")
    tasks = [(name, seed) for name in names for seed in range(seeds)]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    # A process per training: what one leaves in memory must not slow the next one down.
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for (name, seed), outcome in zip(tasks, pool.imap(train_task, tasks)):
            outcomes[name].append(outcome)
            print(row(name, seed, outcome), flush=True)
    print()
    for name in names:
        print(summary(name, outcomes[name]))
    return outcomes


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(TARGETS)}; all if none is given")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in TARGETS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    return options


if __name__ == "__main__":
    chosen = parse()
    main(chosen.names or list(TARGETS), chosen.seeds, chosen.jobs)
