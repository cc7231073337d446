"""Which piece made which column, so that none is made twice."""

from __future__ import annotations

from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError

__all__ = ["ColumnMakers"]


class ColumnMakers:
    """What the pieces of a pipeline, one after the other, make of its columns."""

    def __init__(self) -> None:
        self._makers: dict[str, str] = {}
        self._windows = ""
        self._settled: dict[str, str] = {}

    def add(self, piece: Any, where: str) -> None:
        """Let one piece more follow.

        Args:
            piece: What declares its needs.
            where: Names it in messages.

        Raises:
            PipelineError: it makes a column anew that a piece in front has changed; it changes one of which a piece in
                front has made others; or it writes observations into the episodes that a piece in front has made of
                several.
        """
        for column in piece.writes:
            if column in self._settled and not piece.training_only:
                raise _too_late(piece, where, column, self._settled[column])
        self._settled.update(dict.fromkeys(piece.settles, where))
        for column in piece.replaces:
            if column in self._makers:
                raise _lost(piece, where, column, self._makers[column])
        if piece.rewrites_observations and Columns.OBS in (piece.reads or ()):
            if self._windows:
                raise PipelineError(
                    where,
                    expected="observations of one step each, which later steps look back at in the episodes",
                    found=f"what {self._windows} made of several",
                    do=f"move {type(piece).__name__} in front of {_name(self._windows)}",
                )
            self._makers.pop(Columns.OBS, None)  # episodes have what the batch has
        if Columns.OBS in piece.replaces and piece.lookback:
            self._windows = where
        self._makers.update(dict.fromkeys(piece.writes, where))


def _lost(piece: Any, where: str, column: str, maker: str) -> PipelineError:
    name, other = type(piece).__name__, _name(maker)
    do = f"move {name} in front of {other}"
    if column == Columns.OBS and "env_to_module" in piece.pipelines:
        do += f"; or, for acting, put WriteObservationsToEpisodes between the two and leave {other} out of the learner"
        do += " pipeline, which then finds its observations in the episodes"
    return PipelineError(
        where,
        expected=f"no column {column!r} in front of it, since it makes one of the episodes",
        found=f"one that {maker} made, which would be lost",
        do=do,
    )


def _too_late(piece: Any, where: str, column: str, user: str) -> PipelineError:
    name = type(piece).__name__
    return PipelineError(
        where,
        expected=f"column {column!r} as it was, since others were made of it",
        found=f"a change of it behind {user}, which would not count",
        do=f"move {name} in front of {_name(user)}: the learner setting of a config puts pieces there",
    )


def _name(where: str) -> str:
    """The piece's class in `pipeline, piece 3 (Class)`."""
    return where.rpartition("(")[2].removesuffix(")")
