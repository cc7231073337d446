"""Refuses numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import flatten, paths_of

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather
from .._engine.sequences import layout_of, leading_axes
from ..authoring.column_paths import ColumnPath, paths_from
from ..authoring.fields import ParameterPiece
from ..columnar_piece import Piece


class CheckFinite(ParameterPiece, Piece):
    """Raises on NaN or infinity in a column, and names the column, row, episode and step.

    It checks the columns that the batch has at its position. At the start of a pipeline, where the batch is empty, it
    checks the episodes: observations, and for training actions and rewards. After `NumpyToTensor` it waits for the
    device.

    Counterparts: TorchRL's `FiniteTensorDictCheck`.

    Args:
        columns: The columns to check; None: all columns.

    Raises:
        ColumnError: a number is not finite, or there is no such column.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [0.0, 1.0, 2.0], "actions": [0, 0], "rewards": [1.0, float("nan")]}
        >>> episode = SingleAgentEpisode(id_="e", **rows, len_lookback_buffer=0)
        >>> CheckFinite(columns="rewards")(batch={}, episodes=[episode])
        Traceback (most recent call last):
            ...
        epibatch.core.errors.ColumnError: column 'rewards', row 1: episode 'e' (chunk 0 of 1), step 1
          expected: finite numbers
          found:    nan (1 of 2 numbers are not finite)
          do:       mend what made it, an environment, a network or an earlier piece
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "module_to_env", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes", "arrays", "tensors")
    needs_episodes: ClassVar[bool] = True
    columns: Any = None

    def __post_init__(self) -> None:
        """Take the names apart."""
        self._paths = () if self.columns is None else paths_from("CheckFinite", self.columns)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Look at the columns; the batch stays as it is."""
        for path in self._paths or self._all(columns, group):
            column = column_or_gather(columns, group, path.column, type(self).__name__)
            wrapped = isinstance(column, EpisodeColumn)
            if wrapped and column.holds_objects:
                continue
            counts = column.counts if wrapped else None
            leaves, form = flatten(path.part(column.data if wrapped else column))
            for leaf, at in zip(leaves, paths_of(form)):
                if not _is_finite(leaf):
                    padded = wrapped and leading_axes(group, path.column, column) > 1
                    raise _not_finite(leaf, f"{path}{at}", counts if wrapped else False, group, padded=padded)
        return columns

    def _all(self, batch: dict[str, Any], group: ChunkGroup) -> Iterator[ColumnPath]:
        names = list(batch)
        if not names:
            names = [Columns.OBS, *([Columns.ACTIONS, Columns.REWARDS] if group.of_steps else [])]
        return (ColumnPath(name) for name in names)


def _is_finite(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind not in "fc" or bool(np.isfinite(leaf).all())
    return not hasattr(leaf, "isfinite") or not leaf.is_floating_point() or bool(leaf.isfinite().all())


def _not_finite(leaf: Any, name: str, counts: Any, group: ChunkGroup, *, padded: bool) -> ColumnError:
    """Return the error of an array with such numbers.

    Args:
        leaf: Array or tensor, rows first.
        name: Name of the column.
        counts: Rows of each chunk; None: one each; False: not known.
        group: The chunks.
        padded: Whether rows are sequences of steps.
    """
    array = leaf if isinstance(leaf, np.ndarray) else leaf.detach().cpu().double().numpy()
    mask = ~np.isfinite(array)
    first = np.unravel_index(int(mask.argmax()), mask.shape)
    row = int(first[0])
    where = f"row {row}" + (f", entry {[int(at) for at in first[1:]]}" if len(first) > 1 else "")
    if padded:
        layout = layout_of(group)
        row, counts = int(layout.source[row * layout.max_seq_len + int(first[1])]), layout.counts
    if counts is not False:
        ends = np.arange(1, len(array) + 1) if counts is None else np.cumsum(counts)
        chunk = int(np.searchsorted(ends, row, side="right"))
        step = group.reader.starts[chunk] + (
            int(group.lengths[chunk]) if counts is None else row - int(ends[chunk] - counts[chunk])
        )
        where += f": {group.describe(chunk)}, step {step}"
    return ColumnError(
        f"column {name!r}, {where}",
        expected="finite numbers",
        found=f"{array[first]} ({int(mask.sum())} of {mask.size} numbers are not finite)",
        do="mend what made it, an environment, a network or an earlier piece",
    )
