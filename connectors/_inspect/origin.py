"""Numbers of the rows of train batches, which say of which chunk and step each row is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from epibatch.core import DEFAULT_MODULE_ID

from ...episodes.chunk_table import ChunkTable
from ...episodes.chunks_by_module import ChunksByModule
from .._engine.batch_items import single_agent_episode_iterator
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import LearnerPiece, is_columnar
from ..learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate

ROW_ORIGIN = "row_origin"
"""The column with the numbers; 0 is padding."""
MOST_LOOKBACK = 16
"""Steps before a chunk's start that are shown, at most."""


class RowOrigin(NamedTuple):
    """The origin of each row of a module's train batch.

    Args:
        chunk: Position of the row's chunk in `PipelineTrace.chunks`: int64, `[B]` or `[B, T]`; -1: padding.
        step: Step of the chunk, from 0; its length: the bootstrap row. Int64, the same shape; -1: padding.
    """

    chunk: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]


def chunks_of(episodes: Sequence[Any]) -> list[Any]:
    """The chunks of all agents; those of a draw are copies, with little lookback: they may know their whole episode."""
    if isinstance(episodes, ChunkTable):
        return episodes[:] if episodes.owns else episodes.with_lookback(MOST_LOOKBACK)[:]
    if isinstance(episodes, ChunksByModule):
        return [chunk for table in episodes.by_module.values() for chunk in chunks_of(table)]
    return list(single_agent_episode_iterator(episodes, agents_that_stepped_only=False))


def is_draw(episodes: Sequence[Any]) -> bool:
    """True if chunks were drawn from a replay buffer: their rows lie in its columns."""
    return isinstance(episodes, (ChunkTable, ChunksByModule))


class NumberRows(LearnerPiece):
    """Numbers the rows of a train batch. Later pieces arrange the numbers like any column.

    Attributes:
        chunks: The chunks of the numbered rows, each a `SingleAgentEpisode`.
    """

    writes: ClassVar[tuple[str, ...]] = (ROW_ORIGIN,)

    def __post_init__(self) -> None:
        """Begin with number 1."""
        self._sources: list[tuple[Any, int]] = []
        self._origins: list[npt.NDArray[np.int64]] = [np.array([[-1], [-1]])]
        self._next = 1

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the numbers of one group's rows."""
        episodes = group.episodes if group.own is None else group.own
        counts = group.counts
        chunks, total = np.repeat(np.arange(len(counts)), counts), int(counts.sum())
        steps = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        self._origins.append(np.stack([chunks + len(self._sources), steps]))
        self._sources += [(episodes, i) for i in range(len(counts))]
        columns[ROW_ORIGIN] = EpisodeColumn(np.arange(total) + self._next, counts, item_per_row=True)
        self._next += total
        return columns

    @property
    def chunks(self) -> list[Any]:
        """The chunks of the numbered rows."""
        tables = {id(episodes): episodes for episodes, _ in self._sources}
        chunks = {name: chunks_of(episodes) for name, episodes in tables.items() if is_draw(episodes)}
        return [chunks.get(id(episodes), episodes)[i] for episodes, i in self._sources]

    def taken_from(self, batch: dict[str, Any]) -> dict[str, RowOrigin]:
        """Remove the numbers from a batch, and return the origin of its rows by module."""
        by_module: Any = {DEFAULT_MODULE_ID: batch} if ROW_ORIGIN in batch else batch
        found = {}
        table = np.concatenate(self._origins, 1)
        for module_id, columns in by_module.items():
            numbers: Any = columns.pop(ROW_ORIGIN, None) if isinstance(columns, dict) else None
            numbers = numbers[0] if isinstance(numbers, tuple) else numbers  # of a PackedSequence
            if hasattr(numbers, "shape"):  # not the items of a pipeline that does not batch them
                origin = table[
                    :, np.asarray(numbers.detach().cpu() if hasattr(numbers, "detach") else numbers, np.int64)
                ]
                found[module_id] = RowOrigin(*origin)
        return found


def insert_numbering(pipeline: Any) -> NumberRows:
    """Put a piece that numbers rows into a pipeline: after bootstrap rows are added, or else before the columns are."""
    piece = NumberRows()
    if not _insert_after_bootstrap(pipeline, piece):
        position = next((i for i, other in enumerate(pipeline) if is_columnar(other)), len(pipeline))
        if position < len(pipeline):
            pipeline.insert_before(pipeline.names[position], piece)
        else:
            pipeline.append(piece)
    return piece


def _insert_after_bootstrap(pipeline: Any, piece: NumberRows) -> bool:
    for name, other in zip(pipeline.names, pipeline):
        if isinstance(other, AddOneTsToEpisodesAndTruncate):
            pipeline.insert_after(name, piece)
            return True
        if hasattr(other, "plan") and _insert_after_bootstrap(other, piece):
            return True
    return False
