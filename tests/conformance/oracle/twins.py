"""The same episode in both libraries: one operation on both, then everything they hold side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from oracle.columns import each, stack, unstack
from oracle.compare import Outcome, outcome, settle
from oracle.libraries import RLLIB

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
