"""Times several ways of doing the same thing against each other: A B C A B C."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Clock = Callable[[], float]

MOST_CALLS = 100_000


class Turns(Protocol):
    """A side as `measure` sees it, here or in a process of its own."""

    def calls(self, seconds: float) -> int:
        """How many calls fill a turn; the side is warm afterwards."""

    def turn(self, calls: int) -> float:
        """Seconds per call, of so many calls."""


@dataclass(frozen=True)
class Side:
    """One of the ways, in this process.

    Args:
        run: The call that is timed. Takes what `prepare` returned.
        prepare: Makes a fresh input, outside the time; then a turn is a single call. Without it `run` takes None.
        single: Whether a turn is a single call in any case, and not as many as fill it. A single call comes behind one
            that is not timed.
        show: Makes of an output what is compared between the sides, if that is something else.
        clock: Gives seconds.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] | None = None
    single: bool = False
    show: Callable[[Any], Any] | None = None
    clock: Clock = time.perf_counter

    @property
    def is_single(self) -> bool:
        """Whether a turn is a single call."""
        return self.single or self.prepare is not None

    def given(self) -> Any:
        """The input of a call."""
        return None if self.prepare is None else self.prepare()

    def once(self) -> Any:
        """The output of one call, to be compared."""
        output = self.run(self.given())
        return self.show(output) if self.show else output

    def calls(self, seconds: float) -> int:
        """How many calls fill a turn; the side is warm afterwards."""
        self.once()
        if self.is_single:
            return 1
        once = min(self.turn(1) for _ in range(2))
        return max(1, min(MOST_CALLS, round(seconds / max(once, 1e-9))))

    def turn(self, calls: int) -> float:
        """Seconds per call, of so many calls back to back."""
        run, clock = self.run, self.clock
        if self.is_single:
            run(self.given())  # so that memory is as this side leaves it, and not as another one's turn did
        given = self.given()
        gc.collect()
        start = clock()
        for _ in range(calls - 1):
            run(given)
        output = run(given)
        stop = clock()
        del output  # freeing the last one is not part of the calls
        return (stop - start) / calls


def measure(sides: Mapping[str, Turns], *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per call of every side in every round.

    In each round the sides take turns, so that what slows the machine down for a while slows all of them down. Garbage
    is collected in front of every turn; that also leaves the caches cold, so a turn of a single call starts
    as the call does in a training loop, where other work was done in between.

    Args:
        sides: Name to side.
        rounds: How many turns each side has.
        seconds: About how long a turn of calls made back to back is.

    Returns:
        Name to seconds per call, one number per round.
    """
    calls = {name: side.calls(seconds) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side.turn(calls[name]))
    return times


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some numbers."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Median, first and third quartile; of a single number, that number."""
    numbers = list(values)
    if len(numbers) == 1:
        return Spread(numbers[0], numbers[0], numbers[0])
    low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return Spread(middle, low, high)


def ratios(numerator: Iterable[float], denominator: Iterable[float]) -> list[float]:
    """The ratio of two sides in each round."""
    return [above / below for above, below in zip(numerator, denominator, strict=True)]
