"""The input rows of a column transform in recorded episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epibatch.core.columns import Columns
from epibatch.testing.rehearsal import Rehearsal

__all__ = ["column_rows"]

_BUFFERS = {
    Columns.OBS: "observations",
    Columns.NEXT_OBS: "observations",
    Columns.ACTIONS: "actions",
    Columns.REWARDS: "rewards",
}


def column_rows(rehearsal: Rehearsal, piece: Any) -> Iterator[tuple[Any, int, Any]]:
    """Yield the rows of each address that a `ColumnTransform` changes, in each episode of the first recorded call.

    Args:
        rehearsal: Has the recorded episodes.
        piece: The transform.

    Yields:
        The address, the episode's number and its rows; None for rows that recorded episodes do not have.
    """
    for path in piece.paths:
        name = _BUFFERS.get(path.column, path.column)
        for number, facts in enumerate(rehearsal.recording.calls[0]):
            rows = facts if path.column in _BUFFERS else facts["extra_model_outputs"]
            yield path, number, rows.get(name)
