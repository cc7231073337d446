"""What a buffer needs of whoever owns its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from .growing_column import GrowingColumn

__all__ = ["NOTHING", "BufferSource"]


class _Nothing:
    """Marks the absence of a row (None is a legal observation); copies of it are the mark itself."""

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class BufferSource(Protocol):
    """Where a buffer that does not own its rows gets them: one environment's part of a block."""

    def sync(self, buffer: GrowingColumn) -> None:
        """Point the buffer at the rows as they are now."""

    def promote(self, leaf: int, dtype: np.dtype[Any] | None) -> None:
        """Give a leaf of the block another dtype (None: an object column)."""

    def write_newest(self, row: Any) -> None:
        """Replace the provisional row."""

    def elsewhere(self) -> bool:
        """Whether the newest row will never lie in the block, because it is another episode's there."""

    def release(self, change: str) -> None:
        """Called before the buffer copies its rows to own them.

        Args:
            change: What needs rows of its own.

        Raises:
            EpisodeStateError: the rows are still being recorded.
        """
