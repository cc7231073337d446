"""The state of a pipeline: those of its pieces, by their stable names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from epibatch.core.errors import EpibatchWarning, UnknownNameError, nearest
from epibatch.core.restoring import restoring

from ...episodes._storage.arrays import same_value
from ..connector_v2 import ConnectorV2
from .checks import check_state

__all__ = ["FrozenStates", "PipelineState"]


class PipelineState(ConnectorV2):
    """A piece made of pieces, whose state is kept piece by piece.

    Attributes:
        connectors: The pieces.
        names: Their stable names, in order.
    """

    connectors: list[Any]
    names: Any

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """States of the pieces that can have one, by stable name; {} of those that know nothing yet."""
        return {
            name: piece.get_state()
            for name, piece in zip(self.names, self.connectors)
            if type(piece).get_state is not ConnectorV2.get_state and _wanted(name, components, not_components)
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Give each piece its state; if one of them does not fit, all pieces are as they were.

        A piece whose state is {} is reset: it knew nothing when the state was taken. Pieces of which the state says
        nothing stay as they are.

        Raises:
            UnknownNameError: a state of a piece that this pipeline does not have.
            CheckpointError: something else than a dict of states.
        """
        check_state(self, state)
        by_name = dict(zip(self.names, self.connectors))
        for name, own in state.items():
            if own and name not in by_name:
                raise UnknownNameError(
                    f"{type(self).__name__}.set_state",
                    expected="states of its own pieces",
                    found=repr(name),
                    do=nearest(name, by_name),
                )
        known = {name: own for name, own in state.items() if name in by_name}
        before = {name: by_name[name].get_state() for name in known}
        try:
            for name, own in known.items():
                with restoring(f"{type(self).__name__}.set_state", name):
                    _give(by_name[name], own)
        except Exception:
            for name, own in before.items():
                _give(by_name[name], own)
            raise

    def reset_state(self) -> None:
        """Reset every piece."""
        for piece in self.connectors:
            piece.reset_state()

    def freeze(self) -> None:
        """Freeze every piece."""
        for piece in self.connectors:
            piece.freeze()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge states piece by piece, matched by name."""
        merged = {}
        for name, piece in zip(self.names, self.connectors):
            own = [state[name] for state in states if state.get(name)]
            result = piece.merge_states(own) if own else {}
            if result:
                merged[name] = result
        return merged

    def seed(self, seed: Any) -> None:
        """Seed every piece that draws random numbers, each with a seed of its own.

        Args:
            seed: An int, or a numpy SeedSequence.
        """
        import numpy as np

        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        for piece, own in zip(self.connectors, sequence.spawn(len(self.connectors))):
            if hasattr(piece, "seed"):
                piece.seed(own)


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


def _give(piece: Any, state: Mapping[str, Any]) -> None:
    piece.set_state(state) if state else piece.reset_state()


def _wanted(name: str, components: Any, not_components: Any) -> bool:
    def names(value: Any) -> list[str]:
        return [value] if isinstance(value, str) else list(value or ())

    return (components is None or name in names(components)) and name not in names(not_components)
