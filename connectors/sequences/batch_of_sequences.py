"""Helpers for pieces after NumpyToTensor that work on a finished train batch of sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct

from .._engine.chunks import ChunkGroup
from ..columnar_piece import Piece

if TYPE_CHECKING:
    import torch


class PieceOfSequences(Piece):
    """A piece that changes the sequences of a finished train batch, module by module; without any, nothing."""

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    reads: ClassVar[tuple[str, ...]] = (Columns.LOSS_MASK,)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Change the sequences, if there are any."""
        return self.changed(columns, group) if Columns.SEQ_LENS in columns else columns

    @abstractmethod
    def changed(self, batch: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Return the batch with other sequences."""


def num_sequences_and_steps(batch: dict[str, Any]) -> tuple[int, int]:
    """B and T of a batch with `seq_lens` and `loss_mask`.

    Raises:
        ColumnError: it has no `loss_mask` [B, T].
    """
    mask = batch.get(Columns.LOSS_MASK)
    if mask is None or mask.ndim != 2:
        raise ColumnError(
            "a batch of sequences",
            expected=f"a column {Columns.LOSS_MASK!r} [sequences, steps]",
            found="none" if mask is None else f"shape {list(mask.shape)}",
            do="let AddTimeDimToBatchAndZeroPad make the sequences",
        )
    return int(mask.shape[0]), int(mask.shape[1])


def map_rows(
    batch: dict[str, Any],
    group: ChunkGroup,
    function: Callable[[torch.Tensor], Any],
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Columns with a time axis, each tensor `[B, T, ...]` of them as `function` changes it.

    Args:
        batch: Has `loss_mask` [B, T].
        call: What the batch is about; it knows the columns that have no time axis.
        function: Gets one leaf.
        only: Which columns; None: all.
    """
    import torch

    shape = batch[Columns.LOSS_MASK].shape

    def changed(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, torch.Tensor) and leaf.shape[:2] == shape else leaf

    return {
        name: column if isinstance(column, list) else map_struct(changed, column)
        for name, column in batch.items()
        if not group.is_per_sequence(name) and (only is None or name in only)
    }


def map_sequences(batch: dict[str, Any], group: ChunkGroup, function: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Columns with one row per sequence, each tensor `[B, ...]` of them as `function` changes it."""
    return {name: map_struct(function, column) for name, column in batch.items() if group.is_per_sequence(name)}
