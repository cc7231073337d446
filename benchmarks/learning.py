"""How fast the examples learn: each is trained until its target, once per seed, and a table says what it took.

Run it from the repository root, or with `make learning`:

    python -m benchmarks.learning                       # everything, five seeds each
    python -m benchmarks.learning pendulum frozen_lake  # some of it
    python -m benchmarks.learning --seeds 1 --jobs 2

Every training runs in one thread. Minutes and steps per second are its CPU time's, environments, network and learner
together, so that other load on the machine does not change them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple

import typer

from benchmarks.timing import in_a_process

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINE = "{:15s} {:>4} {:>9} {:>7s} {:>9} {:>7} {:>8}"


class Outcome(NamedTuple):
    """The figure that a training reached, its steps, and seconds of CPU time."""

    value: float
    steps: int
    seconds: float


def run_main(example: ModuleType, seed: int) -> tuple[float, int]:
    """Run the whole example: the figure that its target is about, and the steps it took."""
    value, steps = example.main(example.Options(seed=seed))
    return float(value), int(steps)


def run_lstm(example: ModuleType, seed: int, *, memory: bool) -> tuple[float, int]:
    """Run one of the two trainings of the LSTM example, with its own limit of steps."""
    value, steps = example.train(example.config_for(example.Options(seed=seed), memory=memory))
    return float(value), int(steps)


@dataclass(frozen=True)
class Target:
    """What an example has to reach.

    Args:
        example: Its file in examples/, without `.py`.
        figure: What the value is.
        bound: The value to reach, or to stay under.
        run: Trains it; takes the example's module and a seed.
        below: True if the value has to stay under the bound.
    """

    example: str
    figure: str
    bound: float
    run: Callable[[ModuleType, int], tuple[float, int]] = run_main
    below: bool = False

    def reached(self, value: float) -> bool:
        """Return True if this value is good enough."""
        return value < self.bound if self.below else value >= self.bound


NO_LSTM = partial(run_lstm, memory=False)
TARGETS = {
    "lstm_memory": Target("lstm_memory", "mean return", 350.0, partial(run_lstm, memory=True)),
    "no_memory": Target("lstm_memory", "mean return without the LSTM", 100.0, NO_LSTM, below=True),
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
    """Import an example."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


def train(name: str, seed: int) -> Outcome:
    """Train one example with one seed, without its own output."""
    target = TARGETS[name]
    example = load_example(target.example)
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        value, steps = target.run(example, seed)
    return Outcome(value, steps, time.process_time() - start)


def row(name: str, seed: int, outcome: Outcome) -> str:
    """Return one line of the table."""
    value, steps, seconds = outcome
    reached = "yes" if TARGETS[name].reached(value) else "NO"
    return LINE.format(name, seed, f"{value:.3f}", reached, steps, f"{seconds / 60:.2f}", f"{steps / seconds:.0f}")


def summary(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return how many seeds reached the target."""
    target = TARGETS[name]
    count = sum(target.reached(outcome.value) for outcome in outcomes)
    sign = "<" if target.below else ">="
    return f"{name}: {target.figure} {sign} {target.bound:g} in {count} of {len(outcomes)} seeds"


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(TARGETS)}; all if none.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each.")] = 5,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 1,
) -> None:
    """Train everything, print a line as each training ends, then the summaries."""
    names = names or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    print(LINE.format("example", "seed", "value", "reached", "steps", "minutes", "steps/s"))
    tasks = [(name, seed) for name in names for seed in range(seeds)]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    # A process per training: what one leaves in memory must not slow the next one down.
    with ThreadPoolExecutor(jobs) as pool:
        for (name, seed), outcome in zip(tasks, pool.map(lambda task: in_a_process(train, *task), tasks)):
            outcomes[name].append(outcome)
            print(row(name, seed, outcome), flush=True)
    print("", *(summary(name, own) for name, own in outcomes.items()), sep="\n")


if __name__ == "__main__":
    typer.run(main)
