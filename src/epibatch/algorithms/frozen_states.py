"""A check that frozen pipelines stay frozen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epibatch.core.errors import EpibatchWarning

from ..connectors.connector_v2 import ConnectorV2
from ..episodes._storage.arrays import same_value

__all__ = ["FrozenStates"]


class FrozenStates:
    """A check that calls of frozen pipelines leave the states of their pieces as they are.

    Only the first two blocks are checked, as it takes copies of the states. Pieces that have a method `seed` are passed
    over: their generators go on.

    Args:
        pipelines: The frozen pipelines.
    """

    def __init__(self, *pipelines: Any) -> None:
        pieces = [piece for pipeline in pipelines for piece in pipeline.pieces()]
        self._pieces = [
            piece
            for piece in pieces
            if type(piece).get_state is not ConnectorV2.get_state and not hasattr(piece, "seed")
        ]
        self._blocks_left = 2

    @contextmanager
    def checked(self, where: str) -> Iterator[None]:
        """Warn after the block if it changed the state of a piece.

        Args:
            where: What the pipelines are frozen for, for the warning.
        """
        if not self._pieces:
            yield
            return
        before = [piece.get_state() for piece in self._pieces]
        yield
        moved = [piece for piece, own in zip(self._pieces, before) if not same_value(own, piece.get_state())]
        self._blocks_left -= 1
        if moved or not self._blocks_left:
            self._pieces = []
        if moved:
            names = ", ".join(type(piece).__name__ for piece in moved)
            warning = EpibatchWarning(
                where,
                expected="pieces whose state stays as it is, since the pipeline is frozen",
                found=f"another state of {names} after a call, so what it gives depends on earlier calls",
                do="let the piece learn nothing while its attribute `frozen` is True; ConnectorV2.freeze sets it",
            )
            warnings.warn(warning, stacklevel=4)
