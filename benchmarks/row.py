"""Rows of the table: what a row measures, and what it has to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import Side, Spread, measure, remote_sides, spread

OURS, RLLIB, FLOOR = "epibatch", "RLlib", "floor"
LEANEST = "leanest floor"
WITHOUT = "epibatch without the piece"

Values = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Options:
    """How to measure.

    Args:
        quick: Small sizes and few short rounds: to see that everything runs, not for figures.
        rllib: True if RLlib is installed.
        rounds: Turns of each side. None: 15, or 3 when quick.
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
    """Figures of a row.

    Args:
        values: Side to one number per round, the smaller the better. Sides whose names are alike up to a colon,
            `floor: slices` and `floor: take`, are ways to do one thing: the fastest of them counts.
        unit: Of the values: "s" (seconds per call) or "MiB".
        note: A line below the table.
    """

    values: Values
    unit: str = "s"
    note: str = ""

    def side(self, name: str) -> Sequence[float]:
        """Return the values of a side, of its fastest way if there are several; none if it was not measured."""
        ways = [values for key, values in self.values.items() if key.partition(":")[0] == name]
        return min(ways, key=lambda values: spread(values).median, default=())


@dataclass(frozen=True)
class Target:
    """What a row has to reach.

    Args:
        text: As it stands in the table, `<= 2 x floor`.
        bound: The largest value that is good enough; with `faster` the smallest.
        against: The side that epibatch is compared with. None: the bound is in the row's unit.
        faster: Compare how many times less than the other side epibatch takes.
    """

    text: str
    bound: float
    against: str | None = FLOOR
    faster: bool = False

    @property
    def unit(self) -> str | None:
        """Of what is compared; None: the row's own."""
        return self.against and "x"

    def compared(self, measured: Measured) -> Spread | None:
        """Return what is compared with the bound, over the rounds; None if a side is missing."""
        values = measured.side(OURS)
        if self.against is not None:
            other = measured.side(self.against)
            above, below = (other, values) if self.faster else (values, other)
            values = [a / b for a, b in zip(above, below, strict=True)] if above and below else ()
        return spread(values) if values else None

    def met(self, value: float) -> bool:
        """Return True if a value is good enough."""
        return value >= self.bound if self.faster else value <= self.bound


def at_most(bound: float, against: str = FLOOR) -> Target:
    """Take at most so many times what the other side takes."""
    return Target(f"<= {bound:g} x {against}", bound, against)


def times_faster(bound: float, than: str = RLLIB) -> Target:
    """Take at most one so-many-th of what the other side takes."""
    return Target(f">= {bound:g} x faster than {than}", bound, than, faster=True)


def below(bound: float, text: str) -> Target:
    """Take at most so many seconds (or MiB)."""
    return Target(text, bound, None)


@dataclass(frozen=True)
class Workload:
    """Sides that do the same, and a check that they do.

    Args:
        sides: Name to what makes the side: `epibatch`, `RLlib` if it has this, `floor`.
        check: Takes the output of each side, tensors as arrays. Raises `DifferentValuesError` if they differ.
        note: Makes the note from the outputs and the measured values.
    """

    sides: Mapping[str, Callable[[], Side]]
    check: Callable[[Mapping[str, Any]], None]
    note: Callable[[Mapping[str, Any], Values], str] | None = None


@dataclass(frozen=True)
class Timed:
    """The `measure` of a row whose sides are timed in turns, each in its own process.

    Args:
        build: Makes the workload; see `remote_sides`.
    """

    build: Callable[[Options], Workload]

    def __call__(self, options: Options) -> Measured:
        """Compare the sides' values, then time them."""
        workload = self.build(options)
        with remote_sides(self.build, options, workload.sides) as sides:
            outputs = {name: side.output for name, side in sides.items()}
            workload.check(outputs)
            values = measure(sides, rounds=options.turns, seconds=options.seconds)
            return Measured(values, note=workload.note(outputs, values) if workload.note else "")


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: `L1`, or `E1/16/identity`: the parts are what `--only` selects by.
        what: The workload in a few words.
        measure: Checks that all sides give the same values, then measures.
        targets: What it has to reach.
        missed: Why it does not, if so. It stands below the table in docs/benchmarks.md.
    """

    name: str
    what: str
    measure: Callable[[Options], Measured]
    targets: Sequence[Target] = ()
    missed: str = ""
