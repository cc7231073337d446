"""The infos of a chunk: a list of dicts, whatever the other columns are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from epibatch.core.errors import EpisodeIndexError

from .arrays import same_value
from .indexing import Positions
from .lookback_buffer import LookbackBuffer

__all__ = ["EMPTY", "InfosBuffer"]


EMPTY: Final = object()  # an empty dict that nobody has asked for yet


class InfosBuffer(LookbackBuffer):
    """A lookback buffer of Python objects that are never turned into arrays.

    Most infos are empty dicts. Those are made when somebody reads them, and are the same objects from then on.

    Args:
        data: The rows, lookback included; the list is copied.
        lookback: How many of them lie before the chunk's start.
    """

    __slots__ = ("_data",)

    def __init__(self, data: Sequence[Any] = (), lookback: int = 0) -> None:
        self._data = list(data)
        self.lookback = min(lookback, len(self._data))
        self.t_started = 0

    @property
    def data(self) -> list[Any]:
        """All rows, lookback included."""
        for position, row in enumerate(self._data):
            if row is EMPTY:
                self._data[position] = {}
        return self._data

    @property
    def space(self) -> None:
        """Infos have no space."""
        return None

    def append(self, item: Any) -> None:
        """Add one row."""
        self._data.append(item)

    def extend(self, items: Sequence[Any]) -> None:
        """Add rows."""
        self._data.extend(items)

    def for_copy(self, rows: Sequence[int]) -> list[Any]:
        """Rows for another buffer: the same dicts, but each makes empty ones that nobody has asked for on its own.

        Args:
            rows: Absolute positions.
        """
        data = self._data
        return data[rows.start : rows.stop] if isinstance(rows, range) and rows.step == 1 else [data[i] for i in rows]

    def pop(self, index: int = -1) -> Any:
        """Remove and return a row."""
        row = self._data.pop(index)
        return {} if row is EMPTY else row

    def own(self) -> None:
        """Do nothing: rows are in a list of their own where they are changed."""

    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""
        return len(self._data)

    def _row(self, position: int) -> Any:
        row = self._data[position]
        if row is EMPTY:
            row = self._data[position] = {}
        return row

    def _span(self, start: int, stop: int) -> list[Any]:
        return [self._row(position) for position in range(start, stop)]

    def _rows(self, positions: Positions) -> list[Any]:
        return [self._row(int(p)) for p in positions]

    def _filled_rows(self, positions: np.ndarray[Any, np.dtype[np.int64]], fill: Any) -> list[Any]:
        return [self._row(int(p)) if 0 <= p < len(self._data) else fill for p in positions]

    def _fill_row(self, fill: Any) -> Any:
        return fill

    def _write_row(self, position: int, row: Any) -> None:
        self._data[position] = row

    def _write_rows(self, positions: Positions, new_data: Any) -> None:
        if len(new_data) != len(positions):
            raise EpisodeIndexError(
                "infos", expected=f"{len(positions)} rows", found=f"{len(new_data)}", do="match the indices"
            )
        for position, row in zip(positions, new_data):
            self._data[position] = row

    def __getstate__(self) -> dict[str, Any]:
        """Empty dicts, which most infos are, as nothing but their number."""
        rows = {i: row for i, row in enumerate(self._data) if row is not EMPTY and (type(row) is not dict or row)}
        return {"count": len(self._data), "rows": rows, "lookback": self.lookback, "t_started": self.t_started}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state["rows"]
        self._data = [rows.get(i, EMPTY) for i in range(state["count"])]
        self.lookback, self.t_started = state["lookback"], state["t_started"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InfosBuffer):
            return NotImplemented
        return self.lookback == other.lookback and same_value(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"InfosBuffer({len(self._data)} rows, lookback={self.lookback})"
