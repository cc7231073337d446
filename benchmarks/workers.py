"""A process for each side, so that no side meets the heap, the free lists or the caches that another one left.

Of the processes only one works at a time. They stay for the next row, as importing a library takes seconds.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.one_thread import use_one_thread
from benchmarks.timing import Side

_WORKERS: dict[str, Worker] = {}


class WorkerError(RuntimeError):
    """Something went wrong in the process of a side."""


class Worker:
    """A process that holds one side at a time.

    Attributes:
        output: What the side's first call gave, tensors as arrays.
    """

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.output: Any = None

    def make(self, build: Callable[..., Any], options: Any, name: str) -> None:
        """Make a side there, and keep what its first call gives."""
        self.output = self._ask("make", build, options, name)

    def calls(self, seconds: float) -> int:
        """See `Side`."""
        return self._ask("calls", seconds)

    def turn(self, calls: int) -> float:
        """See `Side`."""
        return self._ask("turn", calls)

    def drop(self) -> None:
        """Forget the side."""
        self.output = None
        self._ask("drop")

    def stop(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()

    def _ask(self, *message: Any) -> Any:
        try:
            self._pipe.send(message)
            good, answer = self._pipe.recv()
        except EOFError:
            raise WorkerError("the process of a side ended by itself") from None
        if not good:
            raise WorkerError(answer)
        return answer


@contextlib.contextmanager
def team(build: Callable[..., Any], options: Any, names: Iterable[str]) -> Iterator[dict[str, Worker]]:
    """The sides of a workload, each made in its process.

    Args:
        build: Makes the workload from the options.
        options: What it takes.
        names: Of the sides.
    """
    workers = {name: _worker(name) for name in names}
    try:
        for name, worker in workers.items():
            worker.make(build, options, name)
        yield workers
        for worker in workers.values():
            worker.drop()
    except BaseException:
        stop_all()
        raise


def _worker(name: str) -> Worker:
    if name not in _WORKERS:
        _WORKERS[name] = Worker()
    return _WORKERS[name]


def stop_all() -> None:
    """End all processes."""
    while _WORKERS:
        _WORKERS.popitem()[1].stop()


def _serve(pipe: Connection) -> None:
    use_one_thread()
    side: Side | None = None
    while True:
        try:
            task, *given = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = None
            if task == "make":
                build, options, name = given
                side = build(options).sides[name]()
                answer = as_arrays(side.once())
            elif task == "drop":
                side = None
            else:
                answer = getattr(side, task)(*given)
            pipe.send((True, answer))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def as_arrays(output: Any) -> Any:
    """Tensors as arrays, in dicts and lists."""
    if isinstance(output, Mapping):
        return {name: as_arrays(value) for name, value in output.items()}
    if isinstance(output, (list, tuple)):
        return [as_arrays(value) for value in output]
    return output.numpy() if hasattr(output, "detach") else output
