"""The runners of an algorithm: one in this process, or several in processes of their own."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epibatch.cluster.actor_group import ActorGroup, Answer
from epibatch.cluster.fingerprint import fingerprint
from epibatch.cluster.pickling import check_picklable
from epibatch.core.errors import EpibatchWarning, RunnerError, WorkerLostError, add_note
from epibatch.core.metrics import WEIGHTS_SEQ_NO
from epibatch.core.restoring import restoring
from epibatch.core.shared_moments import rebased, unsynchronised

from ..connectors.step_watches import StepWatch
from ..episodes.indexing import HistoryWatch
from ..episodes.packing import join_episodes, unpack_episodes
from .env_runner import check_amounts
from .group.hosted_env_runner import Delivery, HostedEnvRunner, SampleRequest
from .group.make_runner import make_runner
from .runner_config import GroupConfig

__all__ = ["EnvRunnerGroup"]

_STEPS = "num_env_steps_sampled_lifetime"
_ROUNDS = 10  # losses of each runner, without a delivery of any, that are borne if the config says nothing
_GOES_ON = "a runner that samples until it is stopped"
_LATE = 0.2  # share of `sample_timeout_s` between two looks at which runners are late


@dataclass(frozen=True)
class _Call:
    """A request that runs a function with the runner."""

    tag: str | None


@dataclass(frozen=True)
class _Start:
    """A request that a replaced runner answers when it has started, or with what its constructor raised."""


@dataclass
class _Member:
    """The facts that the group knows of the runner of one index.

    Attributes:
        parts: Version of the pipelines and modules that were sent last.
        weights: Sequence number of the weights that were sent last.
        states: Version of the merged statistics that were sent last.
        delivered: Number of its newest delivery whose statistics are among the merged ones.
        progress: Steps that it had taken when the group heard of it last.
        heard: The time of that, or when it got something to do.
        running: Episodes that go on after the newest delivery.
        num_bytes: Size of the episodes of its newest delivery; 0 if it is not known.
        asked: Number, among all requests for episodes, of the newest one to it.
        failures: Number of failures in a row.
        was_late: True if its present work has taken longer than `sample_timeout_s`.
        last_states: States of its pipelines, of its newest delivery that was returned.
        own_states: States that a runner which replaced another one begins with: those that no other runner has.
    """

    parts: int = 0
    weights: Any = None
    states: int = 0
    delivered: int = 0
    progress: int = 0
    heard: float = 0.0
    running: int = 0
    num_bytes: int = 0
    asked: int = 0
    failures: int = 0
    was_late: bool = False
    last_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    own_states: dict[str, dict[str, Any]] = field(default_factory=dict)


def _ray_actors(actor_class: type, *, arguments: Mapping[str, Any], **settings: Any) -> ActorGroup:
    """Make the processes, after a check that each setting of the config can be sent to them."""
    check_picklable(_settings_of(arguments["config"]))
    return ActorGroup(actor_class, arguments=arguments, **settings)


def _settings_of(config: GroupConfig) -> dict[str, Any]:
    """Return all settings that were given, by their names."""
    sections = {name: getattr(config.settings, name).given() for name in config.settings.sections()}
    return {f"{name}.{key}": value for name, given in sections.items() for key, value in given.items()}


class EnvRunnerGroup:
    """The runners of an algorithm.

    Without `num_env_runners` it is the runner of this process. Otherwise each of N processes has a runner, and the
    runner of this process never samples: it has spaces, pipelines, module and metrics for all. Its pipelines' running
    statistics are those of all episodes that were returned. Weights and statistics travel with the requests. Pieces
    whose states cannot be merged go by what their own runner saw; here they have the first runner's state.

    A runner whose process is lost, or hangs, is replaced within the budget of the config's `fault_tolerance` section.
    The others go on meanwhile. What an environment raises counts as a failure of its runner, which then samples again.

    Args:
        config: Environment, pipelines, module and the number of runners.
        make_actors: Makes the processes, with the arguments of `ActorGroup`; default: one of these.

    Attributes:
        local_env_runner: The runner of this process.
        seconds_waited: Seconds in which runners in other processes had no request so far, of all together.

    Raises:
        MissingExtraError: `num_env_runners` needs Ray, which is not installed.
        ConfigError: A setting cannot be sent to other processes; or as for `EnvRunner` and `ActorGroup`.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> group = EnvRunnerGroup(config=PPOConfig().environment("CartPole-v1"))
        >>> sum(len(episode) for episode in group.sample(num_timesteps=20))
        20
        >>> group.stop()
    """

    def __init__(self, *, config: GroupConfig, make_actors: Callable[..., Any] = _ray_actors) -> None:
        self._config = config
        self._actors: Any = None
        self.local_env_runner = make_runner(_local_config(config) if config.num_env_runners else config, 0)
        self._members: dict[int, _Member] = {}
        self._replaced: set[int] = set()  # those that have not started yet
        self._arrived: list[tuple[int, Delivery]] = []
        self._counted: list[tuple[int, Sequence[Any]]] = []  # episodes that were counted and not returned yet
        self._results: list[tuple[str | None, int, Any]] = []
        self._parts, self._parts_ref = 0, None
        self._seen: Any = self._structure() if config.num_env_runners else None
        self._weights: tuple[Any, Any] = (None, None)
        self._states, self._states_ref = 0, None
        self._states_data = pickle.dumps({name: {} for name in self.local_env_runner.pipelines})
        self._merges = bool(config.merge_env_runner_states)
        self._broadcasts = self._merges and config.broadcast_env_runner_states
        self._warned: set[Any] = set()
        self._has_raised = False  # a loss
        self.seconds_waited = 0.0
        self._num_requests = self._steps_lost = self._episodes_lost = self._failures = self._lost_in_a_row = 0
        if config.num_env_runners:
            try:
                self._start(make_actors)
            except BaseException:
                self.local_env_runner.stop()
                raise

    def _start(self, make_actors: Callable[..., Any]) -> None:
        config = self._config
        self._actors = make_actors(
            HostedEnvRunner,
            count=config.num_env_runners,
            arguments={"config": _hosted_config(config)},
            name="env runner",
            options={
                "num_cpus": config.num_cpus_per_env_runner,
                "num_gpus": config.num_gpus_per_env_runner,
                "resources": config.custom_resources_per_env_runner,
            },
            max_restarts=config.max_num_env_runner_restarts,
            restart=config.restart_failed_env_runners,
            placement_strategy=config.placement_strategy,
        )
        self._members = {index: _Member() for index in self._actors.indexes}

    # -- sampling ------------------------------------------------------------------------------

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | str | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
        as_tensors: bool = False,
    ) -> Sequence[Any]:
        """Let all runners sample at the same time, and return their episodes in the order of the runners.

        Runners that are in the middle of a `request` finish it, and its episodes are returned; no other is made then.
        If a runner fails, the episodes of the others are returned, which are fewer than were asked for. If all fail,
        they sample again.

        Args:
            num_timesteps: As for `EnvRunner.sample`, of all runners together.
            num_episodes: Likewise. Without either number each runner samples as if it were the only one.
            explore: As for `EnvRunner.sample`.
            random_actions: Likewise.
            force_reset: Likewise.
            as_tensors: As for `TensorEnvRunner.sample`, if there are no other processes.

        Raises:
            RunnerError: A runner is lost and is not replaced; or as `EnvRunner.sample`.
            Exception: What a piece, a callback or the module raised in a runner, or an environment too often.
        """
        arguments: dict[str, Any] = {
            "num_timesteps": num_timesteps,
            "num_episodes": num_episodes,
            "explore": explore,
            "random_actions": random_actions,
            "force_reset": force_reset,
        }
        if self._actors is None:
            return self.local_env_runner.sample(**arguments, **({"as_tensors": True} if as_tensors else {}))
        check_amounts(num_timesteps, num_episodes)
        self._check_running()
        while True:
            has_some = self.num_in_flight_async_reqs() or self._arrived or self._counted
            shares = {} if has_some else self._shares(arguments)
            while shares or self.num_in_flight_async_reqs():
                asked = self._ask(shares) if shares else []
                self._receive(None)
                shares = {index: shares[index] for index in self._available() if index in shares.keys() - asked}
            parts = self._taken()
            if parts:
                return join_episodes([part for _, part in parts])

    def request(
        self, *, at_most: int | None = None, each: int | None = None, new_weights: bool = True, **arguments: Any
    ) -> int:
        """Let the runners sample, without waiting for them; `ready` returns their episodes.

        Each runner gets as many requests as `max_requests_in_flight_per_env_runner` and `max_bytes_in_flight` allow;
        those that were asked longest ago come first.

        Args:
            at_most: Number of new requests to all runners together; None: no limit.
            each: Requests of each runner in flight, in place of `max_requests_in_flight_per_env_runner`.
            new_weights: False: runners go on with the weights that were sent last.
            **arguments: Those of `EnvRunner.sample`, for each runner.

        Returns:
            The number of new requests.
        """
        if self._actors is None:
            raise _no_processes("request")
        check_amounts(arguments.get("num_timesteps"), arguments.get("num_episodes"))
        self._check_running()
        wanted = dict.fromkeys(self._available(), arguments)
        each = each or self._config.max_requests_in_flight_per_env_runner
        return len(self._ask(wanted, each, at_most, new_weights))

    def ready(self, timeout: float | None = None) -> list[tuple[int, Sequence[Any]]]:
        """Wait until a runner has answered a request, and return the episodes of all that have.

        Args:
            timeout: Seconds to wait at most; None: until there is one, or no request is left.

        Returns:
            Pairs of a runner's number and its episodes, in the order of the numbers.

        Raises:
            Exception: As `sample`.
        """
        if self._actors is None:
            raise _no_processes("ready")
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if not (self._arrived or self._counted) and self.num_in_flight_async_reqs():
                self._receive(None if left == math.inf else max(left, 0.0))
            parts = self._taken()
            if parts or left <= 0 or not self.num_in_flight_async_reqs():
                return parts

    def _check_running(self) -> None:
        """Take what came, and replace runners that were lost since the last answer.

        Raises:
            RunnerError: The group was stopped, or no runner is left.
        """
        self.local_env_runner.assert_healthy()
        self._receive(0.0)
        lost = {index: self._actors.requests(index) for index in self._members if index not in self._actors.indexes}
        errors = [self._lose(index, lost[index], _lost(index, "a process that was lost")) for index in lost]
        _raise_first(errors)
        if not self._members:
            raise RunnerError(
                "EnvRunnerGroup",
                expected="at least one runner",
                found=f"none of {self._config.num_env_runners}: all were lost, and not replaced",
                do="build a new Algorithm, from a checkpoint",
            )

    def _available(self) -> list[int]:
        """Return the runners to ask: those whose processes have started, or all if none has."""
        self._note_started()
        return [index for index in self._members if index not in self._replaced] or list(self._members)

    def _note_started(self) -> list[int]:
        """Return runners that were replaced and have started meanwhile."""
        if not self._replaced:
            return []
        started = sorted(self._replaced & self._actors.pids().keys())
        self._replaced.difference_update(started)
        return started

    def _shares(self, arguments: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
        """Return the arguments of each runner that has something to do, which together take what was asked for."""
        indexes, shares = self._available(), dict[int, Mapping[str, Any]]()
        for position, index in enumerate(indexes):
            amounts = {k: _share(arguments[k], position, len(indexes)) for k in ("num_timesteps", "num_episodes")}
            if not position or 0 not in amounts.values():
                shares[index] = {**arguments, **amounts}
        return shares

    def _ask(
        self,
        wanted: Mapping[int, Mapping[str, Any]],
        each: int = 1,
        at_most: int | None = None,
        new_weights: bool = True,
    ) -> list[int]:
        """Send requests until each runner has so many, first to those asked longest ago; return whom they went to."""
        counts = self._update(new_weights)
        sent: list[int] = []
        for turn in range(each):
            for index in sorted(wanted, key=lambda index: self._members[index].asked):
                if len(sent) != at_most and self._asked(index) <= turn and self._has_room(index):
                    self._submit(index, wanted[index], counts)
                    sent.append(index)
        return sent

    def _asked(self, index: int) -> int:
        """Return the number of a runner's requests for episodes that have no answer yet."""
        return sum(isinstance(request, SampleRequest) for request in self._actors.requests(index))

    def _has_room(self, index: int) -> bool:
        """True if the bytes of one more sample are allowed; of a size that is not known, one of each runner is."""
        most, known = self._config.max_bytes_in_flight, max(member.num_bytes for member in self._members.values())
        if most is None or not self.num_in_flight_async_reqs():
            return True
        if not known:
            return not self._asked(index)
        sizes = {i: member.num_bytes or known for i, member in self._members.items()}
        waiting = sum(delivery.num_bytes for _, delivery in self._arrived)
        asked = sum(size * self._asked(i) for i, size in sizes.items())
        return bool(waiting + asked + sizes[index] <= most)

    def _submit(self, index: int, arguments: Mapping[str, Any], counts: Mapping[str, Any]) -> None:
        """Send a request, with what the runner does not have of parts, weights and statistics."""
        member = self._members[index]
        request = SampleRequest(
            arguments=arguments,
            weights_seq_no=self._weights[0],
            num_edits=self.local_env_runner.num_edits,
            num_env_steps=counts[_STEPS],
            lookback=counts["required_lookback"],
            included=member.delivered,
            most_lost=self._steps_of(arguments),
        )
        parts = self._parts_ref if member.parts != self._parts else None
        weights = self._weights[1] if member.weights != self._weights[0] or parts is not None else None
        states = self._states_ref if member.states != self._states or parts is not None else None
        self._send(index, "sample", request, parts, weights, states, member.own_states, request=request)
        member.parts, member.weights, member.states = self._parts, self._weights[0], self._states
        member.own_states = {}
        self._num_requests += 1
        member.asked = self._num_requests

    def _send(self, index: int, method: str, *args: Any, request: Any) -> None:
        if not self._actors.in_flight(index):
            self._members[index].heard = time.monotonic()
        self._actors.submit(index, method, *args, request=request)

    def _steps_of(self, arguments: Mapping[str, Any]) -> int:
        """Return the environment steps that a request asks for; 0 if it asks for episodes."""
        config = self._config
        if arguments.get("num_timesteps") is not None:
            return int(arguments["num_timesteps"])
        if arguments.get("num_episodes") is not None or config.batch_mode == "complete_episodes":
            return 0
        return int(config.get_rollout_fragment_length() * config.num_envs_per_env_runner)

    # -- what travels with requests ----------------------------------------------------------------

    def _structure(self) -> tuple[list[int], list[Any], bytes]:
        """Return the numbers of edits of pipelines; numbers and objects that tell changes of settings and modules; and
        the pieces' attributes, which users may set in place, so that nothing counts it.
        """
        local, config = self.local_env_runner, self._config
        for pipeline in local.pipelines.values():
            pipeline.plan()
        edits = [pipeline.num_edits for pipeline in local.pipelines.values()]
        modules = local.module.values() if hasattr(local.module, "values") else [local.module]
        changes = [config.num_changes[section] for section in ("env_runners", "multi_agent", "rl_module")]
        return edits, [*changes, config.get_rollout_fragment_length(), *modules], self._fingerprint()

    def _fingerprint(self) -> bytes:
        """Return bytes that change with public attributes of pieces; others, as caches, may change by themselves."""
        pieces = [piece for pipeline in self.local_env_runner.pipelines.values() for piece in pipeline.pieces()]
        settings = ({name: value for name, value in vars(piece).items() if name[0] != "_"} for piece in pieces)
        return fingerprint(settings, self.local_env_runner.module, (HistoryWatch, StepWatch))

    def _update(self, new_weights: bool) -> dict[str, Any]:
        """Prepare what runners get with their next requests; return the local runner's counts."""
        local, parts = self.local_env_runner, self._parts
        self._update_parts()
        counts: dict[str, Any] = local.get_state((WEIGHTS_SEQ_NO, "required_lookback", _STEPS))
        version = counts[WEIGHTS_SEQ_NO]
        needs_weights = new_weights or self._weights[0] is None or self._parts != parts  # of modules that changed
        if needs_weights and self._weights[0] != version:
            self._weights = version, self._actors.put(local.module.get_state())
        if self._broadcasts:
            states = {name: self._merged(pipeline, []) for name, pipeline in local.pipelines.items()}
            data = pickle.dumps(states)
            if data != self._states_data:
                self._states, self._states_data, self._states_ref = self._states + 1, data, self._actors.put(states)
        return counts

    def _update_parts(self) -> None:
        """Prepare pipelines and modules for the runners if they were changed."""
        seen = self._structure()
        if seen == self._seen:
            return
        parts = self._whole_parts()
        try:
            self._parts_ref = self._actors.put(parts)  # if that fails, nothing counts as sent
        except Exception:  # what Ray or an object's own __reduce__ raises
            pipelines = self.local_env_runner.pipelines.items()
            check_picklable({f"{n}, {name}": piece for n, p in pipelines for name, piece in zip(p.names, p)})
            check_picklable(_settings_of(self._config))
            raise
        if seen[0] != self._seen[0]:
            self.local_env_runner.pipelines_edited()
        self._seen, self._parts = seen, self._parts + 1

    def _whole_parts(self) -> dict[str, Any]:
        local, config = self.local_env_runner, _hosted_config(self._config)
        module = local.module
        if config.device != self._config.device:
            module = copy.deepcopy(module).to(config.device)
        return {"config": config, "pipelines": local.pipelines, "module": module, "spaces": local.get_spaces()}

    def sync_weights(self, **_: Any) -> None:
        """Let the runners act with the module's present weights from their next samples on, under the next number.

        `EnvRunner.weights_updated` of the local runner does the same; an Algorithm calls it after each update.
        """
        self.local_env_runner.weights_updated()

    def sync_env_runner_states(self, **_: Any) -> None:
        """Do nothing: merged statistics travel with every request; RLlib's name."""

    # -- answers -----------------------------------------------------------------------------------

    def _receive(self, timeout: float | None) -> None:
        """Wait for answers, keep what came, and replace runners that are lost or hang.

        Args:
            timeout: Seconds to wait at most; None: until there is one, or a runner was lost.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        limit = self._config.sample_timeout_s
        while True:
            waits = min(max(end - time.monotonic(), 0.0), math.inf if limit is None else limit * _LATE)
            answers = self._actors.wait(None if waits == math.inf else waits)
            now = time.monotonic()
            lost: dict[int, list[Answer]] = {}
            errors: list[Exception | None] = []
            for answer in answers:
                self._members[answer.index].heard = now
                if answer.died or self._failed_to_start(answer):
                    lost.setdefault(answer.index, []).append(answer)
                else:
                    errors.append(self._take(answer))
            for index, unanswered in lost.items():
                errors.append(self._lose(index, [answer.request for answer in unanswered], unanswered[0].error))
            hanging = [] if limit is None else self._hanging(limit)
            for index in hanging:
                error = _lost(index, f"no step for {limit:g} s (sample_timeout_s)")
                errors.append(self._lose(index, self._actors.requests(index), error))
            _raise_first(errors)
            if answers or hanging or time.monotonic() >= end or not self._actors.in_flight():
                return

    def _failed_to_start(self, answer: Answer) -> bool:
        """True if a request was answered with what the constructor of a replaced runner raised."""
        index = answer.index
        return answer.error is not None and index in self._replaced and index not in self._actors.pids()

    def _take(self, answer: Answer) -> Exception | None:
        """Keep an answer, and return the error that the caller has to raise; None if it has none."""
        index, request = answer.index, answer.request
        if answer.error is not None:
            return answer.error
        if isinstance(request, _Start):
            return None
        if isinstance(request, _Call):
            self._results.append((request.tag, index, answer.value))
            return None
        delivery, member = answer.value, self._members[index]
        self.seconds_waited += delivery.waited
        member.progress, member.running = delivery.progress, delivery.running
        member.num_bytes, member.was_late = delivery.num_bytes or member.num_bytes, False
        self._arrived.append((index, delivery))
        if delivery.failure is None:
            member.failures = self._lost_in_a_row = 0
            return None
        return self._failed(index, delivery.failure.exception(f"env runner {index}"))

    def _failed(self, index: int, error: Exception) -> Exception | None:
        """Count a failure of a runner; return the error if it has to be raised."""
        member, config = self._members[index], self._config
        member.failures += 1
        self._failures += 1
        most = config.num_consecutive_env_runner_failures_tolerance
        if member.failures > most:
            add_note(
                error,
                f"It is failure {member.failures} of env runner {index} in a row; the limit of {most} is "
                "num_consecutive_env_runner_failures_tolerance.",
            )
            return error
        if not (config.restart_failed_env_runners or config.ignore_env_runner_failures):
            return error
        notes = "\n".join(getattr(error, "__notes__", []))
        self._warn_once(
            index,
            f"env runner {index}, sample()",
            expected="environments that do not fail",
            found=f"{type(error).__name__}: {error}\n{notes}",
            do="correct the environment; its runner samples again. Later failures of this runner are not shown",
        )
        return None

    def _warn_once(self, kind: Any, where: str, *, expected: str, found: str, do: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(EpibatchWarning(where, expected=expected, found=found, do=do), stacklevel=3)

    def _hanging(self, limit: float) -> list[int]:
        """Return the runners that should have answered and take no steps."""
        now = time.monotonic()
        late = [i for i, m in self._members.items() if self._actors.in_flight(i) and now - m.heard >= limit]
        hanging = self._stuck(late)
        slow = [self._members[index] for index in late if index not in {*hanging, *self._replaced}]
        if any(member.was_late for member in slow):  # it has stepped since
            self._warn_once(
                "slow",
                "env_runners.sample_timeout_s",
                expected=f"samples that take at most {limit:g} s",
                found="runners that take longer; they are waited for as long as they step",
                do="set a larger sample_timeout_s, or a smaller rollout_fragment_length or train_batch_size",
            )
        for member in slow:
            member.was_late = True
        return hanging

    def _stuck(self, late: Sequence[int]) -> list[int]:
        """Return those of some runners that neither start nor have taken a step since they were heard of last."""
        told = self._actors.progress(late, self._config.env_runner_health_probe_timeout_s) if late else {}
        stuck = []
        for index in late:
            progress, member = told.get(index), self._members[index]
            if progress is None or progress == member.progress:
                stuck.append(index)
                continue
            member.heard = time.monotonic()
            member.progress = max(progress, 0)  # lower than before if a function that it calls counts from anew
        return stuck

    def _lose(self, index: int, requests: Iterable[Any], error: Exception | None) -> RunnerError | None:
        """Count what is lost with a runner, and replace it; return an error if the others do not go on without it."""
        member, config = self._members.pop(index), self._config
        self._steps_lost += sum(request.most_lost for request in requests if isinstance(request, SampleRequest))
        self._episodes_lost += member.running
        self._failures += 1
        self._lost_in_a_row += 1
        failures = member.failures + 1
        most = config.num_consecutive_env_runner_failures_tolerance
        rounds = config.settings.fault_tolerance.given().get("num_consecutive_env_runner_failures_tolerance", _ROUNDS)
        is_hopeless = self._lost_in_a_row > rounds * config.num_env_runners
        too_often = failures > most or is_hopeless
        self._replaced.discard(index)
        if not too_often and self._actors.replace(index):
            own_states = self._own_states(member.last_states or member.own_states)
            self._members[index] = _Member(heard=time.monotonic(), failures=failures, own_states=own_states)
            self._members = dict(sorted(self._members.items()))
            self._replaced.add(index)
            self._actors.submit(index, "progress", request=_Start())
            restarts, most = self._actors.restarts_of(index), config.max_num_env_runner_restarts
            self._warn_once(
                type(error),
                f"env runner {index}",
                expected=_GOES_ON,
                found=f"{_cause(error)}; replaced, {restarts} of {most} times (max_num_env_runner_restarts). Later "
                "losses of this kind are not shown",
                do=getattr(error, "do", None) or "look at what its environments need to start",
            )
            return None
        self._actors.kill(index)
        if config.ignore_env_runner_failures and self._members and not too_often:
            warning = EpibatchWarning(
                f"env runner {index}",
                expected=_GOES_ON,
                found=f"{error}; the other {len(self._members)} go on (ignore_env_runner_failures)",
                do="set restart_failed_env_runners=True, and max_num_env_runner_restarts high enough, to replace it",
            )
            warnings.warn(warning, stacklevel=2)
            return None
        restarts = self._actors.restarts_of(index)
        found = f"{failures} failures in a row" if too_often else "a process that was lost or hung"
        found += f", {self._lost_in_a_row} of all runners together, without one sample" if is_hopeless else ""
        raised = RunnerError(
            f"env runner {index}",
            expected=_GOES_ON,
            found=f"{found}, after {restarts} restarts: {_cause(error)}",
            do="look for the cause above. Set restart_failed_env_runners=True for restarts, "
            "max_num_env_runner_restarts for more of them, num_consecutive_env_runner_failures_tolerance for more "
            "failures in a row, or ignore_env_runner_failures=True to go on with the others",
        )
        raised.__cause__ = error
        self._has_raised = True
        return raised

    def _taken(self) -> list[tuple[int, Sequence[Any]]]:
        """Add the statistics and metrics of deliveries that arrived, in the order of runners; return their episodes.

        If statistics cannot be added, deliveries are still there at the next call; if metrics, their episodes are.
        """
        arrived = sorted(self._arrived, key=lambda entry: (entry[0], entry[1].number))
        parts = [(index, unpack_episodes(d.episodes)) for index, d in arrived if d.failure is None]
        self._merge(arrived)
        self._arrived, self._counted, errors = [], [*self._counted, *parts], list[Exception]()
        for _, delivery in arrived:
            try:
                self.local_env_runner.add_metrics(delivery.metrics)
            except Exception as error:
                errors.append(error)
        _raise_first(errors)
        parts, self._counted = self._counted, []
        return parts

    def _merge(self, arrived: Sequence[tuple[int, Delivery]]) -> None:
        """Add the statistics of deliveries to those of the local pipelines, or change nothing if that fails."""
        if not arrived:
            return
        pipelines = self.local_env_runner.pipelines
        first = next((d.states[-1] for index, d in reversed(arrived) if index == min(self._members, default=0)), {})
        present = {}
        for name, pipeline in pipelines.items():
            new = [states[name] for _, delivery in arrived for states in delivery.states if name in states]
            merged = self._merged(pipeline, new) if self._merges else {}
            present[name] = {**merged, **self._first_ones(pipeline, first.get(name, {}), merged)}
        was_changed = self._fingerprint() != self._seen[2]
        for name, state in present.items():
            pipelines[name].set_state(state)
        if not was_changed:  # else the next request has what was changed
            self._seen = *self._seen[:2], self._fingerprint()
        self._states_data = b""
        for index, delivery in arrived:
            if index in self._members:
                self._members[index].delivered = delivery.number
                self._members[index].last_states = copy.deepcopy(delivery.states[-1])
            for name, pipeline in pipelines.items():
                if delivery.history.get(name) is not None:
                    pipeline.history.depth = max(pipeline.history.depth, delivery.history[name])
                    pipeline.history.calls += 1
                if pipeline.watch is not None:
                    pipeline.watch.add(delivery.piece_seconds.get(name, {}))

    def _merged(self, pipeline: Any, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return a pipeline's statistics together with what is new in states of the runners."""
        own = pipeline.get_state()
        merged: dict[str, Any] = pipeline.merge_states([own, *(rebased(unsynchronised(s), own) for s in states)])
        return merged

    def _own_states(self, states: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the states of a runner that no other has, by pipeline, without those of random generators."""
        own = {}
        for name, pipeline in self.local_env_runner.pipelines.items():
            merged = self._merged(pipeline, []) if self._broadcasts else {}
            kept = _without_generators(pipeline, states.get(name, {}))
            own[name] = {piece: state for piece, state in kept.items() if piece not in merged}
        return own

    def _first_ones(self, pipeline: Any, state: Mapping[str, Any], merged: Mapping[str, Any]) -> dict[str, Any]:
        """Return states of a runner that are not merged, without those of random generators."""
        own = _without_generators(pipeline, state)
        names = [name for name in own if name not in merged]
        if names and self._merges:
            self._warn_once(
                "states",
                f"{type(pipeline).__name__}, states of {', '.join(names)}",
                expected="pieces whose states can be merged, as runners in several processes have one each",
                found="pieces without merge_states; each runner goes by its own, and this process by the first one's",
                do="write merge_states(states) in the piece, or keep the state in the episodes",
            )
        return {name: copy.deepcopy(own[name]) for name in names}

    # -- the runners -------------------------------------------------------------------------------

    def foreach_env_runner(
        self,
        func: Callable[..., Any],
        *,
        kwargs: Mapping[str, Any] | None = None,
        local_env_runner: bool = True,
        remote_worker_ids: Iterable[int] | None = None,
        timeout_seconds: float | None = None,
        **_: Any,
    ) -> list[Any]:
        """Return a function's value for each runner, the local one first; RLlib's name.

        Args:
            func: Called with the runner, in its process.
            kwargs: Further keyword arguments.
            local_env_runner: False: leave the runner of this process out.
            remote_worker_ids: Numbers of the other runners; None: all.
            timeout_seconds: Seconds to wait for the others; those that do not answer in time are left out.
        """
        keywords = dict(kwargs or {})
        values = [func(self.local_env_runner, **keywords)] if local_env_runner else []
        if self._actors is not None:
            indexes = self._chosen(remote_worker_ids)
            answers = self._actors.call("apply", func, keywords, indexes=indexes, timeout=timeout_seconds)
            values += [answers[index] for index in sorted(answers)]
        return values

    def foreach_env(self, func: Callable[[Any], Any]) -> list[list[Any]]:
        """Return a function's values for the environments of each runner, the local one first; RLlib's name.

        Args:
            func: As for `EnvRunner.foreach_env`. If others sample, the list of the local runner is empty.
        """
        own = [] if self._actors is not None else self.local_env_runner.foreach_env(func)
        return [own, *self.foreach_env_runner(lambda runner: runner.foreach_env(func), local_env_runner=False)]

    def foreach_env_runner_async(
        self,
        func: Callable[..., Any],
        *,
        tag: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        remote_worker_ids: Iterable[int] | None = None,
        **_: Any,
    ) -> int:
        """Call a function with the runner in each of the other processes; `fetch_ready_async_reqs` has the values.

        Args:
            func: Called with the runner.
            tag: A name to fetch these values by.
            kwargs: Further keyword arguments.
            remote_worker_ids: Numbers of the runners; None: all.

        Returns:
            The number of calls.
        """
        indexes = self._chosen(remote_worker_ids) if self._actors is not None else []
        for index in indexes:
            self._send(index, "apply", func, dict(kwargs or {}), request=_Call(tag))
        return len(indexes)

    def fetch_ready_async_reqs(
        self, *, tags: str | Iterable[str] | None = None, timeout_seconds: float | None = 0.0, **_: Any
    ) -> list[tuple[int, Any]]:
        """Return the values of `foreach_env_runner_async` that came: pairs of a runner's number and its value.

        Args:
            tags: Those of the calls; None: all.
            timeout_seconds: Seconds to wait until there is one; None: as long as it takes.
        """
        if self._actors is not None and self._actors.in_flight():
            self._receive(timeout_seconds)
        chosen = None if tags is None else {tags} if isinstance(tags, str) else set(tags)
        fetched = [(index, value) for tag, index, value in self._results if chosen is None or tag in chosen]
        self._results = [entry for entry in self._results if chosen is not None and entry[0] not in chosen]
        return fetched

    def _chosen(self, indexes: Iterable[int] | None) -> list[int]:
        healthy = self.healthy_env_runner_ids()
        return healthy if indexes is None else [index for index in indexes if index in healthy]

    def num_remote_env_runners(self) -> int:
        """Return the number of runners in other processes, lost ones included."""
        return 0 if self._actors is None else int(self._config.num_env_runners)

    def healthy_env_runner_ids(self) -> list[int]:
        """Return the numbers of the runners in other processes that have started and are not lost."""
        self._note_started()
        return [index for index in self._members if index not in self._replaced]

    def num_healthy_remote_env_runners(self) -> int:
        """Return the number of runners in other processes that have started and are not lost."""
        return len(self.healthy_env_runner_ids())

    def num_healthy_env_runners(self) -> int:
        """Return the number of runners that have started and are not lost, the local one included."""
        return 1 + self.num_healthy_remote_env_runners()

    def num_remote_worker_restarts(self) -> int:
        """Return how often runners were replaced."""
        return 0 if self._actors is None else int(self._actors.num_restarts)

    def num_in_flight_async_reqs(self, tag: str | None = None) -> int:
        """Return the number of requests without an answer.

        Args:
            tag: That of `foreach_env_runner_async`; None: requests for episodes.
        """
        if self._actors is None:
            return 0
        if tag is None:
            return sum(map(self._asked, self._actors.indexes))
        requests = [request for index in self._actors.indexes for request in self._actors.requests(index)]
        return sum(isinstance(request, _Call) and request.tag == tag for request in requests)

    def probe_unhealthy_env_runners(self, **_: Any) -> list[int]:
        """Return the numbers of runners that were replaced and have started since the last look; RLlib's name."""
        return self._note_started()

    def fault_report(self) -> dict[str, int]:
        """Return how many runners are healthy, and what failed or was lost so far.

        Returns:
            `num_healthy_env_runners` in other processes; `num_env_runner_restarts`; `num_env_runner_failures`, those of
            environments included; `num_env_steps_lost`, the steps of requests that were never answered, at most;
            `num_episodes_lost`, running episodes of lost runners whose earlier chunks were returned.
        """
        return {
            "num_healthy_env_runners": self.num_healthy_remote_env_runners(),
            "num_env_runner_restarts": self.num_remote_worker_restarts(),
            "num_env_runner_failures": self._failures,
            "num_env_steps_lost": self._steps_lost,
            "num_episodes_lost": self._episodes_lost,
        }

    # -- state -------------------------------------------------------------------------------------

    def checkpoint_reset(self) -> None:
        """Start new episodes at the next call, as `EnvRunner.checkpoint_reset`.

        What was requested and not returned is dropped, with its metrics and statistics.
        """
        self.local_env_runner.checkpoint_reset()
        if self._actors is not None:
            self._drain()
            self._called("checkpoint_reset", indexes=self.healthy_env_runner_ids())
            for member in self._members.values():
                member.states = member.running = 0

    def _drain(self) -> None:
        """Wait for the requests in flight, and drop what they bring."""
        while self.num_in_flight_async_reqs():
            self._receive(None)
        self._arrived, self._counted = [], []

    def _called(self, method: str, *args: Any, indexes: Sequence[int]) -> dict[int, Any]:
        """Call a method of runners, and return its values; a runner that hangs has none, and is replaced."""
        limit = self._config.sample_timeout_s
        values: dict[int, Any] = self._actors.call(method, *args, indexes=indexes, timeout=limit)
        late = [index for index in indexes if index not in values and index in self._actors.indexes]
        lost = {i: _lost(i, f"no answer for {limit} s (sample_timeout_s), and no step") for i in self._stuck(late)}
        _raise_first([self._lose(index, self._actors.requests(index), error) for index, error in lost.items()])
        busy = [index for index in late if index not in lost]
        return {**values, **self._called(method, *args, indexes=busy)} if busy else values

    def get_state(self) -> dict[str, Any]:
        """Return what runners in other processes share with no other: random streams and states that are not merged.

        Everything else is in the state of the local runner. Requests in flight are finished first.
        """
        if self._actors is None:
            return {}
        while self.num_in_flight_async_reqs():
            with contextlib.suppress(*([RunnerError] if self._has_raised else [])):  # the run ends: save what there is
                self._receive(None)
        states = self._called("get_state", indexes=self.healthy_env_runner_ids())
        return {"runners": {str(index): state for index, state in states.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`, and start new episodes.

        Runners that the state lacks begin their random streams, so the number of runners may be another one.

        Raises:
            CheckpointError: It is none that `get_state` gave.
        """
        if self._actors is None:
            return
        self._drain()
        self._update_parts()
        with restoring("EnvRunnerGroup.set_state", "runners"):
            runners = {int(index): part for index, part in state.get("runners", {}).items()}
            for index in self.healthy_env_runner_ids():
                member = self._members[index]
                if member.parts != self._parts:
                    self._called("replace_parts", self._parts_ref, indexes=[index])
                    member.parts = self._parts
                self._called("set_state", runners.get(index), indexes=[index])
        self._weights = None, None  # other weights may have the number of those that the runners have
        for member in self._members.values():
            member.weights, member.states, member.running = None, 0, 0

    def stop(self) -> None:
        """End all processes, and close the environments."""
        try:
            if self._actors is not None:
                self._actors.stop()
        finally:
            self._members = {}
            self.local_env_runner.stop()


def _share(amount: int | None, position: int, count: int) -> int | None:
    """Return one of `count` shares of an amount; the first ones are larger by 1 if it cannot be divided."""
    return None if amount is None else (amount + count - 1 - position) // count


def _without_generators(pipeline: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of pieces that the pipeline has, except of those that draw random numbers."""
    pieces = dict(zip(pipeline.names, pipeline))
    return {name: part for name, part in state.items() if part and name in pieces and not hasattr(pieces[name], "seed")}


def _raise_first(errors: Iterable[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _local_config(config: GroupConfig) -> GroupConfig:
    """Return the config of the runner that stays in this process and does not sample: with one environment."""
    config = config.copy()
    if config.gym_env_vectorize_mode == "vector_entry_point":
        return config
    one = {"num_envs_per_env_runner": 1, "gym_env_vectorize_mode": "sync", "num_envs_per_worker": 1}
    one["gym_env_batch_size"] = None
    return config.change("EnvRunnerGroup", {"env_runners": one})


def _hosted_config(config: GroupConfig) -> GroupConfig:
    """Return the config of a runner in another process, which has a GPU only if Ray reserves one for it."""
    if config.num_gpus_per_env_runner or config.device == "cpu":
        return config
    return config.copy().change("EnvRunnerGroup", {"learners": {"device": "cpu"}})


def _lost(index: int, found: str) -> RunnerError:
    return RunnerError(
        f"env runner {index}",
        expected="a runner that takes steps",
        found=found,
        do="look at what its environments do; a larger sample_timeout_s waits longer for their steps",
    )


def _cause(error: Exception | None) -> str:
    """Return what happened to a runner that was lost."""
    if isinstance(error, (RunnerError, WorkerLostError)):
        return str(error.found)
    return f"{type(error).__name__}: {error}"


def _no_processes(method: str) -> RunnerError:
    return RunnerError(
        f"EnvRunnerGroup.{method}",
        expected="runners in other processes, num_env_runners > 0",
        found="the runner of this process alone",
        do="call sample()",
    )
