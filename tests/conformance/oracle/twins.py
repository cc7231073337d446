"""The same episode in both libraries: how each holds it, one operation on both, then all they hold side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from epibatch.episodes.vector_recorder import VectorRecorder
from oracle.compare import Outcome, each, outcome, settle, stack, unstack
from oracle.episodes import Chunk, chunks
from oracle.libraries import EPIBATCH, RLLIB
from oracle.spaces import rows

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
        entries: of RLlib's nested columns that were arrays by then, how many entries they had.
    """

    name: str
    arguments: dict[str, Any]
    before: dict[str, Any] = field(repr=False)
    arrays: dict[str, bool]
    ours_after: dict[str, Any] | None = field(default=None, repr=False)
    refused: bool = False
    entries: dict[str, int] = field(default_factory=dict)


def content(episode: Any) -> dict[str, Any]:
    """Everything an episode holds and says of itself; columns stacked, those without rows as None."""
    extras = episode.extra_model_outputs if episode.rewards.len_incl_lookback() else {}
    buffers = {name: getattr(episode, name) for name in ("observations", "actions", "rewards")}
    infos = episode.infos
    return {
        **{name: getattr(episode, name) for name in (*NAMES, *IDS)},
        "spaces": [repr(episode.observation_space), repr(episode.action_space)],
        "steps": [len(episode), episode.env_steps(), episode.agent_steps()],
        "return": float(episode.get_return()),
        "infos": {"rows": list(infos.data), "lookback": infos.lookback, "length": len(infos)},
        "columns": {key: _column(buffer) for key, buffer in {**buffers, **extras}.items()},
    }


def _column(buffer: Any) -> dict[str, Any]:
    rows = buffer.data
    if isinstance(rows, list):
        rows = stack(rows) if rows else None
    elif not buffer.len_incl_lookback():
        rows = None
    return {"rows": rows, "lookback": buffer.lookback, "length": len(buffer)}


def array_columns(theirs: Any) -> dict[str, bool]:
    """Which columns of RLlib's episode are arrays."""
    return {key: buffer.finalized for key, buffer in _buffers(theirs).items()}


def nested_entries(theirs: Any) -> dict[str, int]:
    """How many entries each nested column of RLlib's episode has that is arrays."""
    return {key: len(own.data) for key, own in _buffers(theirs).items() if own.finalized and is_nested(own.data)}


def _buffers(theirs: Any) -> dict[str, Any]:
    buffers = {name: getattr(theirs, name) for name in ("observations", "infos", "actions", "rewards")}
    return {**buffers, **theirs.extra_model_outputs}


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

    def do(self, name: str, call: Callable[[Any], Any], **arguments: Any) -> tuple[Outcome, Outcome]:
        """Do something to both, settle what the call gave unless it is an episode, then settle their contents.

        Args:
            name: the operation, for those who explain differences.
            call: is given an episode; it does the operation.
            **arguments: what the operation was called with, for the same.
        """
        arrays, entries = array_columns(self.theirs), nested_entries(self.theirs)
        operation = Operation(name, arguments, content(self.ours), arrays, entries=entries)
        theirs, ours = (outcome(lambda e=episode: call(e)) for episode in (self.theirs, self.ours))
        parts = [found.value if hasattr(found.value, "get_observations") else None for found in (theirs, ours)]
        if all(part is not None for part in parts):
            self.alike = settle(*(Outcome(content(part)) for part in parts), operation)
        else:
            self.alike = settle(theirs, ours, operation)
        self.check(replace(operation, refused=ours.error is not None))
        return theirs, ours

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
    columns = {name: _rows(getattr(ours, name)) for name in ("observations", "actions", "rewards")}
    episode = RLLIB.SingleAgentEpisode(
        id_=ours.id_,
        **columns,
        infos=list(ours.infos.data),
        extra_model_outputs={key: _rows(buffer) for key, buffer in ours.extra_model_outputs.items()},
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


def _rows(buffer: Any) -> list[Any]:
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
    recorder.reset(_one(observations[0]), _info(-before))
    total = chunk.lookback + chunk.length
    for i in range(-before, total):
        known = max(i, 0)
        ended = i == total - 1 and chunk.end != "running"
        outputs = {key: _one(values[known]) for key, values in extras.items()}
        action = _one(columns["actions"][known])
        flags = [np.array([ended and chunk.end == kind]) for kind in ("terminated", "truncated")]
        reward = np.array([columns["rewards"][known]])
        after = _one(observations[i + 1 + before])
        last = {"final_observations": after} if ended and tail else {}
        reset = _info(99) if ended and tail else None
        if i == total - chunk.length - 1 and chunk.t_started:
            recorder.step(action, reward, *flags, after, _info(i + 1), outputs)
            recorder.flush(chunk.lookback)
        else:
            recorder.step(action, reward, *flags, after, _info(i + 1), outputs, reset_infos=reset, **last)
    episode = recorder.flush(0)[0] if chunk.length else recorder.episodes[0]
    episode.id_ = chunk.id_
    return episode


def _one(row: Any) -> Any:
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
    arrays: bool
    storage: str

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


def cases(**keywords: Any) -> st.SearchStrategy[Case]:
    """Chunks in all forms of both libraries; keywords are those of `chunks`."""
    return st.builds(Case, chunks(**keywords), st.booleans(), st.sampled_from(STORAGES))


def rows_of(chunk: Chunk, name: str) -> list[Any]:
    """The rows of a column, by its name or by the key of an extra model output."""
    found = chunk.columns.get(name)
    return chunk.columns["extra_model_outputs"][name] if found is None else found


def buffer_of(episode: Any, name: str) -> Any:
    """An episode's buffer, by the name of its column or by the key of an extra model output."""
    if name in ("observations", "infos", "actions", "rewards"):
        return getattr(episode, name)
    return episode.extra_model_outputs[name]


def columns_of(chunk: Chunk) -> list[str]:
    """The names of its columns and the keys of its extra model outputs."""
    return ["observations", "infos", "actions", "rewards", *chunk.columns["extra_model_outputs"]]


def stacked(chunk_rows: list[Any], name: str) -> Any:
    """The rows as arrays; None if there are none or if they are infos."""
    return stack(chunk_rows) if chunk_rows and name != "infos" else None
