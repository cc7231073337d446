"""A queue of train batches, made of fragments of runners as they come."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.errors import EpibatchWarning, RunnerError
from epibatch.core.metrics import WEIGHTS_SEQ_NO
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import check_count

from ..episodes import count_steps, join_episodes

_IN_FLIGHT = 2
"""Requests of each runner in flight, if the config does not say how many."""
_PATIENCE = 1000
"""Fragments without a step, one after the other, that are borne."""
_JUDGED = 200
"""Updates after which a queue that is always empty, or overflows, is warned of."""


class QueueSettings(NamedTuple):
    """The queue of train batches.

    Args:
        size: Batches that it holds; the oldest is dropped for one more.
        uses: Updates from each batch.
        at_random: True if batches are drawn at random, False if the oldest comes first.
        name: The setting of its size.
    """

    size: int
    uses: int
    at_random: bool
    name: str


@dataclass
class _Batch:
    """A train batch: the version of the weights that acted, steps, and episodes of each fragment; and uses left."""

    parts: list[tuple[int, int, Sequence[Any]]] = field(default_factory=list)
    has_agent_steps: bool = False
    uses: int = 0

    @property
    def steps(self) -> int:
        return sum(steps for _, steps, _ in self.parts)


class FragmentQueue:
    """A source that takes fragments of runners as they come, and gives the train batches that they fill.

    Runners in other processes have the next request before they have answered the last one, so that they never wait
    for the learner, and the learner waits only if the queue is empty. What a lost runner was sampling is lost.

    Args:
        config: The algorithm's, a `FragmentConfig`.
        group: The runners, an `EnvRunnerGroup`.

    Attributes:
        is_late: True if steps of the newest batch acted with weights of before the last update.
        num_env_steps: environment steps that came since the batch before.
    """

    def __init__(self, config: Any, group: Any) -> None:
        self._config, self._group, self._rules = config, group, config.queue
        self._batches: list[_Batch] = []
        self._open = _Batch()
        self.is_late, self.num_env_steps = False, 0
        self._new_steps = 0  # that came since the last batch
        self._draws = self._dropped = 0
        self._sent = -math.inf  # version of the weights that runners were sent last
        self._ages: list[tuple[int, int]] = []  # updates between acting and learning, and steps, since the last report
        self._reported = 0
        self._waited = 0.0
        self._began = time.perf_counter()
        self._empty = self._overflows = 0
        self._has_warned = False

    def sample(self) -> Sequence[Any]:
        """Return the episodes of the next train batch; with several uses of each, also of one that was there before.

        Raises:
            RunnerError: no agent completes a step in very many fragments, or all runners were lost and not replaced.
        """
        if self._config.num_env_runners:
            self._take(self._group.ready(timeout=0.0))
            self._request()
            self._empty += not self._batches
        patience = _PATIENCE
        while not self._batches:
            patience = _PATIENCE if self._take(self._next_fragments()) else patience - 1
            if not patience:
                several = self._config.is_multi_agent
                raise RunnerError(
                    "Algorithm.train",
                    expected="agents that act and observe again" if several else "env steps",
                    found=f"none in {_PATIENCE} fragments",
                    do="check that the environment's steps succeed"
                    + (", and return observations of agents that acted" if several else ""),
                )
            if self._config.num_env_runners:
                self._request()
        batch = self._draw()
        version = self._version()
        ages = [(version - acted, steps) for acted, steps, _ in batch.parts]
        self.is_late = any(age > 0 for age, _ in ages)
        self._ages += ages
        self._warn()
        self.num_env_steps, self._new_steps = self._new_steps, 0
        return join_episodes([part for *_, part in batch.parts])

    def _next_fragments(self) -> list[tuple[int, Sequence[Any]]]:
        if not self._config.num_env_runners:
            return [(0, self._group.sample())]
        start = time.perf_counter()
        fragments: list[tuple[int, Sequence[Any]]] = self._group.ready()
        self._waited += time.perf_counter() - start
        return fragments

    def _request(self) -> None:
        """Let each runner have its next requests, with new weights if it is their turn."""
        version = self._version()
        is_due = version - self._sent >= self._config.broadcast_interval
        given = self._config.settings.env_runners.given().get("max_requests_in_flight_per_env_runner", _IN_FLIGHT)
        if self._group.request(each=given, new_weights=is_due) and is_due:
            self._sent = version

    def _version(self) -> int:
        runner = self._group.local_env_runner
        return int(runner.get_state((WEIGHTS_SEQ_NO,))[WEIGHTS_SEQ_NO]) + int(runner.num_edits)

    def _take(self, fragments: Sequence[tuple[int, Sequence[Any]]]) -> bool:
        """Add fragments to the train batch that is being filled, and to the queue what is full.

        Returns:
            True if there is a step in them; of several agents, one that an agent has completed.
        """
        config, has_some = self._config, False
        for _, part in fragments:
            steps = count_steps(part)
            self._new_steps += steps
            if not steps:
                continue
            size, batch = steps, self._open
            agent_steps = sum(chunk.agent_steps() for chunk in part) if config.is_multi_agent else steps
            if config.is_multi_agent and config.count_steps_by == "agent_steps":
                size = agent_steps
            batch.has_agent_steps |= agent_steps > 0
            has_some |= agent_steps > 0
            batch.parts.append((self._acted_with(part), size, part))
            if batch.steps >= config.total_train_batch_size and batch.has_agent_steps:
                self._open, batch.uses = _Batch(), self._rules.uses
                self._batches.append(batch)
                if len(self._batches) > self._rules.size:
                    self._overflows += self._drop([self._batches.pop(0)])
        return has_some

    def _acted_with(self, part: Sequence[Any]) -> int:
        """Return the version of the weights that acted in a fragment; all its steps have the same."""
        for episode in part:
            agents = episode.agent_episodes.values() if hasattr(episode, "agent_episodes") else [episode]
            for chunk in agents:
                if len(chunk) and WEIGHTS_SEQ_NO in chunk.extra_model_outputs:
                    return int(chunk.get_extra_model_outputs(WEIGHTS_SEQ_NO, -1))
        return self._version()

    def _drop(self, batches: Sequence[_Batch]) -> int:
        """Count the steps that are dropped before they were ever learned from; return the number of their batches."""
        unused = self._unused(batches)
        self._dropped += _steps_in(unused)
        return len(unused)

    def _unused(self, batches: Sequence[_Batch]) -> list[_Batch]:
        return [batch for batch in batches if batch.uses in (0, self._rules.uses)]

    def _draw(self) -> _Batch:
        """Take a batch for one more update."""
        place = 0
        if self._rules.at_random:
            uses = np.cumsum([batch.uses for batch in self._batches])
            seed = self._config.seed
            stream = None if seed is None else seed_of(random_stream(seed, "queue", self._draws))
            place = int(np.searchsorted(uses, np.random.default_rng(stream).integers(uses[-1]), "right"))
        self._draws += 1
        batch = self._batches[place]
        batch.uses -= 1
        if not batch.uses:
            del self._batches[place]
        return batch

    def _warn(self) -> None:
        """Warn once of a queue that has always been empty, or drops more than half of the batches."""
        if self._has_warned or not self._config.num_env_runners or self._draws % _JUDGED:
            return
        where, seconds = f"{type(self._config).__name__}, {self._rules.name}", time.perf_counter() - self._began
        warning = None
        if self._empty * self._rules.uses >= _JUDGED and self._waited > seconds / 2:
            warning = EpibatchWarning(
                where,
                expected="train batches in the queue when the learner wants one",
                found=f"none in {self._empty} of {_JUDGED} updates: it waited {self._waited:.0f} of {seconds:.0f} s",
                do="set a higher num_env_runners or num_envs_per_env_runner, if there are cores for them",
            )
        elif self._overflows > _JUDGED:
            warning = EpibatchWarning(
                where,
                expected="a learner that is as fast as the runners",
                found=f"{self._overflows} train batches that were dropped, and {_JUDGED} that were learned from",
                do="set a lower num_env_runners, a higher train_batch_size or num_learners"
                + (", or a lower circular_buffer_iterations_per_batch" if self._rules.uses > 1 else ""),
            )
        if warning is not None:
            self._has_warned = True
            warnings.warn(warning, stacklevel=4)
        self._empty, self._overflows, self._waited, self._began = 0, 0, 0.0, time.perf_counter()

    def learned(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take no values of rows."""

    def sample_ahead(self) -> None:
        """Do nothing: runners have their requests."""

    def forget(self) -> None:
        """Drop what is in the queue."""
        self._drop([*self._batches, self._open])
        self._batches, self._open = [], _Batch()
        self._new_steps, self._sent = 0, -math.inf

    def get_metrics(self) -> dict[str, Any]:
        """Return the length of the queue, what was dropped, and the age of the rows that were learned from."""
        dropped, self._reported = self._dropped - self._reported, self._dropped
        ages, self._ages = self._ages, []
        steps = sum(steps for _, steps in ages)
        return {
            "queue": {
                "num_batches": len(self._batches),
                "num_env_steps_dropped": dropped,
                "num_env_steps_dropped_lifetime": self._dropped,
                "age_of_rows_mean": sum(age * steps for age, steps in ages) / max(steps, 1),
                "age_of_rows_max": max((age for age, _ in ages), default=0),
            }
        }

    def get_state(self) -> dict[str, Any]:
        """Return the counts; the queue itself is not saved, so what is in it counts as dropped."""
        dropped = self._dropped + _steps_in(self._unused([*self._batches, self._open]))
        return {"draws": self._draws, "dropped": dropped, "reported": self._reported}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over the counts; `forget` then drops what is in the queue, and counts none of it again."""
        names = ("draws", "dropped", "reported")
        draws, dropped, reported = (check_count(f"state of a queue, {name!r}", state[name]) for name in names)
        self._draws, self._reported = draws, reported
        self._dropped = dropped - _steps_in(self._unused([*self._batches, self._open]))


def _steps_in(batches: Sequence[_Batch]) -> int:
    return sum(count_steps(part) for batch in batches for *_, part in batch.parts)
