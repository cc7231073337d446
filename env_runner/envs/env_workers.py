"""Environments in this process or in worker processes, called together and made again one by one."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from epibatch.core.errors import RunnerError, add_note
from epibatch.core.warning_filters import set_warning_filters, warning_filters

from .answer_memory import AnswerMemory
from .env_calls import EnvCalls
from .env_checks import mark_environment


@contextmanager
def workers_ignore_ctrl_c() -> Iterator[None]:
    """Block SIGINT in processes that are started inside this context.

    A terminal sends it to every process at once. If workers ended, the training process could not finish its
    iteration. A signal that arrives inside the context is delivered to this process later. On Windows signals cannot
    be blocked, so nothing changes there.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


CONNECTION_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)
"""What a pipe raises if the process at its other end has ended."""

_PATIENCE = 10
"""Seconds that a process has to close its environments and to end."""

_BUFFER = 2**16
"""A message of at most so many bytes can be sent to a process that does not read."""

Calls = Mapping[int, tuple[Any, ...]]
"""The number of an environment -> the name of a method of its `EnvCalls`, and the arguments."""

Answers = tuple[dict[int, Any], dict[int, Exception]]
"""What calls returned, and what they raised, by the environments' numbers."""


class LocalEnvs:
    """Environments in this process, which are called one after the other.

    Args:
        makers: Functions that make the environments, each behind its calls.

    Attributes:
        calls: The environments behind their calls.
        broken: False: every one of them can be called.
    """

    broken = False

    def __init__(self, makers: Sequence[Callable[[], EnvCalls]]) -> None:
        self._makers = makers
        self.calls: list[EnvCalls] = []

    def start(self) -> Answers:
        """Make the environments up to the first that fails, and return their facts."""
        for index, maker in enumerate(self._makers):
            try:
                self.calls.append(maker())
            except Exception as error:
                mark_environment(error)
                return {}, {index: error}
        return {index: calls.facts for index, calls in enumerate(self.calls)}, {}

    def ask(self, calls: Calls) -> Answers:
        """Call environments."""
        answers: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for index, (call, *arguments) in calls.items():
            try:
                answers[index] = getattr(self.calls[index], call)(*arguments)
            except Exception as error:
                mark_environment(error)
                failures[index] = error
        return answers, failures

    def remake(self, index: int) -> Any:
        """Replace an environment by a new one, and return its facts."""
        with contextlib.suppress(Exception):
            self.calls[index].close()
        self.calls[index] = self._makers[index]()
        return self.calls[index].facts

    def close(self) -> None:
        """Close the environments."""
        while self.calls:
            self.calls.pop().close()


