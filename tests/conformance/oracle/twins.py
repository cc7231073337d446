"""The same episode in both libraries: how each holds it, one operation on both, then all they hold side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from epibatch.episodes import VectorRecorder
from oracle.compare import Outcome, each, mismatches, outcome, settle, stack, unstack
from oracle.episodes import Chunk, chunks, rows
from oracle.libraries import EPIBATCH, RLLIB

NAMES = ("id_", "t", "t_started", "is_terminated", "is_truncated", "is_done", "is_reset", "custom_data")
IDS = ("agent_id", "module_id", "multi_agent_episode_id")


@dataclass(frozen=True)
class Operation:
    """What was done to both episodes.

    Attributes:
        name: the operation.
        arguments: what it was called with.
        before: what the episode held before (see `content`).
        arrays: which of RLlib's columns were arrays by then.
        ours_after: what ours holds afterwards; None while the call itself is looked at.
        refused: whether ours raised an error.
    """

    name: str
    arguments: dict[str, Any]
    before: dict[str, Any] = field(repr=False)
    arrays: dict[str, bool]
    ours_after: dict[str, Any] | None = field(default=None, repr=False)
    refused: bool = False

    @property
    def nested_arrays(self) -> bool:
        """True if a nested column of RLlib's was arrays."""
        return any(is_nested(own["rows"]) and self.arrays.get(key) for key, own in self.before["columns"].items())


def content(episode: Any) -> dict[str, Any]:
    """Everything an episode holds and says of itself; columns stacked, those without rows as None."""
    extras = episode.extra_model_outputs if episode.rewards.len_incl_lookback() else {}
    buffers = {name: getattr(episode, name) for name in ("observations", "actions", "rewards")}
    infos = episode.infos
    return {
        **{name: getattr(episode, name) for name in (*NAMES, *IDS)},
        "custom_data": dict(episode.custom_data),
        "spaces": [repr(episode.observation_space), repr(episode.action_space)],
        "steps": [len(episode), episode.env_steps(), episode.agent_steps()],
        "return": float(episode.get_return()),
        "infos": {"rows": list(infos.data), "lookback": infos.lookback, "length": len(infos)},
        "columns": {key: _column(buffer) for key, buffer in {**buffers, **extras}.items()},
    }


def held_rows(buffer: Any) -> Any:
    """All rows of a buffer, stacked; None if there are none."""
    rows = buffer.data
    if isinstance(rows, list):
        return stack(rows) if rows else None
    return each(np.copy, rows) if buffer.len_incl_lookback() else None


def _column(buffer: Any) -> dict[str, Any]:
    return {"rows": held_rows(buffer), "lookback": buffer.lookback, "length": len(buffer)}


def array_columns(theirs: Any) -> dict[str, bool]:
    """Which columns of RLlib's episode are arrays."""
    buffers = {name: getattr(theirs, name) for name in ("observations", "infos", "actions", "rewards")}
    return {key: buffer.finalized for key, buffer in {**buffers, **theirs.extra_model_outputs}.items()}


class Twins:
    """One episode of each library, on which the same operations are done.

    Attributes:
        arrays: whether `to_numpy()` was called on RLlib's.
        alike: whether the last call gave the same on both sides.
        rebuilt: how often RLlib's was made anew from ours, because a listed difference had put them apart.
    """

    def __init__(self, theirs: Any, ours: Any, arrays: bool) -> None:
        self.theirs, self.ours, self.arrays = theirs, ours, arrays
        self.alike = True
        self.rebuilt = 0

    def do(self, name: str, call: Callable[[Any], Any], *, right: Any = None, **arguments: Any) -> Any:
        """Do something to both, settle what the call gave unless it is an episode, then settle their contents.

        Args:
            name: the operation, for those who explain differences.
            call: is given an episode; it does the operation.
            right: what the episode holds that ours gives, or ours itself if it gives none; an `Outcome` that ours
                raises or holds; None if a model does not say. What ours refuses changes nothing, whatever it is.
            **arguments: what the operation was called with, for those who explain differences.
        """
        operation = Operation(name, arguments, content(self.ours), array_columns(self.theirs))
        theirs, ours = (outcome(lambda e=episode: call(e)) for episode in (self.theirs, self.ours))
        gives = [hasattr(found.value, "get_observations") for found in (theirs, ours)]
        parts = [Outcome(content(found.value)) if own else found for own, found in zip(gives, (theirs, ours))]
        self._check_ours(operation, ours, parts[1].value if gives[1] else None, right)
        self.alike = settle(*(parts if all(gives) else (theirs, ours)), operation)
        self.check(replace(operation, refused=ours.error is not None))
        return theirs, ours

    def _check_ours(self, operation: Operation, ours: Outcome, part: Any, right: Any) -> None:
        now = content(self.ours)
        if isinstance(right, Outcome):
            assert right.kind == ours.kind, (operation, right, ours)
            right = right.value
        if ours.error is not None or part is not None:
            assert not mismatches(operation.before, now), operation
        if right is not None and ours.error is None:
            found = mismatches(right, now if part is None else part)
            assert not found, "\n".join(map(str, [operation, *found[:3]]))

    def check(self, operation: Operation) -> None:
        """Settle what both hold now; where a listed difference put them apart, make RLlib's like ours again."""
        ours = content(self.ours)
        theirs = outcome(lambda: content(self.theirs))
        if not settle(theirs, Outcome(ours), replace(operation, ours_after=ours)):
            self.adopt(self.ours)

    def adopt(self, ours: Any) -> None:
        """Go on with this episode of ours, and with RLlib's made like it."""
        self.ours, self.theirs = ours, rebuilt(ours, self.arrays)
        self.rebuilt += 1


