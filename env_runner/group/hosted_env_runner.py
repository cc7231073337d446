"""A runner in a process of its own, and what it and its `EnvRunnerGroup` send each other."""

from __future__ import annotations

import contextlib
import copy
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epibatch.cluster.host import Failure
from epibatch.core.errors import EpibatchError
from epibatch.core.random_state import get_random_state, seed_everything, set_random_state
from epibatch.core.random_streams import random_stream, runner_stream, seed_of
from epibatch.core.shared_moments import rebased, unsynchronised

from ...connectors.step_watches import PieceSeconds
from ...episodes.packing import pack_episodes
from ...episodes.vector_episodes import VectorEpisodes
from ..envs.env_checks import is_of_environment
from ..runner_config import GroupConfig
from .make_runner import make_runner


@dataclass(frozen=True)
class SampleRequest:
    """A request for episodes.

    Args:
        arguments: Those of `EnvRunner.sample`.
        weights_seq_no: Sequence number of the weights to act with.
        num_edits: Edits of the group's pipelines so far.
        num_env_steps: Environment steps of all runners over the lifetime.
        lookback: Steps that chunks keep at least, as for `EnvRunner.require_lookback`.
        included: Number of the runner's newest delivery whose statistics are among those that come with the request.
        most_lost: Environment steps that are lost if the request is never answered, at most.
    """

    arguments: Mapping[str, Any]
    weights_seq_no: int
    num_edits: int
    num_env_steps: int
    lookback: int | None
    included: int
    most_lost: int


@dataclass(frozen=True)
class Delivery:
    """The answer to a `SampleRequest`.

    Args:
        number: Number of the runner's delivery, from 1.
        episodes: As `pack_episodes` makes them.
        running: Number of episodes among them that go on.
        metrics: What came since the delivery before, for `EnvRunner.add_metrics`.
        states: States of the pipelines by name; `since` is what is new. The last ones are the present ones; there are
            earlier ones if requests before this one failed.
        history: Pipeline -> steps before a chunk's start that its pieces have read so far; None before its first call.
        piece_seconds: Pipeline -> the seconds of each piece, with `time_pieces`.
        progress: What `HostedEnvRunner.progress` returns from now on.
        num_bytes: Size of the episodes; 0 if it was not measured.
        seconds: Time that the request took.
        waited: Seconds before it in which the runner had no request.
        failure: What an environment raised; the episodes that had ended then come with the next delivery.
    """

    number: int
    episodes: Any
    running: int
    metrics: dict[str, Any]
    states: list[dict[str, dict[str, Any]]]
    history: dict[str, int | None]
    piece_seconds: dict[str, dict[str, float]]
    progress: int
    num_bytes: int
    seconds: float
    waited: float
    failure: Failure | None = None