class WorkerEnvs:
    """Environments in processes of their own, which end with this object or with their parent.

    Args:
        makers: Functions that make the environments, each behind its calls, there.
        per_process: How many environments a process has.
        context: Start method of `multiprocessing`; None: the platform's.
        timeout: Seconds that a process may take to answer; None: no limit. A process that takes longer is killed.
        memory: Shared memory of this context, which the environments' calls get as `memory`.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], EnvCalls]],
        *,
        per_process: int = 1,
        context: str | None = None,
        timeout: float | None = None,
        memory: Any = None,
    ) -> None:
        self._makers = list(makers)
        self._per_process = per_process
        self._context, self._timeout, self._memory = context, timeout, memory
        self._processes: list[_EnvProcess] = []
        self._sent: dict[int, list[tuple[int, tuple[Any, ...]]]] = {}  # by the process's number
        self._missing: set[int] = set()  # environments that their process does not have yet

    @property
    def broken(self) -> bool:
        """True if a process has ended, or still works on a call that was interrupted."""
        return bool(self._missing) or any(process.broken for process in self._processes)

    def start(self) -> Answers:
        """Make the environments, and return their facts."""
        for first in range(0, len(self._makers), self._per_process):
            self._processes.append(self._new_process(first))
        return self.ask(dict.fromkeys(range(len(self._makers)), ("make",)))

    def ask(self, calls: Calls) -> Answers:
        """Call environments, all processes at the same time."""
        numbers = self.send(calls)
        try:
            return self.receive(numbers)
        finally:  # Ctrl-C: the others are not waited for any more
            for number in numbers:
                self._sent.pop(number, None)

    def send(self, calls: Calls) -> list[int]:
        """Start calls of environments; return the numbers of their processes.

        Raises:
            RunnerError: they were closed, or an argument cannot be sent to another process; then no call was started.
        """
        if not self._processes:
            raise RunnerError(
                "worker processes", expected="environments to call", found="closed ones", do="make new ones"
            )
        groups: dict[int, list[tuple[int, tuple[Any, ...]]]] = {}
        for index, call in calls.items():
            number, slot = divmod(index, self._per_process)
            groups.setdefault(number, []).append((slot, call))
        messages = {number: _pickled(requests) for number, requests in groups.items()}
        for number, message in messages.items():
            self._processes[number].send(message, self._timeout)
            self._sent[number] = groups[number]
        return list(groups)

    def together(self, indices: Iterable[int]) -> set[int]:
        """Return these environments, and those that share a process with one of them."""
        numbers = {index // self._per_process for index in indices}
        return {index for index in range(len(self._makers)) if index // self._per_process in numbers}

    def ready(self, count: int = 1) -> list[int]:
        """Wait until so many environments, or all at work, have answered; return the numbers of their processes.

        A process that has ended, or is out of time, has answered too.
        """
        ready: list[int] = []
        while sum(len(self._sent[number]) for number in ready) < count and len(ready) < len(self._sent):
            waits = {number: self._processes[number].seconds_left() for number in self._sent.keys() - ready}
            pipes = {self._processes[number].pipe: number for number in waits}
            found = wait(pipes, min((left for left in waits.values() if left is not None), default=None))
            ready += [number for pipe, number in pipes.items() if pipe in found or waits[number] == 0]
        return sorted(ready)

    def receive(self, numbers: Iterable[int]) -> Answers:
        """Wait for the calls that processes were sent; return what they returned and raised."""
        answers: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for number in numbers:
            first, requests = number * self._per_process, self._sent.pop(number)
            try:
                results = self._processes[number].receive(self._timeout)
            except Exception as error:
                for slot, _ in requests:
                    failures[first + slot] = copy.copy(error)
                    mark_environment(failures[first + slot])
                continue
            for (slot, _), (good, answer) in zip(requests, results, strict=True):
                if good:
                    answers[first + slot] = answer
                    self._missing.discard(first + slot)
                else:
                    mark_environment(answer)
                    failures[first + slot] = answer
        return answers, failures

    def remake(self, index: int) -> Any:
        """Replace an environment by a new one, in a new process if that of the old one cannot go on.

        The other environments of such a process fail at their next call, and have to be made again as well.
        """
        number = index // self._per_process
        if self._processes[number].broken:
            self._processes[number].tell_to_end()
            self._processes[number].close()
            self._processes[number] = self._new_process(number * self._per_process)
        answers, failures = self.ask({index: ("make",)})
        if failures:
            raise failures[index]
        return answers[index]

    def _new_process(self, first: int) -> _EnvProcess:
        makers = self._makers[first : first + self._per_process]
        self._missing |= {*range(first, first + len(makers))}
        return _EnvProcess(makers, self._context, self._memory)

    def close(self) -> None:
        """Close the environments and end their processes, all at the same time; one that takes too long is killed."""
        for process in self._processes:
            process.tell_to_end()
        while self._processes:
            self._processes.pop().close()


class _EnvProcess:
    """One process with environments.

    Args:
        makers: Functions that make them.
        context: Start method of `multiprocessing`; None: the platform's.
        memory: Shared memory for them.
    """

    def __init__(self, makers: Sequence[Callable[[], EnvCalls]], context: str | None, memory: Any) -> None:
        ways = multiprocessing.get_context(context)
        self.pipe, theirs = ways.Pipe()
        wrapped = CloudpickleWrapper((makers, warning_filters()))  # type: ignore[arg-type]
        # the types of multiprocessing do not say that every context has processes
        self._process: Any = ways.Process(  # type: ignore[attr-defined]
            target=_serve, args=(wrapped, memory, theirs, self.pipe), daemon=True
        )
        try:
            with workers_ignore_ctrl_c():
                self._process.start()
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise RunnerError(
                f"worker process, start method {ways.get_start_method()!r}",
                expected="functions that make environments and can be sent to another process",
                found=f"{type(error).__name__}: {error}",
                do="pass a class or a function of a module, without open files, locks or the like; or use sync",
            ) from error
        theirs.close()
        self._answers = AnswerMemory()
        self._waiting = False
        self._gone = False
        self._deadline: float | None = None

    @property
    def broken(self) -> bool:
        """True if the process has ended, or still works on calls whose results were not received."""
        return self._gone or self._waiting

    def send(self, message: bytes, timeout: float | None) -> None:
        """Start calls of environments, one after the other; a process that was interrupted at work is killed."""
        self._deadline = None if timeout is None else time.monotonic() + timeout
        if self._waiting:  # its answers would be taken for those of these calls
            self._end()
        self._waiting = True
        watch = None
        if timeout is not None and len(message) > _BUFFER:
            watch = threading.Timer(timeout, self._process.kill)
            watch.start()
        with contextlib.suppress(*CONNECTION_ERRORS, OSError):  # receive() says so
            self.pipe.send_bytes(message)
        if watch is not None:
            watch.cancel()

    def seconds_left(self) -> float | None:
        """Return the time that is left for the calls; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def receive(self, timeout: float | None) -> list[tuple[bool, Any]]:
        """Wait for the calls, and return for each whether it succeeded, and its result or error.

        Raises:
            RunnerError: the process has ended, or took longer than `timeout`; then it is killed.
        """
        try:
            if self._gone:  # an answer to an earlier call may wait in the pipe
                raise EOFError
            if self._deadline is not None and not self.pipe.poll(self.seconds_left()):
                self._end()
                raise RunnerError(
                    "worker process",
                    expected=f"an answer within {timeout:g} s, as sub_environment_timeout_s says",
                    found="none; the process was killed",
                    do="find out where the environment waits, or allow more time",
                )
            results: list[tuple[bool, Any]] = self._answers.loads(self.pipe.recv_bytes())
        except (*CONNECTION_ERRORS, OSError) as error:
            self._gone = True
            self._process.join(_PATIENCE)
            raise RunnerError(
                "worker process",
                expected="an answer",
                found=f"{type(error).__name__}: it has ended, with exit code {self._process.exitcode}",
                do="see what it printed, and find the cause with gym_env_vectorize_mode='sync'",
            ) from error
        self._waiting = False
        return results

    def _end(self) -> None:
        self._gone = True
        self._process.kill()
        self._process.join()

    def tell_to_end(self) -> None:
        """Tell the process to close its environments and to end, if it listens; otherwise terminate it."""
        self._deadline = time.monotonic() + _PATIENCE
        if self.broken:
            self._process.terminate()
            return
        with contextlib.suppress(*CONNECTION_ERRORS, OSError):
            self.pipe.send(None)

    def close(self) -> None:
        """Wait until the process has ended; if it does not, kill it."""
        self._process.join(self.seconds_left())
        if self._process.is_alive():
            self._end()
        self.pipe.close()