def rebuilt(ours: Any, arrays: bool) -> Any:
    """RLlib's episode that holds what ours does."""
    columns = {name: rows_of(getattr(ours, name)) for name in ("observations", "actions", "rewards")}
    episode = RLLIB.SingleAgentEpisode(
        id_=ours.id_,
        **columns,
        infos=list(ours.infos.data),
        extra_model_outputs={key: rows_of(buffer) for key, buffer in ours.extra_model_outputs.items()},
        observation_space=ours.observation_space,
        action_space=ours.action_space,
        terminated=ours.is_terminated,
        truncated=ours.is_truncated,
        t_started=ours.t_started,
        len_lookback_buffer=ours.rewards.lookback,
        **{name: getattr(ours, name) for name in IDS},
    )
    episode.custom_data.update(ours.custom_data)
    return episode.to_numpy() if arrays else episode


def rows_of(buffer: Any) -> list[Any]:
    """Copies of the rows of a buffer of ours."""
    if not buffer.len_incl_lookback():
        return []
    return [each(lambda leaf: np.copy(leaf)[()], row) for row in unstack(buffer.data)]


def is_nested(rows: Any) -> bool:
    """Whether stacked rows are of a nested column."""
    return isinstance(rows, (dict, tuple))


STORAGES = ("own", "block", "tail")


def recorded(chunk: Chunk, *, tail: bool = False) -> Any:
    """A chunk as a view into the block of a vector of environments that it was recorded in.

    Args:
        chunk: What happened, which `can_be_recorded`.
        tail: Record it as from environments that are reset in the same step: the last observation of an ended
            episode lies apart from the block.
    """
    autoreset = "same_step" if tail else "next_step"
    recorder = VectorRecorder(1, chunk.observation_space, chunk.action_space, autoreset=autoreset, capacity=8)
    columns, extras = chunk.columns, chunk.columns["extra_model_outputs"]
    before = chunk.t_started - chunk.lookback  # steps that the chunk has forgotten
    forgotten = rows(chunk.observation_space, np.random.default_rng(0), before)
    observations = [*forgotten, *columns["observations"]]
    recorder.reset(as_vector(observations[0]), _info(-before))
    total = chunk.lookback + chunk.length
    for i in range(-before, total):
        known = max(i, 0)
        ended = i == total - 1 and chunk.end != "running"
        outputs = {key: as_vector(values[known]) for key, values in extras.items()}
        action = as_vector(columns["actions"][known])
        flags = [np.array([ended and chunk.end == kind]) for kind in ("terminated", "truncated")]
        reward = np.array([columns["rewards"][known]])
        after = as_vector(observations[i + 1 + before])
        last = {"final_observations": after, "reset_infos": _info(99)} if ended and tail else {}
        recorder.step(action, reward, *flags, after, _info(i + 1), outputs, **last)
        if i == total - chunk.length - 1 and chunk.t_started:
            recorder.flush(chunk.lookback)
    episode = recorder.flush(0)[0] if chunk.length else recorder.episodes[0]
    episode.id_ = chunk.id_
    return episode


def as_vector(row: Any) -> Any:
    """A row as the vector of one environment."""
    return each(lambda leaf: np.asarray(leaf)[None].copy(), row)


def _info(step: int) -> dict[str, Any]:
    return {"step": np.array([step]), "_step": np.array([True])}


def can_be_recorded(chunk: Chunk) -> bool:
    """Whether a vector of environments can have made it: it has steps, and one that ended has its last step."""
    return chunk.length > 0 or (chunk.lookback > 0 and chunk.end == "running")


@dataclass(frozen=True)
class Case:
    """One chunk, and the form in which each library holds it.

    Attributes:
        arrays: whether `to_numpy()` is called on RLlib's.
        storage: `own`, `block` or `tail` (see `recorded`).
    """

    chunk: Chunk
    arrays: bool = True
    storage: str = "own"

    def build(self, *, grows: bool = False) -> tuple[Any, Any]:
        """RLlib's episode and ours.

        Args:
            grows: something will be added to it, which one that is being recorded refuses.
        """
        theirs = self.chunk.build(RLLIB, numpy=self.arrays)
        running = grows and not self.chunk.length
        if self.storage == "own" or running or not can_be_recorded(self.chunk):
            return theirs, self.chunk.build(EPIBATCH)
        return theirs, recorded(self.chunk, tail=self.storage == "tail")

    def twins(self, *, grows: bool = False) -> Twins:
        """Both, to do the same to."""
        return Twins(*self.build(grows=grows), self.arrays)


def cases(**keywords: Any) -> st.SearchStrategy[Case]:
    """Chunks in all forms of both libraries; keywords are those of `chunks`."""
    return st.builds(Case, chunks(**keywords), st.booleans(), st.sampled_from(STORAGES))


def buffer_of(episode: Any, name: str) -> Any:
    """An episode's buffer, by the name of its column or by the key of an extra model output."""
    if name in ("observations", "infos", "actions", "rewards"):
        return getattr(episode, name)
    return episode.extra_model_outputs[name]
