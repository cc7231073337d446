"""The infos of a chunk: a list of dicts, whatever the other columns are."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from epibatch.core.errors import EpisodeIndexError

from ..arrays import make_writable, same_value
from ..indexing import Positions
from .lookback_buffer import LookbackBuffer

if TYPE_CHECKING:
    from .chunk import Chunk

MISSING_FINAL_OBS = "missing_final_obs"
"""The key of the last info of an episode whose terminal observation the environment did not give."""

EMPTY: Final = object()  # a row that was not asked for yet: an empty dict, or one that is in a block


class InfosBuffer(LookbackBuffer):
    """A lookback buffer of Python objects that are never turned into arrays.

    Most infos are empty dicts. Those are made when they are read, and are the same objects from then on; so are the
    dicts of a block, which holds the infos of whole vector steps.

    Args:
        data: The rows, lookback included; the list is copied.
        lookback: How many of them lie before the chunk's start.
    """

    __slots__ = ("_chunk", "_data", "lookback", "t_started")

    space = None

    def __init__(self, data: Sequence[Any] = (), lookback: int = 0) -> None:
        self._data = list(data)
        self._chunk: Chunk | None = None
        self.lookback = min(lookback, len(self._data))
        self.t_started = 0

    @classmethod
    def over(cls, chunk: Chunk, lookback: int) -> InfosBuffer:
        """Return the infos of a chunk of a block: a list of its own once rows are added or taken away."""
        infos = cls()
        infos._chunk, infos.lookback = chunk, lookback
        return infos

    @property
    def data(self) -> list[Any]:
        """All rows, lookback included."""
        rows = self._rows(range(self.len_incl_lookback()))
        return self._data if self._chunk is None else rows

    def append(self, item: Any) -> None:
        """Add one row."""
        if self._chunk is not None:
            self.own()
        self._data.append(item)

    def extend(self, items: Sequence[Any] | InfosBuffer) -> None:
        """Add rows; of a buffer all its rows."""
        self.own()
        self._data.extend(items._raw_rows() if isinstance(items, InfosBuffer) else items)

    def concat(self, other: InfosBuffer) -> None:
        """Add the rows of `other` that come after its lookback."""
        self.own()
        self._data.extend(other._raw_rows()[other.lookback :])

    def _raw_rows(self) -> list[Any]:
        """All rows, those that were not asked for yet included: another buffer makes empty dicts of its own of them."""
        return self._data if self._chunk is None else self.data

    def copy_rows(self, rows: range | Sequence[int], lookback: int) -> InfosBuffer:
        """Return a buffer of the same dicts; arguments as for the other columns."""
        data = self._raw_rows()
        return InfosBuffer([data[i] for i in rows], lookback)

    def with_newest_again(self) -> InfosBuffer:
        """Return a buffer of copies of the dicts, and of the newest one once more."""
        data = self._raw_rows()
        return InfosBuffer([dict(row) if type(row) is dict else row for row in (*data, data[-1])], self.lookback)

    def copies(self) -> list[Any]:
        """Return deep copies of all rows."""
        return [{} if row is EMPTY else copy.deepcopy(row) if row else row.copy() for row in self._raw_rows()]

    def pop(self, index: int = -1) -> Any:
        """Remove and return a row."""
        self.own()
        row = self._data.pop(index)
        return {} if row is EMPTY else row

    drop_last = pop

    def last(self) -> Any:
        """Return the newest row; an empty dict if there is none."""
        return self._row(count - 1) if (count := self.len_incl_lookback()) else {}

    def own(self) -> None:
        """Read all rows out of the block that they lie in, if they do."""
        if self._chunk is not None:
            self._data, self._chunk = self.data, None

    def rows_read(self) -> dict[int, Any]:
        """Return the rows that were read or written, which may have been changed, by their position."""
        return {position: row for position, row in enumerate(self._data) if row is not EMPTY}

    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""
        chunk, data = self._chunk, self._data
        if chunk is not None:
            data.extend([EMPTY] * (chunk.end + 1 - chunk.low - len(data)))
        return len(data)

    def _row(self, position: int) -> Any:
        row = self._data[position]
        if row is EMPTY:
            row = self._data[position] = {} if self._chunk is None else self._chunk.info_at(position)
        return row

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
        count = self.len_incl_lookback()
        items = enumerate(self._raw_rows())
        rows = {i: row for i, row in items if row is not EMPTY and (type(row) is not dict or row)}
        return {"count": count, "rows": rows, "lookback": self.lookback, "t_started": self.t_started}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._data, self._chunk = [EMPTY] * state["count"], None
        for i, row in make_writable(state["rows"]).items():
            self._data[i] = row
        self.lookback, self.t_started = state["lookback"], state["t_started"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InfosBuffer):
            return NotImplemented
        return self.lookback == other.lookback and same_value(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"InfosBuffer({self.len_incl_lookback()} rows, lookback={self.lookback})"


def mark_placeholders(buffers: Sequence[InfosBuffer]) -> list[bool]:
    """Return for the infos of each chunk whether its last observation is a placeholder of a terminal one."""
    rows: list[Any] = [buffer._data[-1] if buffer._chunk is None and buffer._data else EMPTY for buffer in buffers]
    return [
        row is not EMPTY and MISSING_FINAL_OBS in row if buffer._chunk is None else buffer._chunk.lacks_final_obs
        for buffer, row in zip(buffers, rows)
    ]
