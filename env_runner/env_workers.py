"""Environments of several agents in this process or in one of their own, with the same interface."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from gymnasium.vector.utils import CloudpickleWrapper

from epibatch.core.errors import RunnerError

from .env_checks import MultiAgentCalls, check_multi_agent_env, portable, spaces_of


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


_CONNECTION_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)
_PATIENCE = 5
"""Seconds that a process has to end."""


class EnvFacts(NamedTuple):
    """Constant facts of an environment.

    Args:
        observation_spaces: By agent, in the order in which the environment names them.
        action_spaces: The same.
        render_mode: The mode it was made with.
        metadata: Metadata of its class.
    """

    observation_spaces: dict[Any, Any]
    action_spaces: dict[Any, Any]
    render_mode: str | None
    metadata: dict[str, Any]


class EnvHandle(Protocol):
    """An environment with asynchronous calls: `send` starts a call, `receive` returns its result.

    Attributes:
        facts: Spaces and the like.
        broken: True if it cannot be called any more.
    """

    facts: EnvFacts
    broken: bool

    def send(self, call: str, *args: Any) -> None:
        """Start a call: "reset" with seed and options, "step" with actions, "get" with a name and arguments."""

    def receive(self) -> Any:
        """Return the result of the call, or raise its error."""

    def close(self) -> None:
        """Close the environment, whatever state it is in."""


def _facts(env: Any) -> EnvFacts:
    return EnvFacts(*spaces_of(env), env.render_mode, dict(env.metadata))


def _call_env(calls: MultiAgentCalls, call: str, args: tuple[Any, ...]) -> Any:
    if call == "reset":
        return calls.reset(*args)
    if call == "step":
        return calls.step(*args)
    name, positional, keywords = args
    found = calls.env.get_wrapper_attr(name)
    return found(*positional, **keywords) if callable(found) else found


class LocalEnv:
    """An environment in this process.

    Args:
        env_fn: Makes it.
        copy: True to copy the return values.
    """

    broken = False

    def __init__(self, env_fn: Callable[[], Any], *, copy: bool = True) -> None:
        self.env = check_multi_agent_env(env_fn(), env_fn)
        self.facts = _facts(self.env)
        self._calls = MultiAgentCalls(self.env, copy=copy)
        self._wanted: tuple[str, tuple[Any, ...]] = ("", ())

    def send(self, call: str, *args: Any) -> None:
        """Store the call."""
        self._wanted = call, args

    def receive(self) -> Any:
        """Make the stored call."""
        return _call_env(self._calls, *self._wanted)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class WorkerEnv:
    """An environment in a process of its own, which ends with this object or with its parent.

    Args:
        env_fn: Makes it there.
        context: Start method of `multiprocessing`; None: the platform's.

    Raises:
        RunnerError: the process ended before it had made the environment. Errors of `env_fn` are raised here.
    """

    def __init__(self, env_fn: Callable[[], Any], *, context: str | None = None) -> None:
        ways = multiprocessing.get_context(context)
        self._pipe, theirs = ways.Pipe()
        # the types of multiprocessing do not say that every context has processes
        self._process: Any = ways.Process(  # type: ignore[attr-defined]
            target=_serve, args=(CloudpickleWrapper(env_fn), theirs, self._pipe), daemon=True
        )
        with workers_ignore_ctrl_c():
            self._process.start()
        theirs.close()
        self._waiting = True
        self._gone = False

    @property
    def broken(self) -> bool:
        """True if the process has ended, or still works on a call without a `receive`."""
        return self._gone or self._waiting

    def started(self) -> WorkerEnv:
        """Wait until the environment is made."""
        self.facts = self.receive()
        return self

    def send(self, call: str, *args: Any) -> None:
        """Start the call in the process."""
        self._waiting = True
        try:
            self._pipe.send((call, args))
        except _CONNECTION_ERRORS:
            return  # receive() says so
        except BaseException:
            self._waiting = False  # nothing was sent: arguments that cannot be pickled
            raise

    def receive(self) -> Any:
        """Wait for the call, and return its result or raise its error."""
        try:
            good, answer = self._pipe.recv()
        except _CONNECTION_ERRORS as error:
            self._gone = True
            self._process.join(_PATIENCE)
            raise RunnerError(
                "worker process",
                expected="an answer",
                found=f"{type(error).__name__}: it has ended, with exit code {self._process.exitcode}",
                do="see what it printed, and find the cause with gym_env_vectorize_mode='sync'",
            ) from error
        self._waiting = False
        if not good:
            raise answer
        return answer

    def close(self) -> None:
        """Close the environment and end its process; a process that does not respond is killed."""
        if not self.broken:
            with contextlib.suppress(*_CONNECTION_ERRORS):
                self.send("close")
                if self._pipe.poll(_PATIENCE):
                    self._pipe.recv()
        else:
            self._process.terminate()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(env_fn: Callable[[], Any], pipe: Connection, parents: Connection) -> None:
    """Make the environment in the process, then answer calls until it is closed or the parent ends."""
    parents.close()  # otherwise this process would keep its own pipe open
    env: Any = None
    try:
        raw_env = env_fn()
        env = check_multi_agent_env(raw_env, getattr(env_fn, "fn", env_fn))
        calls = MultiAgentCalls(env, copy=False)
        answer: tuple[bool, Any] = True, _facts(env)
    except Exception as error:
        answer = False, portable(error)
    try:
        _send(pipe, answer)
        while env is not None:
            call, args = pipe.recv()
            if call == "close":
                break
            try:
                answer = True, _call_env(calls, call, args)
            except Exception as error:
                answer = False, portable(error)
            _send(pipe, answer)
    except _CONNECTION_ERRORS:
        pass  # the parent has ended
    finally:
        if env is not None:
            env.close()
    with contextlib.suppress(*_CONNECTION_ERRORS):
        pipe.send((True, None))


def _send(pipe: Connection, answer: tuple[bool, Any]) -> None:
    try:
        pipe.send(answer)
    except _CONNECTION_ERRORS:
        raise
    except Exception as error:
        problem = RunnerError(
            "worker process",
            expected="values that can be sent to another process",
            found=f"{type(error).__name__}: {error}",
            do="leave them out of what the environment returns, or use gym_env_vectorize_mode='sync'",
        )
        pipe.send((False, problem))