class HostedEnvRunner:
    """A runner in a process of its own.

    Between two deliveries its pipelines have the statistics that the group sent last, those of its own deliveries that
    were not among these, and apart from both what is new. So each observation counts once, in whatever order requests
    and deliveries pass each other.

    Args:
        index: The runner's `worker_index`, from 1.
        restarts: Number of runners with this index that were lost before; each has random streams of its own.
        config: Environment, pipelines and module.

    Attributes:
        runner: The runner.
    """

    def __init__(self, *, index: int, restarts: int, config: GroupConfig) -> None:
        self._index, self._restarts, self._config = index, restarts, config
        stream = self._stream()
        if stream is not None:
            seed_everything(seed_of(random_stream(stream, "process")))
        self.runner = make_runner(config, index)
        if stream is not None and restarts:
            self.runner.seed(stream)
        self._number = 0
        self._pending: list[tuple[int, dict[str, Any]]] = []  # deliveries that are not in the group's statistics yet
        self._undelivered: list[dict[str, dict[str, Any]]] = []  # states at the ends of requests that failed
        self._is_delivered = True
        self._replaced = 0
        self._idle_since: float | None = None
        self._watch()
        self._steps, self._first = 0, self.runner.num_env_steps_sampled_lifetime

    def _watch(self) -> None:
        for pipeline in self.runner.pipelines.values():
            pipeline.watch = PieceSeconds() if self._config.time_pieces else None

    def _stream(self) -> np.random.SeedSequence | None:
        if self._config.seed is None:
            return None
        stream = runner_stream(self._config.seed, self._index)
        return random_stream(stream, "restart", self._restarts) if self._restarts else stream

    def progress(self) -> int:
        """Return the environment steps that this runner took; may be called from another thread meanwhile."""
        return int(self._steps + self.runner.num_env_steps_sampled_lifetime - self._first)

    def sample(
        self,
        request: SampleRequest,
        parts: Mapping[str, Any] | None,
        weights: Any,
        states: Mapping[str, dict[str, Any]] | None,
        own_states: Mapping[str, dict[str, Any]],
    ) -> Delivery:
        """Sample as a request says.

        Args:
            request: What to sample.
            parts: Arguments of `EnvRunner.replace_parts`, if pipelines or modules have changed.
            weights: Weights of the module; None: those that it has.
            states: Merged states of the pipelines by name; None: go on with the own ones.
            own_states: Other states to begin with: those of the runner that this one replaced.

        Raises:
            Exception: What a piece, a callback or the module raised; errors of environments are in the delivery.
        """
        started = time.perf_counter()
        runner = self.runner
        if not self._is_delivered:
            self._undelivered.append(self._states())
        self._is_delivered = False
        if parts is not None:
            self.replace_parts(parts)
        self._steps = self.progress()
        runner.catch_up(
            weights,
            weights_seq_no=request.weights_seq_no,
            num_edits=request.num_edits,
            num_env_steps=request.num_env_steps,
        )
        self._first = runner.num_env_steps_sampled_lifetime
        runner.require_lookback(request.lookback)
        for name, state in own_states.items():
            runner.pipelines[name].set_state(copy.deepcopy(state))
        self._take_states(states, request.included)
        episodes: Sequence[Any] = []
        failure = None
        try:
            episodes = runner.sample(**request.arguments)
        except Exception as error:
            if not is_of_environment(error):
                raise
            failure = Failure.of(error)
        return self._delivery(episodes, failure, started)

    def _delivery(self, episodes: Any, failure: Failure | None, started: float) -> Delivery:
        self._number += 1
        states = [*self._undelivered, self._states()]
        if self._config.merge_env_runner_states and self._config.broadcast_env_runner_states:
            self._pending += ((self._number, unsynchronised(part)) for part in states)
        self._undelivered, self._is_delivered = [], True
        packed = pack_episodes(episodes)
        delivery = Delivery(
            number=self._number,
            episodes=packed,
            running=_running(episodes),
            metrics=self.runner.take_metrics(),
            states=states,
            history={
                name: pipeline.history.depth if pipeline.history.calls else None
                for name, pipeline in self.runner.pipelines.items()
            },
            piece_seconds={n: p.watch.take() for n, p in self.runner.pipelines.items() if p.watch is not None},
            progress=self.progress(),
            num_bytes=0 if self._config.max_bytes_in_flight is None else _size(packed),
            seconds=(now := time.perf_counter()) - started,
            waited=0.0 if self._idle_since is None else started - self._idle_since,
            failure=failure,
        )
        self._idle_since = now
        return delivery

    def _states(self) -> dict[str, dict[str, Any]]:
        return {name: pipeline.get_state() for name, pipeline in self.runner.pipelines.items()}

    def _take_states(self, states: Mapping[str, dict[str, Any]] | None, included: int) -> None:
        """Begin with the group's statistics, and those of own deliveries that these lack, as what is known."""
        if states is not None:
            self._pending = [entry for entry in self._pending if entry[0] > included]
        for name, pipeline in self.runner.pipelines.items():
            known = pipeline.merge_states([pipeline.get_state()])
            if states is not None:
                base = copy.deepcopy(states[name])  # arrays from another process are read-only
                own = [part[name] for _, part in self._pending] + [unsynchronised(p[name]) for p in self._undelivered]
                others = [rebased(part, base) for part in own]
                merged = pipeline.merge_states([base, *others]) if others else base
                known = {**{piece: {} for piece in known}, **merged}
            pipeline.set_state(known)

    def replace_parts(self, parts: Mapping[str, Any]) -> None:
        """Replace pipelines and modules; pieces that were there before by their names keep their states.

        Args:
            parts: Arguments of `EnvRunner.replace_parts`.
        """
        self._replaced += 1
        states = self._states()
        self.runner.replace_parts(**parts)
        self._config = parts["config"]
        self._watch()
        stream = random_stream(self._stream() or np.random.SeedSequence(), "pipelines", self._replaced)
        for (name, pipeline), child in zip(self.runner.pipelines.items(), stream.spawn(2)):
            pipeline.seed(child)  # else all runners would draw as the group's pipelines
            for piece in states[name].keys() & set(pipeline.names):
                with contextlib.suppress(EpibatchError):  # another piece of that name
                    pipeline.set_state({piece: states[name][piece]})

    def apply(self, function: Callable[..., Any], keywords: Mapping[str, Any]) -> Any:
        """Return a function's value for the runner."""
        return function(self.runner, **keywords)

    def checkpoint_reset(self) -> None:
        """Start new episodes at the next request, as `EnvRunner.checkpoint_reset`; drop what was not returned."""
        self.runner.checkpoint_reset()
        self._forget()

    def _forget(self) -> None:
        """Drop what was counted and not delivered, or delivered and dropped."""
        self.runner.take_metrics()
        self._pending, self._undelivered, self._is_delivered = [], [], True

    def get_state(self) -> dict[str, Any]:
        """Return what this runner shares with no other: random streams and states that are not merged."""
        runner = self.runner.get_state()
        own = {"reset_seeds": runner["reset_seeds"]}
        for name, pipeline in self.runner.pipelines.items():
            state = runner[f"{name}_connector"]
            merged = pipeline.merge_states([state]) if self._config.merge_env_runner_states else {}
            own[f"{name}_connector"] = {piece: part for piece, part in state.items() if piece not in merged}
        return {"runner": own, "random": get_random_state()}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore a state from `get_state`, and start new episodes; None: begin the random streams.

        What was counted and not delivered is dropped.
        """
        self._forget()
        for pipeline in self.runner.pipelines.values():
            pipeline.set_state({piece: {} for piece in pipeline.merge_states([pipeline.get_state()])})
        if state is not None:
            self.runner.set_state(copy.deepcopy(dict(state["runner"])))
            set_random_state(state["random"])
            return
        stream = self._stream()
        if stream is not None:
            seed_everything(seed_of(random_stream(stream, "process")))
            self.runner.seed(stream)
        self.runner.checkpoint_reset()

    def stop(self) -> None:
        """Close the environments."""
        self.runner.stop()


def _running(episodes: Any) -> int:
    """Return the number of episodes that go on."""
    if isinstance(episodes, VectorEpisodes):
        return int(np.sum(~(episodes.terminateds() | episodes.truncateds())))
    return sum(not episode.is_done for episode in episodes)


def _size(packed: Any) -> int:
    """Return the bytes that are sent for a value."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    return len(data) + sum(buffer.raw().nbytes for buffer in buffers)
