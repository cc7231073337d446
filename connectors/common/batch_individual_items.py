"""Turns per-episode columns into batched arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from epibatch.core import ROW_MAP
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, PipelineError
from epibatch.core.structs import BatchedNdArray, flatten, flatten_like, stack_rows, unflatten

from .._engine.chunks import ChunkGroup, chunk_keys
from .._engine.columns import EpisodeColumn
from .._engine.layouts import rows_in
from ..columnar_piece import Piece

__all__ = ["BatchIndividualItems", "RowMap", "wrong_rows"]


class RowMap(Sequence[Any]):
    """A sequence of the episode of each row of a batch, built when it is read.

    Args:
        episodes: Episodes of the call that made the batch; not the call itself, because its `shared_data` holds the
            map.
        counts: Rows per chunk; None: one each.
        keys: Keys of the chunks, if there are no episodes to take them from.
    """

    def __init__(self, episodes: Sequence[Any], counts: Any, keys: Sequence[Any] = ()) -> None:
        self._episodes = episodes
        self._keys = keys
        self._counts = counts
        self._ids: list[Any] | None = None

    def _spelled(self) -> list[Any]:
        if self._ids is None:
            keys = [key[0] for key in self._keys or chunk_keys(self._episodes)]
            counts = [1] * len(keys) if self._counts is None else self._counts.tolist()
            self._ids = [key for key, count in zip(keys, counts) for _ in range(count)]
        return self._ids

    def __len__(self) -> int:
        return len(self._keys or self._episodes) if self._counts is None else int(self._counts.sum())

    def __getitem__(self, index: Any) -> Any:
        return self._spelled()[index]


class BatchIndividualItems(Piece):
    """Makes each column one array (or nested arrays) with the batch axis first.

    Infos and other Python objects stay lists. For a MultiRLModule the columns end up under
    `default_policy`.

    Counterparts: RLlib's `BatchIndividualItems`.

    Raises:
        ColumnError: a column with another number of rows than the others have for an episode.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    output_layout: ClassVar[str] = "arrays"
    multi_agent: bool = False

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Batch all columns."""
        if group.several and columns and not group.call.mapped:
            raise PipelineError(
                "episodes of several agents",
                expected="their columns by module",
                found="columns by agent",
                do="put AgentToModuleMapping before BatchIndividualItems",
            )
        group.batched = True
        for name in group.left_out if group.training else ():
            columns.pop(name, None)
        for column in columns.values():
            if group.of_steps or type(column) is not EpisodeColumn or column.counts is not None:
                self._check_rows(columns, group)
                break
        obs = columns.get(Columns.OBS)
        if isinstance(obs, EpisodeColumn) and not group.several:
            keys = () if len(group.episodes) else group.keys
            group.shared_data[ROW_MAP] = RowMap(group.episodes, obs.counts, keys)
        as_float32 = group.call.casts_to_float32 and group.rl_module is not None
        out = {}
        for name, column in columns.items():
            if not isinstance(column, EpisodeColumn):
                out[name] = _batched(name, column)
            else:
                as_rows = as_float32 and column.parts
                out[name] = as_rows.joined(as_float32=True) if as_rows else column.data
        return out

    run_tensors = Piece.leave_tensors

    def _check_rows(self, batch: dict[str, Any], group: ChunkGroup) -> None:
        columns = {
            name: column
            for name, column in batch.items()
            if isinstance(column, EpisodeColumn) and not column.holds_objects
        }
        made_before = Columns.SEQ_LENS in batch and group.rows is None  # sequences, by another call
        expected = _many(columns) if group.call.by_hand or made_before else group.expected_rows
        if expected is None:
            return
        total = int(expected.sum())
        for name, column in batch.items():
            if name == Columns.INFOS or not isinstance(column, (list, np.ndarray)):
                continue
            rows = sum(map(rows_in, column)) if isinstance(column, list) else len(column) if column.ndim else -1
            if rows not in (0, total):
                raise ColumnError(
                    f"column {name!r}, added without an episode",
                    expected=f"{total} rows, as the other columns have",
                    found=f"{rows} rows" if rows >= 0 else "a single value",
                    do="add one item per row of the batch, or say which episode each belongs to",
                )
        for name, column in columns.items():
            found = np.ones(len(group.keys), np.int64) if column.counts is None else column.counts
            if found is not expected and not np.array_equal(found, expected):
                raise wrong_rows(name, found, expected, group)


def _many(columns: dict[str, EpisodeColumn]) -> Any:
    """Outside a learner pipeline: the rows of a column that has more than one per chunk, if any has."""
    return next((column.counts for column in columns.values() if column.counts is not None), None)


def wrong_rows(name: str, found: Any, expected: Any, group: ChunkGroup) -> ColumnError:
    """The error of a column with other numbers of rows than its chunks have."""
    chunk = int(np.flatnonzero(found != expected)[0])
    of_step = "one per step" + " and one for the bootstrap" * group.plus_one
    unit = "as others have" if group.call.by_hand else of_step if group.training else "one per episode"
    unit = unit if group.rows is None else "one per sequence"
    return ColumnError(
        f"column {name!r}, {group.describe(chunk)}",
        expected=f"{expected[chunk]} rows, {unit}",
        found=f"{found[chunk]} rows",
        do=f"let the piece that writes it add as many: add_n_batch_items(batch, {name!r}, rows, len(rows), episode)",
    )


def _batched(name: str, column: Any) -> Any:
    if name == Columns.INFOS or not isinstance(column, list) or not column:
        return column
    leaves, form = flatten(column[0])
    if not leaves or not all(np.asarray(leaf).dtype.kind in "biufc" for leaf in leaves):
        return column
    if not isinstance(leaves[0], BatchedNdArray):
        return stack_rows(column)
    rows = zip(*(flatten_like(form, item) for item in column))
    return unflatten(form, [np.concatenate(leaf).view(np.ndarray) for leaf in rows])
