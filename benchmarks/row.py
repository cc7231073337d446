"""What a row of the table is: what it measures, and what it has to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.names import FLOOR, OURS, RLLIB
from benchmarks.timing import Side, Spread, measure, ratios, spread
from benchmarks.workers import team


@dataclass(frozen=True)
class Options:
    """How to measure.

    Args:
        quick: Small sizes and few short rounds: to see that everything runs, not for figures.
        rllib: Whether RLlib is there to be measured.
        rounds: Turns of each side; None: 15, or 3 when quick.
    """

    quick: bool = False
    rllib: bool = True
    rounds: int | None = None

    @property
    def turns(self) -> int:
        """Turns of each side."""
        return self.rounds or (3 if self.quick else 15)

    @property
    def seconds(self) -> float:
        """About how long a turn is."""
        return 0.005 if self.quick else 0.05


@dataclass(frozen=True)
class Measured:
    """What came out.

    Args:
        values: Side to one number per round, the smaller the better. Sides whose names begin alike up to a colon,
            `floor: slices` and `floor: take`, are ways to do one thing: the fastest of them counts.
        unit: Of the values: "s" (seconds per call) or "MiB".
        steps: Timesteps (environment steps, appended rows) in a call, for steps per second; 0: no such thing.
        note: What else is to be said about it, in a line.
    """

    values: Mapping[str, Sequence[float]]
    unit: str = "s"
    steps: int = 0
    note: str = ""

    def side(self, name: str) -> Sequence[float] | None:
        """The values of a side, of its fastest way if there are several; None if it was not measured."""
        ways = [own for key, own in self.values.items() if key.partition(":")[0] == name]
        return min(ways, key=lambda own: spread(own).median, default=None)


@dataclass(frozen=True)
class Target:
    """What a row has to reach.

    Args:
        text: As it stands in the table, `<= 2 x floor`.
        bound: The largest value that is good enough; with `times_faster` the smallest.
        against: The side that epibatch is compared with; None: the bound is in the row's unit.
        times_faster: Compare how many times less than the other side epibatch takes.
    """

    text: str
    bound: float
    against: str | None = FLOOR
    times_faster: bool = False

    def compared(self, measured: Measured) -> Spread | None:
        """What is compared with the bound, over the rounds; None if a side is missing."""
        own = measured.side(OURS)
        if own is None:
            return None
        if self.against is None:
            return spread(own)
        other = measured.side(self.against)
        if other is None:
            return None
        return spread(ratios(other, own) if self.times_faster else ratios(own, other))

    def value(self, measured: Measured) -> float | None:
        """The median of that, which is what counts."""
        found = self.compared(measured)
        return None if found is None else found.median

    @property
    def unit(self) -> str:
        """Of the value: "x", or empty for the row's own."""
        return "" if self.against is None else "x"

    def met(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.bound if self.times_faster else value <= self.bound


def at_most(bound: float, against: str = FLOOR) -> Target:
    """Takes at most so many times what the other side takes."""
    return Target(f"<= {bound:g} x {against}", bound, against)


def times_faster(bound: float, than: str = RLLIB) -> Target:
    """Takes at most one so-many-th of what the other side takes."""
    return Target(f">= {bound:g} x faster than {than}", bound, than, times_faster=True)


def at_least_of(share: float, other: str) -> Target:
    """Does at least this share of the other side's steps per second."""
    return Target(f">= {100 * share:g} % of the {other}'s steps/s", 1 / share, other)


def below(bound: float, text: str) -> Target:
    """Takes at most so many seconds (or MiB)."""
    return Target(text, bound, None)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: `L1`, or `E1/16/identity`: the parts are what `--only` selects by.
        what: The workload in a few words.
        measure: Checks that all sides give the same values, then measures.
        targets: What it has to reach.
        missed: Why it does not, if so: stands below the table in docs/benchmarks.md.
    """

    name: str
    what: str
    measure: Callable[[Options], Measured]
    targets: Sequence[Target] = field(default=())
    missed: str = ""


@dataclass(frozen=True)
class Workload:
    """Sides that do the same, and the proof that they do.

    Args:
        sides: Name to what makes the side: `epibatch`, `RLlib` if it has this, `floor`.
        check: Takes the output of each side, tensors as arrays; raises `DifferentValuesError` if they differ.
        steps: Timesteps in a call.
        note: See `Measured`.
    """

    sides: Mapping[str, Callable[[], Side]]
    check: Callable[[Mapping[str, Any]], None]
    steps: int = 0
    note: str = ""


@dataclass(frozen=True)
class Timed:
    """The `measure` of a row whose sides are timed in turns, each in a process of its own.

    Args:
        build: Makes the workload; a function of a module, or a partial of one, so that other processes find it.
    """

    build: Callable[[Options], Workload]

    def __call__(self, options: Options) -> Measured:
        """Compare the sides' values, then time them."""
        workload = self.build(options)
        with team(self.build, options, workload.sides) as sides:
            workload.check({name: side.output for name, side in sides.items()})
            for side in sides.values():
                del side.output
            values = measure(sides, rounds=options.turns, seconds=options.seconds)
        return Measured(values, steps=workload.steps, note=workload.note)


timed = Timed
