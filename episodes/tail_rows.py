"""Last observations of chunks that lie apart from a store of tensors, as rows of tensors themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from epibatch.core.arrays_or_tensors import take
from epibatch.core.structs import map_struct

from .store import Ints


class TailRows(Mapping[int, Any]):
    """The last observations of some chunks: position of a chunk -> its row.

    Args:
        chunks: Their positions: int64 [K], ascending.
        rows: Tensors of shape [K, ...], nested as the column.
    """

    def __init__(self, chunks: Ints, rows: Any) -> None:
        self.chunks, self.rows = chunks, rows

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.chunks.tolist())

    def __getitem__(self, chunk: int) -> Any:
        at = int(self.chunks.searchsorted(chunk))
        if at == len(self.chunks) or self.chunks[at] != chunk:
            raise KeyError(chunk)
        return map_struct(lambda leaf: leaf[at], self.rows)

    def among(self, chunks: Ints) -> tuple[Ints, Any]:
        """Return which of some chunks have a row here, and these rows.

        Args:
            chunks: Positions of chunks: int64 [R].

        Returns:
            Numbers among these chunks, int64 [M]; and tensors [M, ...].
        """
        found = np.flatnonzero(np.isin(chunks, self.chunks))
        at = self.chunks.searchsorted(chunks[found])
        return found, map_struct(lambda leaf: take(leaf, at), self.rows)