def _serve(makers: Any, memory: Any, pipe: Connection, parents: Connection) -> None:
    """Answer calls of environments in the process until it is closed or the parent ends."""
    parents.close()  # otherwise this process would keep its own pipe open
    if hasattr(os, "register_at_fork"):  # the same for processes that an environment forks, which may outlive this one
        os.register_at_fork(after_in_child=pipe.close)
    np.random.seed()  # forked processes have their parent's state; Python seeds `random` itself
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    makers, filters = getattr(
        makers, "fn", makers
    )  # unpickled in a process that was not forked, it is the tuple itself
    set_warning_filters(filters)
    envs: dict[int, EnvCalls] = {}
    answers = AnswerMemory()
    try:
        while (requests := pipe.recv()) is not None:
            _send(pipe, answers, [_answer(makers, memory, envs, slot, *call) for slot, call in requests])
    except CONNECTION_ERRORS:
        pass  # the parent has ended
    finally:
        for calls in envs.values():
            with contextlib.suppress(Exception):
                calls.close()


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, also while an environment hangs."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)  # the environment handles SIGTERM


def _answer(
    makers: Any, memory: Any, envs: dict[int, EnvCalls], slot: int, call: str, *arguments: Any
) -> tuple[bool, Any]:
    """Call an environment; return True and its answer, or False and the error."""
    try:
        if call == "make":
            with contextlib.suppress(Exception):
                if slot in envs:
                    envs.pop(slot).close()
            envs[slot] = makers[slot]()
            envs[slot].memory = memory
            return True, envs[slot].facts
        if slot not in envs:
            raise RunnerError(
                "worker process",
                expected="the environment",
                found="none: its process ended with a failure of another environment",
                do="see what the process printed, or give each environment a process: num_envs_per_worker=1",
            )
        if call == "reset" and arguments and arguments[0] is not None:
            for generator in (random, np.random):
                generator.seed(int(arguments[0]) % 2**32)
        return True, getattr(envs[slot], call)(*arguments)
    except Exception as error:
        return False, _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled: with its traceback as a note, or as a RunnerError that quotes it."""
    trace = "".join(traceback.format_exception(error))
    add_note(error, f"In the worker process:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunnerError(f"{type(error).__name__}: {error}\n{trace}")
    return error


def _send(pipe: Connection, memory: AnswerMemory, answers: list[tuple[bool, Any]]) -> None:
    try:
        message = _pickled(answers, memory.dumps)
    except RunnerError:
        message = _pickled([_sendable(*answer) for answer in answers])
    pipe.send_bytes(message)  # send() pickles as well, in three times the time


def _sendable(good: bool, answer: Any) -> tuple[bool, Any]:
    try:
        _pickled(answer)
    except RunnerError as error:
        return False, error
    return good, answer


def _pickled(values: Any, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    try:
        return dumps(values)
    except Exception as error:
        raise RunnerError(
            "worker process",
            expected="values that can be sent to another process",
            found=f"{type(error).__name__}: {error}",
            do="leave them out of what the environment gets or returns, or use gym_env_vectorize_mode='sync'",
        ) from error
