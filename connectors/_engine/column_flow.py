"""Which columns are in the batch in front of each piece, as far as pieces say what they write and drop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epibatch.core.errors import PipelineError

__all__ = ["ColumnFlow"]


class ColumnFlow:
    """Columns on their way through the pieces of a pipeline.

    Args:
        columns: Those at its start.
        giver: Who gave them, for messages.

    Attributes:
        written: Columns that are there, each with who wrote it.
    """

    def __init__(self, columns: Iterable[str], giver: str) -> None:
        self.written = dict.fromkeys(columns, giver)
        self._dropped: dict[str, str] = {}

    def check(self, piece: Any, where: str) -> str | None:
        """A column that a piece reads and nobody said to write; None if all are there.

        Args:
            piece: The piece.
            where: Names it in messages.

        Raises:
            PipelineError: it reads a column that a piece in front has dropped.
        """
        reads = piece.reads or ()
        gone = next((name for name in reads if name in self._dropped), None)
        if gone is not None:
            raise _dropped(where, gone, self._dropped[gone])
        return next((name for name in reads if name not in self.written), None)

    def add(self, piece: Any, where: str) -> None:
        """Let one piece more follow."""
        lost = dict.fromkeys(piece.drops(tuple(self.written)), where)
        self.written = {name: by for name, by in self.written.items() if name not in lost}
        self.written.update(dict.fromkeys(piece.writes, where))
        self._dropped = {name: by for name, by in {**self._dropped, **lost}.items() if name not in piece.writes}


def _dropped(where: str, column: str, by: str) -> PipelineError:
    dropper, reader = (one.split(", ", 1)[1] for one in (by, where))
    return PipelineError(
        where,
        expected=f"column {column!r}",
        found=f"it is dropped in front, by {dropper}",
        do=f"move {dropper} behind {reader}, or let it keep the column",
    )
