"""Several actors of one class on Ray: requests and answers, losses and replacements, and the end of all of them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from epibatch.core.errors import ConfigError, EpibatchError, EpibatchWarning, WorkerLostError, add_note

from .connection import connect, reserves_cores
from .host import ActorHost, Failure
from .pickling import check_picklable, is_picklable
from .registered import registrations

PlacementStrategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]

_PATIENCE = 20.0  # seconds of starting after which the user is told
_UNITS = {"CPU": "cores", "GPU": "GPUs"}
_GOODBYE = 5.0  # seconds in which idle actors may close what they opened


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    Args:
        index: Index of the actor.
        request: The request as it was given to `submit`.
        value: What the method returned; None with an error. Arrays in it are read-only.
        error: What the method raised, with the actor's traceback as a note; or a `WorkerLostError`.
    """

    index: int
    request: Any
    value: Any = None
    error: Exception | None = None

    @property
    def died(self) -> bool:
        """True if the process is gone, or can not be reached, and the request with it."""
        return isinstance(self.error, WorkerLostError)


@dataclass
class _Actor:
    handle: Any
    restarts: int
    start: Any
    """Ref of its constructor's call; None once that is answered."""
    deadline: float
    in_flight: deque[tuple[Any, Any]] = field(default_factory=deque)
    """Refs with their requests, oldest first."""
    place: tuple[int, str] | None = None
    """Process id and node."""
    is_lost: bool = False


