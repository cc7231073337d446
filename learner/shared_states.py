"""States of a learner pipeline's pieces that several learners keep equal."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ..connectors.connector_v2 import ConnectorV2
from .shared_update import SharedUpdate


class SharedStates:
    """Keeps the running statistics of all learners' pipelines equal: those of one pipeline that saw all episodes.

    Pieces that override `merge_states` take part. Each learner's copy counts its share of the episodes. Then the
    states that changed are merged, and each copy gets the merged one.

    Args:
        connector: The learner pipeline.
    """

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._known: dict[str, tuple[Any, bytes]] = {}  # name -> the piece, and its state after the last merge

    def _pieces(self) -> dict[str, Any]:
        pieces = {"": self._connector}
        if isinstance(self._connector, ConnectorPipelineV2):
            pieces = dict(zip(self._connector.names, self._connector.connectors))
        return {
            name: piece
            for name, piece in pieces.items()
            if getattr(type(piece), "merge_states", ConnectorV2.merge_states) is not ConnectorV2.merge_states
        }

    def begin(self) -> None:
        """Note the state of each piece, which all learners have now, so that it counts once."""
        for name, piece in self._pieces().items():
            if name in self._known and self._known[name][0] is piece:
                continue
            state = piece.get_state()
            if state:
                piece.set_state(piece.merge_states([state]))
            self._known[name] = piece, _digest(piece.get_state())

    def forget(self) -> None:
        """Note all states again before the next update, since others were set."""
        self._known.clear()

    def changed(self) -> dict[str, Any]:
        """Return the states that changed since the last merge, by name."""
        states = {name: piece.get_state() for name, piece in self._pieces().items()}
        return {
            name: state
            for name, state in states.items()
            if name in self._known and _digest(state) != self._known[name][1]
        }

    def merge(self, shared: SharedUpdate, changed: Sequence[Mapping[str, Any]]) -> None:
        """Merge the states of all learners, and set them here.

        Args:
            shared: The update.
            changed: What `changed` returned on each learner.

        Raises:
            StateError: states that cannot be merged.
        """
        pieces = self._pieces()
        names = [name for name in pieces if any(name in states for states in changed)]
        if any(name not in states for states in changed for name in names):  # changed on some learners alone
            changed = shared.finish({name: pieces[name].get_state() for name in names})
        for name in names:
            piece = pieces[name]
            piece.set_state(piece.merge_states([states[name] for states in changed if states[name]]))
            self._known[name] = piece, _digest(piece.get_state())


def _digest(state: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(state, 5), digest_size=16).digest()
