"""States of a learner pipeline's pieces that several learners keep equal."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ...connectors.connector_v2 import ConnectorV2
from .learners import Learners
from .shared_update import SharedUpdate


class SharedStates:
    """Keeps the states of all learners' pipelines equal: running statistics are those of one that saw all episodes.

    Each learner's copy of a piece counts its share of the episodes. Then the states that changed are merged, and each
    copy gets the merged one. Of a piece without `merge_states`, such as one that draws random numbers, all get the
    state of the first learner on which it changed.

    Args:
        connector: The learner pipeline.
        learners: The learners; one that is alone keeps its states.
    """

    def __init__(self, connector: Any, learners: Learners) -> None:
        self._connector = connector if learners.count > 1 else None
        self._known: dict[str, tuple[Any, bytes]] = {}  # path -> the piece, and its state after the last merge

    def begin(self) -> None:
        """Note the state of each piece, which all learners have now, so that it counts once."""
        for path, piece in self._pieces().items():
            if path in self._known and self._known[path][0] is piece:
                continue
            state = piece.get_state()
            if state and _merges(piece):
                piece.set_state(piece.merge_states([state]))
            self._known[path] = piece, _digest(piece.get_state())

    def forget(self) -> None:
        """Note all states again before the next update, since others were set."""
        self._known.clear()

    def changed(self) -> dict[str, Any]:
        """Return the states that changed since the last merge, by the piece's path."""
        states = {path: piece.get_state() for path, (piece, _) in self._known.items()}
        return {path: state for path, state in states.items() if _digest(state) != self._known[path][1]}

    def merge(self, shared: SharedUpdate, changed: Sequence[Mapping[str, Any]]) -> None:
        """Merge the states of all learners, and set them here.

        Args:
            shared: The update.
            changed: What `changed` returned on each learner.

        Raises:
            StateError: states that cannot be merged.
        """
        paths = [path for path in self._known if any(path in states for states in changed)]
        partly = [path for path in paths if not all(path in states for states in changed)]
        if any(_merges(self._known[path][0]) for path in partly):  # changed on some learners alone
            own = {path: self._known[path][0].get_state() for path in partly if _merges(self._known[path][0])}
            changed = [{**states, **more} for states, more in zip(changed, shared.finish(own))]
        for path in paths:
            piece = self._known[path][0]
            states = [states[path] for states in changed if states.get(path)]
            if states:
                piece.set_state(piece.merge_states(states) if _merges(piece) else states[0])
            self._known[path] = piece, _digest(piece.get_state())

    def _pieces(self) -> dict[str, Any]:
        return dict(_with_state("", self._connector))


def _with_state(path: str, piece: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(piece, ConnectorPipelineV2):
        for name, inner in zip(piece.names, piece.connectors):
            yield from _with_state(f"{path}/{name}", inner)
    elif hasattr(piece, "get_state") and hasattr(piece, "set_state"):
        yield path, piece


def _merges(piece: Any) -> bool:
    """True if a piece can merge states of its copies."""
    return getattr(type(piece), "merge_states", ConnectorV2.merge_states) is not ConnectorV2.merge_states


def _digest(state: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(state, 5), digest_size=16).digest()
