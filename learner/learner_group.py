"""`LearnerGroup`: all learners of an algorithm, in this process or in processes of their own."""

from __future__ import annotations

import heapq
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from epibatch.cluster import ActorGroup, check_picklable
from epibatch.cluster.fingerprint import fingerprint
from epibatch.core.errors import ConfigError, EpibatchWarning, OtherLearnerError, WorkerLostError

from ..connectors.step_watches import PieceSeconds
from ..episodes import VectorEpisodes, pack_episodes
from .learner import data_of, env_steps_of, no_data
from .minibatches import has_loss, row_steps, rows_of
from .together.hosted_learner import HostedLearner, Setup, UpdateAnswer

__all__ = ["LearnerGroup", "even_shares"]

ResultT = TypeVar("ResultT")

_REST_S = 60.0
"""Seconds in which all learners answer after one of them failed, as they tell each other of failures."""
_NEWS_S = 2.0
"""Seconds in which a dead process becomes known, after others lost it."""


class LearnerGroup:
    """All learners of an algorithm: one in this process, or several in processes of their own that learn together.

    Several learners share the episodes of an update. Each runs the learner pipeline on its share; gradients are
    reduced over all of them before each step, so they keep equal weights. The learner that is given is their copy
    here: before an update they take over what was changed in it, and after the update it has their new state.

    If a process dies or does not answer, all are started again, take over the state after the last finished update,
    and the update is made again with the same episodes.

    Args:
        learner: The learner; the others are built from its parts.
        num_learners: Processes that learn, as Ray actors; 0: the learner learns itself, without Ray.
        num_cpus_per_learner: Cores that Ray reserves for each of them; "auto": 1, or none beside a GPU.
        num_gpus_per_learner: GPUs that Ray reserves for each of them; with at least one, its modules are there.
        restart_failed_learners: Whether processes are started again; otherwise the first loss is an error.
        max_num_learner_restarts: How often all of them are.
        timeout_s: Seconds in which a request, such as an update, must be answered, and in which a learner must hear of
            the others in each exchange; then they are taken to hang, and started again. An update that works must not
            take longer: the default is half an hour.
        actor_group: The class that starts processes and takes requests to them.

    Attributes:
        learner: the learner; its modules and connector are those that the algorithm shows and saves.
        num_learners: as given.

    Raises:
        MissingExtraError: Ray is needed and not installed.
        ConfigError: a part of the learner cannot be sent to other processes, or the cluster is too small.

    Examples:
        >>> LearnerGroup("the learner").foreach_learner(len)
        [11]
    """

    def __init__(
        self,
        learner: Any,
        *,
        num_learners: int = 0,
        num_cpus_per_learner: float | Literal["auto"] = "auto",
        num_gpus_per_learner: float = 0,
        restart_failed_learners: bool = True,
        max_num_learner_restarts: int = 100,
        timeout_s: float = 1800.0,
        actor_group: Callable[..., Any] = ActorGroup,
    ) -> None:
        self.learner = learner
        self.num_learners = num_learners
        self._timeout_s = timeout_s
        self._max_restarts = max_num_learner_restarts if restart_failed_learners else 0
        self._num_restarts = 0
        self._actors: Any = None
        self._have_met, self._are_new = False, True  # new: not asked to meet yet
        self._has_checked = self._skips_check = False
        self._sent_parts: bytes | None = None
        self._sent_state: Any = None
        self._row_outputs: dict[str, dict[str, torch.Tensor]] = {}
        self._random: dict[str, Any] = {}  # of the processes, by index, after what they did last
        if num_learners == 0:
            return
        if num_learners > 1 and 0 < num_gpus_per_learner < 1:
            raise ConfigError(
                "num_gpus_per_learner",
                expected="a GPU for each of several learners, which NCCL needs, or none",
                found=f"{num_gpus_per_learner}, and num_learners={num_learners}",
                do="use num_gpus_per_learner=1, or fewer learners",
            )
        self._check_picklable()
        cpus = (0 if num_gpus_per_learner else 1) if num_cpus_per_learner == "auto" else num_cpus_per_learner
        self._actors = actor_group(
            HostedLearner,
            count=num_learners,
            arguments={
                "count": num_learners,
                "seed": learner.settings.seed,
                "device": "cuda" if num_gpus_per_learner else "cpu",
                "timeout_s": timeout_s,
            },
            name="learner",
            options={"num_cpus": cpus, "num_gpus": num_gpus_per_learner},
            max_restarts=max_num_learner_restarts,
            restart=restart_failed_learners,
        )

    def _check_picklable(self) -> None:
        check_picklable({f"learner.{name}": part for name, part in self.learner.parts().items()})

    @property
    def is_local(self) -> bool:
        """True if the learner learns in this process."""
        return self._actors is None

    def update(
        self,
        *,
        episodes: Sequence[Any] | None = None,
        batch: Mapping[str, Mapping[str, Any]] | None = None,
        metrics: Any = None,
        num_env_steps: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Learn from episodes or a batch, as `Learner.update` does.

        Args:
            episodes: Chunks as an environment runner returns them.
            batch: `{module_id: {column: tensor}}`, in place of episodes; processes share its rows, sequences as wholes.
            metrics: Logger passed to the pipeline.
            num_env_steps: Environment steps that count as learned from; None: those of the episodes or the batch.

        Raises:
            ConfigError: episodes and a batch, or neither.
            WorkerLostError: a process was lost, and all were started again as often as they may be.
            Exception: as `Learner.update`; the learners go on with what they have then.
        """
        if self._actors is None:
            results: dict[str, dict[str, float]] = self.learner.update(
                episodes=episodes, batch=batch, metrics=metrics, num_env_steps=num_env_steps
            )
            return results
        data, count = data_of(episodes, batch), self.num_learners
        if len(data) == 0:
            raise no_data(data, "LearnerGroup.update")
        places: dict[str, list[npt.NDArray[np.int64]]] = {}
        if isinstance(data, Mapping):
            self.learner.check_batch(dict(data))
            places = {key: even_shares(row_steps(columns), count) for key, columns in data.items() if has_loss(columns)}
            packed: list[Any] = [
                {key: rows_of(columns, places[key][i]) if key in places else columns for key, columns in data.items()}
                for i in range(count)
            ]
        else:
            shares = even_shares(_lengths(data), count)
            packed = [pack_episodes(data, share.tolist() if count > 1 else None) for share in shares]
        times_pieces = None if metrics is None else metrics.times_pieces
        steps = [env_steps_of(data, num_env_steps), *[0] * (count - 1)]  # learners add them up
        self._row_outputs = {}
        answers: dict[int, UpdateAnswer] = self._on_all(
            "update", lambda setup: [(setup, share, times_pieces, own) for share, own in zip(packed, steps)]
        )
        self._has_checked = True
        self._take_over(answers, metrics)
        self._row_outputs = _in_order({index: answer.row_outputs for index, answer in answers.items()}, places)
        return answers[1].results

    @property
    def row_outputs(self) -> dict[str, dict[str, torch.Tensor]]:
        """Module id -> name -> the update rule's values of the rows of the batch that was given, float32 [B, ...].

        They are in the order of that batch's rows; rows without loss have NaN. After an update from episodes they are
        those of the learner pipeline's batch, or none with processes, which keep that.
        """
        return self._row_outputs if self._actors is not None else self.learner.row_outputs

    def _take_over(self, answers: Mapping[int, UpdateAnswer], metrics: Any) -> None:
        """Let the learner here have what the others learned, and tell what they logged and warned of."""
        self._set_learner_state(answers[1].state)
        self._random = {str(index): answer.random for index, answer in answers.items()}
        connector = self.learner.connector
        history, watch = getattr(connector, "history", None), getattr(connector, "watch", None)
        if history is not None:
            depths, calls = zip(*(answer.history for answer in answers.values()))
            history.depth, history.calls = max(history.depth, *depths), max(history.calls, *calls)
        if isinstance(watch, PieceSeconds):
            watch.add(answers[1].piece_seconds)
        if metrics is not None:
            for answer in answers.values():
                metrics.add_from(answer.logged)
        for warning in next((answer.warnings for answer in answers.values() if answer.warnings), []):
            warnings.warn(warning, stacklevel=4)
        self._note_sent()

    def check_next_update(self, compare: bool = True) -> None:
        """Compare acting and training again in the next update, or do not; see `Learner.check_next_update`."""
        if compare:
            self._has_checked, self._sent_parts = False, None
        self._skips_check = not compare
        if self._actors is None:
            self.learner.check_next_update(compare)

    def foreach_learner(self, func: Callable[[Any], ResultT]) -> list[ResultT]:
        """Return a function's result for each learner.

        Args:
            func: It may change the state of the learners, in the same way for all; with processes it is sent to them,
                and the learner here takes over the first one's state.
        """
        if self._actors is None:
            return [func(self.learner)]
        answers = self._on_all("apply", lambda setup: [(setup, func)] * self.num_learners)
        self._set_learner_state(answers[1][1])
        self._random = {str(index): random for index, (*_, random) in answers.items()}
        self._note_sent()
        return [answer[0] for answer in answers.values()]

    # ------------------------------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Return the learners' state, as `Learner.get_state` does, with the random generators of the processes."""
        return {**self.learner.get_state(), **({"random": self._random} if self._random else {})}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`, of a group with as many learners or another number.

        Raises:
            CheckpointError: as `Learner.set_state`; nothing was changed.
        """
        self.learner.set_state(state)
        random = state.get("random")  # checkpoints of one process and of earlier versions have none
        self._random = dict(random) if isinstance(random, Mapping) else {}
        self._sent_state = None

    def fault_report(self) -> dict[str, int]:
        """Return counts of failures of processes; empty without processes."""
        if self._actors is None:
            return {}
        return {"num_learner_restarts": self._num_restarts, "num_healthy_learners": len(self._actors.indexes)}

    def stop(self) -> None:
        """End the processes of the learners, if there are any."""
        if self._actors is not None:
            self._actors.stop()

    def _set_learner_state(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self.learner.set_state(state)

    # ------------------------------------------------------------------------------------- what is sent

    def _changes(self) -> Setup:
        """Return what differs here from what the learners have, which they take over before anything else."""
        parts, state = self._fingerprint(), self.learner.state_version()
        learner: bytes | None = None
        if parts != self._sent_parts:
            if self._sent_parts is not None:
                self._has_checked = False
            is_off = self._has_checked or self._skips_check
            try:
                learner = Setup.pack(self.learner, **({"check_first_update": "off"} if is_off else {}))
            except Exception:  # whatever an object's own __reduce__ raises
                self._check_picklable()
                raise
        is_old = learner is not None or state != self._sent_state
        self._sent_parts, self._sent_state = parts, state
        return Setup(learner, self.learner.get_state() if is_old else None, self._random if is_old else {})

    def _note_sent(self) -> None:
        """Remember what the learners have, which is what the learner here has."""
        self._sent_parts, self._sent_state = self._fingerprint(), self.learner.state_version()

    def _fingerprint(self) -> bytes:
        """Return bytes that change with any part of the learner, but not with the values of its modules.

        Attributes of pieces, modules and losses have no counter, so that they are compared.
        """
        return fingerprint(self.learner.parts().items(), self.learner.module, (PieceSeconds,))

    # ------------------------------------------------------------------------------------- requests

    def _on_all(self, method: str, arguments: Callable[[Setup], Sequence[tuple[Any, ...]]]) -> dict[int, Any]:
        """Call a method of all learners with the newest parts and state; again, if a process is lost meanwhile.

        Args:
            method: A method of `HostedLearner` that takes a `Setup`.
            arguments: Called with that; returns all arguments for each learner.

        Returns:
            What it returned, by index.
        """
        while True:
            try:
                self._meet()
                return self._answers(method, arguments(self._changes()))
            except WorkerLostError as error:
                self._start_again(error)
            except BaseException:
                self._sent_parts = self._sent_state = None  # it is not known what they have
                raise

    def _meet(self) -> None:
        """Let new processes meet each other."""
        if self._have_met or self.num_learners == 1:
            return
        places = self._answers("open", [()] * self.num_learners)
        host, address = places[1]
        if len({other for other, _ in places.values()}) > 1:
            address = f"tcp://{host}:{address.rpartition(':')[2]}"
        self._are_new = False
        self._answers("join", [(address,)] * self.num_learners)
        self._have_met = True

    def _answers(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> dict[int, Any]:
        actors, values, errors = self._actors, dict[int, Any](), dict[int, Exception]()
        while actors.in_flight():  # of a call that was interrupted
            if not actors.wait(self._timeout_s) and actors.in_flight():
                raise self._hang("learners")
        for index, own in enumerate(arguments, 1):
            actors.submit(index, method, *own)
        end = time.monotonic() + self._timeout_s
        while len(values) + len(errors) < len(arguments):
            answers = actors.wait(max(0.0, end - time.monotonic()))
            lost = [answer.error for answer in answers if answer.died]
            if lost:
                raise self._first_lost(lost[0])
            values.update((answer.index, answer.value) for answer in answers if answer.error is None)
            errors.update((answer.index, answer.error) for answer in answers if answer.error is not None)
            if not answers and time.monotonic() >= end:
                break
            if answers:
                end = time.monotonic() + (min(_REST_S, self._timeout_s) if errors else self._timeout_s)
        missing = [index for index in range(1, len(arguments) + 1) if index not in {*values, *errors}]
        if errors:
            self._after_errors(bool(missing))
            own_errors = [error for error in errors.values() if not isinstance(error, OtherLearnerError)]
            raise [*own_errors, *errors.values()][0]
        if missing:
            raise self._hang(f"learner {', '.join(map(str, missing))}")
        return dict(sorted(values.items()))

    def _hang(self, where: str) -> WorkerLostError:
        return WorkerLostError(
            where,
            expected=f"an answer within {self._timeout_s:g} s (timeout_s)",
            found="none",
            do="look at what the process does",
        )

    def _first_lost(self, error: WorkerLostError) -> WorkerLostError:
        """Return the error of the process that is gone, if others have answered first that it does not answer them."""
        end = time.monotonic() + _NEWS_S
        while len(self._actors.indexes) == self.num_learners and self._actors.in_flight() and time.monotonic() < end:
            for answer in self._actors.wait(max(0.0, end - time.monotonic())):
                if answer.died and answer.index not in self._actors.indexes:
                    return cast("WorkerLostError", answer.error)
        return error

    def _after_errors(self, some_hang: bool) -> None:
        """Let the learner here have the state that the others have after an error."""
        if some_hang:
            self._replace_all()
            return
        states = self._actors.call("get_state", indexes=[1], timeout=min(_REST_S, self._timeout_s))
        if 1 in states:
            self._set_learner_state(states[1])
        else:
            self._replace_all()

    def _start_again(self, error: WorkerLostError) -> None:
        found = str(error) if error.where is None else f"{error.where}: {error.found}"
        if not self._replace_all():
            raise WorkerLostError(
                "LearnerGroup",
                expected=f"{self.num_learners} processes that learn, started again at most {self._max_restarts} times "
                "(restart_failed_learners, max_num_learner_restarts)",
                found=found,
                do="look for the cause there; a checkpoint that is saved now has the last finished update",
            ) from error
        warning = EpibatchWarning(
            f"LearnerGroup, restart {self._num_restarts} of at most {self._max_restarts}",
            expected=f"{self.num_learners} processes that learn until they are stopped",
            found=found,
            do="nothing: all are started again, and the update is made again; look for the cause if it happens often",
        )
        warnings.warn(warning, stacklevel=4)

    def _replace_all(self) -> bool:
        """Start all processes again, whatever they do; False if they were started again as often as they may be.

        Of those that have not begun to meet, the lost ones alone: the others have nothing to forget.
        """
        indexes, are_new, self._are_new = range(1, self.num_learners + 1), self._are_new, True
        lost = [index for index in indexes if index not in self._actors.indexes]
        self._have_met, self._sent_parts, self._sent_state = False, None, None
        if self._num_restarts >= self._max_restarts:
            self._actors.stop()
            return False
        self._num_restarts += 1
        for index in lost if are_new and lost else indexes:
            self._actors.replace(index)
        return True


def even_shares(steps: npt.ArrayLike, count: int) -> list[npt.NDArray[np.int64]]:
    """Divide chunks into shares with about as many steps each; chunks stay whole.

    The longest chunk goes first, each to the share with the fewest steps until then, so that two shares differ by no
    more than the longest chunk.

    Args:
        steps: int [N], the steps of each chunk.
        count: Number of shares; with fewer chunks some are empty.

    Returns:
        The indices of each share's chunks, in increasing order.

    Examples:
        >>> [share.tolist() for share in even_shares([5, 9, 4, 1], 2)]
        [[1, 3], [0, 2]]
    """
    steps = np.asarray(steps, dtype=np.int64)
    if (steps == steps[:1]).all():  # rows of a batch, say, which may be many
        return [np.arange(share, len(steps), count) for share in range(count)]
    loads = [(0, share) for share in range(count)]
    shares: list[list[int]] = [[] for _ in loads]
    for chunk in np.argsort(-steps, kind="stable").tolist():
        load, share = loads[0]
        shares[share].append(chunk)
        heapq.heapreplace(loads, (load + int(steps[chunk]), share))
    return [np.sort(np.array(share, dtype=np.int64)) for share in shares]


def _in_order(
    parts: Mapping[int, Mapping[str, Mapping[str, torch.Tensor]]], places: Mapping[str, Sequence[npt.NDArray[np.int64]]]
) -> dict[str, dict[str, torch.Tensor]]:
    """Return values of rows in the order of a batch.

    Args:
        parts: Index of a learner -> module id -> name -> values of its rows.
        places: Module id -> the numbers of each learner's rows.
    """
    whole: dict[str, dict[str, torch.Tensor]] = {key: {} for key in places}
    for index, outputs in parts.items():
        for key in outputs.keys() & places.keys():
            count = sum(map(len, places[key]))
            for name, values in outputs[key].items():
                place = whole[key].setdefault(name, torch.full((count, *values.shape[1:]), math.nan))
                place[torch.from_numpy(places[key][index - 1])] = values
    return {key: values for key, values in whole.items() if values}


def _lengths(episodes: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the environment steps of each chunk."""
    if isinstance(episodes, VectorEpisodes):
        return episodes.lengths()
    return np.array([len(episode) for episode in episodes])
