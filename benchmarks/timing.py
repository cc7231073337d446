"""Time several ways to do the same thing in turns, A B C A B C, each in a process of its own.

A side in its own process does not meet the heap, the free lists or the caches that another side left. Only one process
works at a time. The processes stay for the next row, because importing a library takes seconds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

MOST_CALLS = 100_000


def use_one_thread() -> None:
    """Use one thread in this process and its children. Call it before NumPy is imported; it loads torch."""
    for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


@dataclass(frozen=True)
class Side:
    """One way to do it, in this process.

    Args:
        run: The call that is timed. It takes what `prepare` returned.
        prepare: Makes a new input, outside the time. A turn is then a single call. Without it `run` takes None.
        single: A turn is a single call. Each timed call then follows one that is not timed.
        count: Counts the steps in an output. A turn is then a single call, and its time is per step.
        show: Converts an output to what is compared between the sides.
        clock: Returns seconds.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] | None = None
    single: bool = False
    count: Callable[[Any], int] | None = None
    show: Callable[[Any], Any] = lambda output: output
    clock: Callable[[], float] = time.perf_counter

    @property
    def is_single(self) -> bool:
        """True if a turn is a single call."""
        return self.single or self.prepare is not None or self.count is not None

    def given(self) -> Any:
        """Return the input of a call."""
        return self.prepare() if self.prepare else None

    def once(self) -> Any:
        """Return the output of one call, as it is compared."""
        return self.show(self.run(self.given()))

    def calls(self, seconds: float) -> int:
        """Return how many calls fill a turn. The side is warm afterwards."""
        self.run(self.given())
        if self.is_single:
            return 1
        once = min(self.turn(1) for _ in range(2))
        return max(1, min(MOST_CALLS, round(seconds / max(once, 1e-9))))

    def turn(self, calls: int) -> float:
        """Return seconds per call (or per step), of so many calls back to back."""
        run, clock = self.run, self.clock
        if self.is_single and not self.count:
            run(self.given())  # so that memory is as this side leaves it, and not as another one's turn did
        given = self.given()
        gc.collect()
        start = clock()
        for _ in range(calls - 1):
            run(given)
        output = run(given)  # freeing the last output is not part of the calls
        seconds = clock() - start
        return seconds / (self.count(output) if self.count else calls)


def measure(sides: Mapping[str, Side | RemoteSide], *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Measure seconds per call of every side in every round.

    The sides take turns in each round, so that what slows the machine down for a while slows all of them down. Garbage
    is collected before every turn. This also leaves the caches cold, so that a turn of a single call starts as the call
    does in a training loop, where other work was done before.

    Args:
        sides: Name to side.
        rounds: How many turns each side has.
        seconds: About how long a turn of many calls is.
    """
    calls = {name: side.calls(seconds) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side.turn(calls[name]))
    return times


class Spread(NamedTuple):
    """First quartile, median and third quartile of some numbers."""

    low: float
    median: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Return median and quartiles. Those of a single number are that number."""
    numbers = list(values)
    return Spread(*(statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else numbers * 3))


# -------------------------------------------------------------------------------------- other processes

_PROCESSES: dict[str, ProcessPoolExecutor] = {}
_SIDES: list[Side] = []  # in the process of a side: the side


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=use_one_thread)


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a new process, with one thread and a heap of its own."""
    with _process() as process:
        return process.submit(function, *arguments).result()


class RemoteSide:
    """A side in its own process, with the methods of `Side`.

    Attributes:
        output: What the side's first call returned, tensors as arrays.
    """

    def __init__(self, name: str, build: Callable[..., Any], options: Any) -> None:
        self._name = name
        if name not in _PROCESSES:
            _PROCESSES[name] = _process()
        self.output = self.ask(_make, build, options, name)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process."""
        return _PROCESSES[self._name].submit(function, *arguments).result()

    def calls(self, seconds: float) -> int:
        """See `Side`."""
        return int(self.ask(_call, "calls", seconds))

    def turn(self, calls: int) -> float:
        """See `Side`."""
        return float(self.ask(_call, "turn", calls))


@contextlib.contextmanager
def remote_sides(build: Callable[..., Any], options: Any, names: Iterable[str]) -> Iterator[dict[str, RemoteSide]]:
    """Make sides of a workload, each in its process.

    Args:
        build: Makes the workload from the options. Other processes have to find it: a function of a module, or a
            partial of one.
        options: The argument of `build`.
        names: Of the sides.
    """
    try:
        sides = {name: RemoteSide(name, build, options) for name in names}
        yield sides
        for side in sides.values():
            side.ask(_drop)
    except BaseException:
        stop_all()
        raise


def stop_all() -> None:
    """End all processes."""
    while _PROCESSES:
        _PROCESSES.popitem()[1].shutdown()


def _make(build: Callable[..., Any], options: Any, name: str) -> Any:
    _SIDES[:] = [build(options).sides[name]()]
    return as_arrays(_SIDES[0].once())


def _call(method: str, argument: Any) -> Any:
    return getattr(_SIDES[0], method)(argument)


def _drop() -> None:
    _SIDES.clear()


def as_arrays(output: Any) -> Any:
    """Convert the tensors in dicts and lists to arrays."""
    if isinstance(output, Mapping):
        return {name: as_arrays(value) for name, value in output.items()}
    if isinstance(output, (list, tuple)):
        return [as_arrays(value) for value in output]
    return output.numpy() if hasattr(output, "detach") else output
