"""Info dicts of one environment, made on access from the infos of whole vector steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import EpisodeIndexError

from .indexing import Positions
from .infos_buffer import InfosBuffer
from .lookback_buffer import LookbackBuffer

if TYPE_CHECKING:
    from .chunk import Chunk

__all__ = ["BlockInfos", "env_infos"]


def env_infos(infos: dict[str, Any], env: int) -> dict[str, Any]:
    """One environment's part of a vector environment's infos.

    Gymnasium's vector environments deliver a dict of arrays; a boolean array `_key` says which
    environments have `key`.
    """
    own: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[env]:
            continue
        if isinstance(value, dict):
            own[key] = env_infos(value, env)
        else:
            own[key] = value[env] if isinstance(value, (np.ndarray, list, tuple)) else value
    return own


class BlockInfos(LookbackBuffer):
    """The infos of a chunk of a block; a list of its own once rows are added or taken away.

    Args:
        chunk: Whose infos.
    """

    __slots__ = ("_made", "_own", "chunk")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._made: dict[int, Any] = {}
        self._own: list[Any] | None = None
        self.lookback = chunk.start - chunk.low
        self.t_started = chunk.t_started

    @property
    def space(self) -> None:
        """Infos have no space."""
        return None

    @property
    def data(self) -> list[Any]:
        """All rows, lookback included."""
        return self._rows(range(self.len_incl_lookback()))

    def append(self, item: Any) -> None:
        """Add one row; the block stays as it is."""
        self._own_rows().append(item)

    def extend(self, items: Sequence[Any]) -> None:
        """Add rows; the block stays as it is."""
        self._own_rows().extend(items)

    def pop(self, index: int = -1) -> Any:
        """Remove and return a row; the block stays as it is."""
        return self._own_rows().pop(index)

    def for_copy(self, rows: Sequence[int]) -> list[Any]:
        """Rows for another buffer, at absolute positions."""
        return [self._row(position) for position in rows]

    def _own_rows(self) -> list[Any]:
        if self._own is None:
            self._own = self.data
        return self._own

    def own(self) -> None:
        """Do nothing: rows are in a list of their own where they are changed."""

    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""
        return self.chunk.end + 1 - self.chunk.low if self._own is None else len(self._own)

    def _row(self, position: int) -> Any:
        if self._own is not None:
            return self._own[position]
        if position not in self._made:
            chunk = self.chunk
            row = chunk.low + position
            if row == chunk.stop and chunk.tail_infos is not None:
                infos = chunk.tail_infos
            else:
                block = chunk.block
                own = block.own_infos.get((row, chunk.env))
                infos = env_infos(block.infos.get(row, {}), chunk.env) if own is None else own
            self._made[position] = infos
        return self._made[position]

    def _span(self, start: int, stop: int) -> list[Any]:
        return [self._row(position) for position in range(start, stop)]

    def _rows(self, positions: Positions) -> list[Any]:
        return [self._row(int(p)) for p in positions]

    def _filled_rows(self, positions: np.ndarray[Any, np.dtype[np.int64]], fill: Any) -> list[Any]:
        total = self.len_incl_lookback()
        return [self._row(int(p)) if 0 <= p < total else fill for p in positions]

    def _fill_row(self, fill: Any) -> Any:
        return fill

    def _write_row(self, position: int, row: Any) -> None:
        rows: Any = self._made if self._own is None else self._own
        rows[position] = row

    def _write_rows(self, positions: Positions, new_data: Any) -> None:
        if len(new_data) != len(positions):
            raise EpisodeIndexError(
                "infos", expected=f"{len(positions)} rows", found=f"{len(new_data)}", do="match the indices"
            )
        for position, row in zip(positions, new_data):
            self._write_row(int(position), row)

    def __eq__(self, other: object) -> bool:
        return bool(InfosBuffer(self.data, self.lookback) == other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return InfosBuffer, (self.data, self.lookback)