class ActorGroup:
    """Actors with indexes from 1, each with an object of one class in a process of its own.

    Each object is `actor_class(index=index, restarts=number, **arguments)`. Requests to one actor run one after the
    other, in the order of `submit`. What the user registered by name in this process is registered there first. The
    group starts all actors at once, and returns when all constructors did. An actor that dies is found out by `wait`
    or `call`, and is lost until `replace` makes another of its index. All of them end with `stop`, with the group, and
    with this process, however it ends.

    Args:
        actor_class: A class, with a method `progress()` if `progress` is used: it runs in another thread. A method
            `stop()` is called when the group stops, if the actor is idle then.
        count: Number of actors.
        arguments: Keyword arguments of the class, equal for all; they are sent once.
        name: What one of them is, for messages and names of processes: "env runner".
        options: Ray's options of each actor: `num_cpus`, `num_gpus`, `resources`.
        max_restarts: How often each index can be replaced.
        restart: False: no index can be replaced.
        placement_strategy: Ray's strategy of a placement group; None: wherever there is room.
        start_timeout_s: Seconds in which an actor must have started, from the time it is asked for.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: The cluster has no room for the actors.
        WorkerLostError: A process died while it started, or did not start in time.
        Exception: A constructor raised it, with the class it was raised with.
    """

    def __init__(
        self,
        actor_class: Callable[..., Any],
        *,
        count: int,
        arguments: Mapping[str, Any],
        name: str,
        options: Mapping[str, Any],
        max_restarts: int = 0,
        restart: bool = True,
        placement_strategy: PlacementStrategy | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.name = name
        self._max_restarts = max_restarts if restart else 0
        self._start_timeout_s = start_timeout_s
        self._ray = connect(num_cpus_needed=count * options.get("num_cpus", 1))
        self._options = {**options, "max_restarts": 0, "max_task_retries": 0}
        self._can_stop = hasattr(actor_class, "stop")
        self._actors: dict[int, _Actor] = {}
        self._placement: list[Any] = []
        self._release = weakref.finalize(self, _kill_all, self._ray, self._actors, self._placement)
        try:
            self._place(count, placement_strategy)
            self._parts = self._put_parts(actor_class, arguments)
            host = type(name.title().replace(" ", ""), (ActorHost,), {})  # the process is ray::EnvRunner
            self._class = self._ray.remote(concurrency_groups={"progress": 1})(host)
            self._actors.update((index, self._made(index, 0)) for index in range(1, count + 1))
            self._await_start()
        except BaseException:
            self._release()
            raise

    # ------------------------------------------------------------------------------------- who is there

    @property
    def count(self) -> int:
        """Number of actors that the group was made with."""
        return len(self._actors)

    @property
    def indexes(self) -> list[int]:
        """The indexes of actors that are not lost."""
        return [index for index, actor in self._actors.items() if not actor.is_lost]

    @property
    def num_restarts(self) -> int:
        """Number of replacements of all indexes together."""
        return sum(actor.restarts for actor in self._actors.values())

    def restarts_of(self, index: int) -> int:
        """Number of replacements of one index."""
        return self._actors[index].restarts

    def pids(self) -> dict[int, int]:
        """Process ids by index; without those that are lost or have not started."""
        return {index: place[0] for index, place in self._places().items()}

    def nodes(self) -> dict[int, str]:
        """Ray's node ids by index; without those that are lost or have not started."""
        return {index: place[1] for index, place in self._places().items()}

    def _places(self) -> dict[int, tuple[int, str]]:
        self._look_at_starts()
        return {index: a.place for index, a in self._actors.items() if a.place is not None and not a.is_lost}

    # ------------------------------------------------------------------------------------- requests

    def put(self, value: Any) -> Any:
        """Put a value into the object store once; what is returned can be an argument of any number of requests.

        It must be an argument itself, not a part of one. The actor's method receives the value; its arrays are
        read-only there.
        """
        return self._ray.put(value)

    def submit(self, index: int, method: str, *args: Any, request: Any = None) -> None:
        """Ask an actor for one more call of a method; returns at once.

        Args:
            index: The actor.
            method: Name of the method.
            *args: Its arguments.
            request: What the `Answer` says that it answers; None: the method's name.

        Raises:
            WorkerLostError: The actor is lost.
        """
        actor = self._actors[index]
        if actor.is_lost:
            raise self._lost(index, "a process that is lost and was not replaced")
        actor.in_flight.append((self._called(index, method, args), method if request is None else request))

    def in_flight(self, index: int | None = None) -> int:
        """Number of requests without an answer, of one actor or of all."""
        actors = self._actors.values() if index is None else [self._actors[index]]
        return sum(len(actor.in_flight) for actor in actors)

    def requests(self, index: int) -> list[Any]:
        """The requests of an actor that have no answer yet, oldest first."""
        return [request for _, request in self._actors[index].in_flight]

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Answer]:
        """Wait for answers, and return all that are there, in the order of indexes.

        Args:
            timeout: Seconds to wait at most; None: as long as it takes. 0: only look.
            at_least: Number of answers to wait for; fewer if fewer are in flight.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        answers: list[Answer] = []
        while True:
            self._look_at_starts()
            answers += self._expired_starts()
            refs = [ref for actor in self._actors.values() for ref, _ in actor.in_flight]
            missing = min(at_least - len(answers), len(refs))
            ready = self._ready(refs, max(missing, 0), min([end, *self._deadlines()]))
            for index in self._actors:
                answers += self._answers_of(index, ready)
            if len(answers) >= at_least or not self.in_flight() or time.monotonic() >= end:
                return sorted(answers, key=lambda answer: answer.index)

    def call(
        self, method: str, *args: Any, indexes: Iterable[int] | None = None, timeout: float | None = None
    ) -> dict[int, Any]:
        """Call a method of several actors after the requests that they have, and return its values by index.

        Actors that die meanwhile have no value, and are lost. Those that do not answer in time have none either.

        Args:
            method: Name of the method.
            *args: Its arguments.
            indexes: The actors; None: all that are not lost.
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            Exception: The first exception that a method raised, by index.
        """
        called = [index for index in (self.indexes if indexes is None else indexes) if not self._actors[index].is_lost]
        refs = {index: self._called(index, method, args) for index in called}
        ready = self._ready(list(refs.values()), len(refs), math.inf if timeout is None else time.monotonic() + timeout)
        answers = [self._answer(index, method, ref) for index, ref in refs.items() if ref in ready]
        for answer in answers:
            if answer.error is not None and not answer.died:
                raise answer.error
        return {answer.index: answer.value for answer in answers if not answer.died}

    def _called(self, index: int, method: str, args: Sequence[Any]) -> Any:
        try:
            return self._actors[index].handle.call.remote(method, *args)
        except Exception:  # what Ray or an object's own __reduce__ raises
            names = [getattr(arg, "__qualname__", f"argument {n} of {method}") for n, arg in enumerate(args, 1)]
            check_picklable(dict(zip(names, args)))
            raise

    def progress(self, indexes: Iterable[int], timeout: float) -> dict[int, Any]:
        """Ask actors how far they are, all at once, while they run requests.

        Args:
            indexes: The actors.
            timeout: Seconds to wait.

        Returns:
            What the method `progress()` of each returns, by index; those that do not answer in time are left out. For
            one that starts: minus the seconds that it has left for that.
        """
        self._look_at_starts()
        actors = {index: self._actors[index] for index in indexes if not self._actors[index].is_lost}
        now = time.monotonic()
        told = {index: min(now - a.deadline, 0.0) for index, a in actors.items() if a.start is not None}
        refs = {
            index: actor.handle.progress.options(concurrency_group="progress").remote()
            for index, actor in actors.items()
            if index not in told
        }
        ready = self._ready(list(refs.values()), len(refs), now + timeout)
        for index, ref in refs.items():
            if ref in ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    told[index] = self._ray.get(ref)
        return told

    # ------------------------------------------------------------------------------------- losses

    def kill(self, index: int) -> None:
        """End an actor's process; it is lost then, and its requests are forgotten."""
        self._lose(index)
        self._actors[index].in_flight.clear()

    def replace(self, index: int) -> bool:
        """End an actor's process if it runs, and start another of the same index, without waiting for it.

        The requests of the old one are forgotten (`requests` lists them before). Those to the new one wait until it has
        started; if its constructor raises, they are answered with that.

        Returns:
            False if the index was replaced as often as it can be; it stays lost then.
        """
        self.kill(index)
        restarts = self._actors[index].restarts
        if restarts >= self._max_restarts:
            return False
        self._actors[index] = self._made(index, restarts + 1)
        return True

    def stop(self) -> None:
        """End all actors; idle ones have their `stop()` called first. A second call does nothing."""
        if not self._release.alive:
            return
        try:
            if self._can_stop and self._ray.is_initialized():
                idle = [self._actors[index].handle for index in self.indexes if not self.in_flight(index)]
                goodbyes = [handle.call.remote("stop") for handle in idle]
                self._ready(goodbyes, len(goodbyes), time.monotonic() + _GOODBYE)
        finally:
            self._release()
            for actor in self._actors.values():
                actor.in_flight.clear()

    def _lose(self, index: int) -> None:
        actor = self._actors[index]
        actor.is_lost, actor.start = True, None
        self._ray.kill(actor.handle)

    def _lost(self, index: int, found: str) -> WorkerLostError:
        return WorkerLostError(
            self._label(index),
            expected="a process that runs until it is stopped",
            found=found,
            do="look for the cause in the lines above, in Ray's logs of that node, and in its memory use",
        )

    def _label(self, index: int) -> str:
        place = self._actors[index].place
        return f"{self.name} {index}" + (f" (process {place[0]})" if place else "")

    # ------------------------------------------------------------------------------------- start

    def _place(self, count: int, strategy: PlacementStrategy | None) -> None:
        if not reserves_cores(self._ray):
            self._options["num_cpus"] = 0
            self._check_there_is_enough(count)
            if strategy == "STRICT_SPREAD" and count > 1:
                raise self._no_room(f"{count} nodes, one for each (placement_strategy STRICT_SPREAD)")
            return
        if strategy is None:
            return
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._asked()
        group = placement_group([bundle or {"CPU": 0.001}] * count, strategy=strategy)
        self._placement.append(group)
        if not group.wait(timeout_seconds=self._start_timeout_s):
            raise self._no_room(f"{count} times {_amounts(bundle)} with placement_strategy {strategy}")
        self._options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(placement_group=group)

    def _asked(self) -> dict[str, float]:
        """Return what each process asks of Ray."""
        asked = {"CPU": self._options.get("num_cpus", 1), "GPU": self._options.get("num_gpus")}
        return {key: value for key, value in {**asked, **(self._options.get("resources") or {})}.items() if value}

    def _check_there_is_enough(self, count: int) -> None:
        """Raise if this machine, which no other will join, can never have what all processes ask for."""
        total = self._ray.cluster_resources()
        for key, value in self._asked().items():
            if count * value > total.get(key, 0.0):
                raise ConfigError(
                    self._setting(key),
                    expected=f"no more than there is: this machine has {total.get(key, 0.0):g} {_UNITS.get(key, key)}",
                    found=f"{value:g} for each of {count} processes",
                    do="ask for less, or let RAY_ADDRESS name a cluster that has it",
                )

    def _setting(self, resource: str) -> str:
        """Return the name of the setting that asks for a resource."""
        what = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(resource, "custom_resources")
        return f"{what}_per_{self.name.replace(' ', '_')}"

    def _put_parts(self, actor_class: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        names = registrations()
        if not is_picklable(names):
            names = names.sendable(is_picklable)
        try:
            return self._ray.put((actor_class, names, dict(arguments)))
        except TypeError:
            check_picklable({f"{self.name}s, argument {key}": value for key, value in arguments.items()})
            raise

    def _made(self, index: int, restarts: int) -> _Actor:
        handle = self._class.options(**self._options).remote([path or os.getcwd() for path in sys.path])
        start = handle.build.remote(index, restarts, self._parts)
        return _Actor(handle, restarts, start, time.monotonic() + self._start_timeout_s)

    def _await_start(self) -> None:
        """Wait until all constructors have returned, or one has raised."""
        end = time.monotonic() + self._start_timeout_s
        is_told = False
        while starting := [index for index, actor in self._actors.items() if actor.start is not None]:
            now = time.monotonic()
            if now >= end:
                raise self._not_started(starting)
            if not is_told and now >= end - self._start_timeout_s + _PATIENCE:
                is_told = True
                why = self._not_started(starting, f"yet; {end - now:.0f} s are left")
                warnings.warn(EpibatchWarning(str(why)), stacklevel=4)
            limit = end if is_told else min(end, now + _PATIENCE)
            self._ready([self._actors[index].start for index in starting], 1, limit)
            errors = self._look_at_starts()
            if errors:
                if len(errors) > 1:
                    add_note(errors[0], f"{len(errors)} of {self.count} processes failed; this is the first.")
                raise errors[0]

    def _look_at_starts(self) -> list[Exception]:
        """Note the actors whose constructors have returned, and return what others raised."""
        starts = {actor.start: index for index, actor in self._actors.items() if actor.start is not None}
        errors = []
        for ref in self._ready(list(starts), 0, 0.0) if starts else ():
            index = starts[ref]
            answer = self._answer(index, "start", ref)
            self._actors[index].start = None
            self._actors[index].place = answer.value
            if answer.error is not None:
                errors.append(answer.error)
        return errors

    def _deadlines(self) -> list[float]:
        return [actor.deadline for actor in self._actors.values() if actor.start is not None]

    def _expired_starts(self) -> list[Answer]:
        answers = []
        for index, actor in self._actors.items():
            if actor.start is not None and time.monotonic() >= actor.deadline:
                self._lose(index)
                found = f"no process that started within {self._start_timeout_s:g} s; {self._room()}"
                answers += self._all_lost(index, self._lost(index, found))
        return answers

    def _not_started(self, starting: list[int], when: str = "") -> Exception:
        free = self._ray.available_resources()
        asked = self._asked()
        if any(free.get(key, 0.0) < value for key, value in asked.items()):
            wait = f"where {len(starting)} of {self.count} processes have no room"
            return self._no_room(f"{self.count} times {_amounts(asked)}", f"{wait}{when and ' '}{when}")
        return WorkerLostError(
            f"{self.name}s",
            expected=f"{self.count} processes that start within {self._start_timeout_s:g} s",
            found=f"{len(starting)} that have not started{when and ' '}{when}",
            do="start fewer on this machine, or look at what their constructors wait for",
        )

    def _no_room(self, asked: str, when: str = "") -> ConfigError:
        return ConfigError(
            f"{self.name}s",
            expected=f"room for {asked}",
            found=f"{self._room()}{when and ', '}{when}",
            do="start more nodes, start fewer processes, or let each ask for less: "
            + ", ".join(map(self._setting, self._asked())),
        )

    def _room(self) -> str:
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        amounts = [
            f"{free.get(key, 0.0):g} of {total.get(key, 0.0):g} {key}"
            for key in sorted({*total, *self._asked()})
            if not key.startswith("node:") and "memory" not in key
        ]
        nodes = len([node for node in self._ray.nodes() if node["Alive"]])
        return f"{nodes} node{'' if nodes == 1 else 's'} with {', '.join(amounts)} free"

    # ------------------------------------------------------------------------------------- answers

    def _ready(self, refs: list[Any], at_least: int, end: float) -> set[Any]:
        """Wait for some of the refs until `end`, and return all that are ready."""
        if not refs:
            return set()
        if at_least:
            left = None if end == math.inf else max(end - time.monotonic(), 0.0)
            self._ray.wait(refs, num_returns=at_least, timeout=left)
        return set(self._ray.wait(refs, num_returns=len(refs), timeout=0)[0])

    def _not_sent(self, index: int, cause: Exception) -> EpibatchError:
        last_line = str(cause).strip().splitlines()[-1]
        is_loading = isinstance(cause, self._ray.exceptions.RaySystemError)
        error = EpibatchError(
            self._label(index),
            expected="arguments and values that can be pickled, and unpickled in the other process",
            found=last_line if is_loading else f"{type(cause).__name__}: {cause}",
            do="install the same packages on every node, and send no open files, locks or connections",
        )
        error.__cause__ = cause
        return error

    def _answers_of(self, index: int, ready: set[Any]) -> list[Answer]:
        actor, answers = self._actors[index], []
        while actor.in_flight and actor.in_flight[0][0] in ready:
            ref, request = actor.in_flight.popleft()
            answers.append(self._answer(index, request, ref))
            if answers[-1].died:
                answers += self._all_lost(index, answers[-1].error)
        return answers

    def _all_lost(self, index: int, error: Exception | None) -> list[Answer]:
        """Answer all requests of an actor that is lost."""
        requests = self.requests(index)
        self._actors[index].in_flight.clear()
        return [Answer(index, request, error=error) for request in requests]

    def _answer(self, index: int, request: Any, ref: Any) -> Answer:
        errors = self._ray.exceptions
        try:
            value = self._ray.get(ref)
        except (errors.RayTaskError, errors.RaySystemError) as error:  # a value or an argument cannot be (un)pickled
            cause = getattr(error, "cause", error)
            if isinstance(cause, errors.RaySystemError) or not isinstance(cause, errors.RayError):
                return Answer(index, request, error=self._not_sent(index, cause))
            found = str(cause)
        except errors.ObjectLostError:
            found = "an answer that was lost with its node"
        except errors.RayError as error:
            found = str(error)
        else:
            if isinstance(value, Failure):
                return Answer(index, request, error=value.exception(self._label(index)))
            return Answer(index, request, value)
        self._lose(index)
        return Answer(index, request, error=self._lost(index, _cause(found)))


def _cause(text: str) -> str:
    """Shorten what Ray says of a process that died."""
    text = " ".join(text.split()).partition(" Some common causes")[0]
    match = re.search(r"The actor is dead because .*", text)
    return match[0] if match else text


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {key}" for key, value in resources.items() if value) or "nothing"


def _kill_all(ray: Any, actors: Mapping[int, _Actor], placement: Iterable[Any]) -> None:
    if not ray.is_initialized():
        return
    for actor in actors.values():
        actor.is_lost = True
        ray.kill(actor.handle)
    if placement:
        from ray.util.placement_group import remove_placement_group

        for group in placement:
            remove_placement_group(group)
