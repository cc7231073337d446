"""Gives recurrent layers their sequences without padding, as torch packs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ConfigError, UnknownNameError, nearest

from .._engine.chunks import ChunkGroup
from .batch_of_sequences import PieceOfSequences, map_rows, map_sequences, num_sequences_and_steps

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence


class PackSequences(PieceOfSequences):
    """Makes each column `[B, T, ...]` a `torch.nn.utils.rnn.PackedSequence` of the real steps.

    `nn.LSTM`, `nn.GRU` and `nn.RNN` take it as it is, with `state_in` as it stands in the batch, and compute nothing
    for padding. All columns are packed alike, so their `data` [R, ...] lie row by row beside each other. Sequences
    without a step (a bootstrap row alone) are left out. Put it at the pipeline's end, after advantages.

    Use it in a user's training loop. The Learner refuses packed batches, because it cuts batches into minibatches.

    Args:
        columns: The columns to pack; None: all that have a time axis.

    Raises:
        BatchLayoutError: sequences hold several chunks. A packed sequence cannot reset its state in between.
        UnknownNameError: the batch does not have a column.
        ConfigError: `columns` is no list of names.

    Examples:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> batch = {"obs": torch.tensor([[1.0, 2.0], [3.0, 0.0]]), "seq_lens": torch.tensor([2, 1])}
        >>> batch["loss_mask"] = batch["obs"] > 0
        >>> PackSequences()(rl_module=SimpleNamespace(), batch=batch, episodes=[])["obs"].data
        tensor([1., 3., 2.])
    """

    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the names."""
        if isinstance(self.columns, str) or not all(isinstance(name, str) for name in self.columns or ()):
            raise ConfigError(
                "PackSequences, columns",
                expected="a list of column names, or None for all",
                found=repr(self.columns),
                do="write columns=['obs'], for example",
            )

    def changed(self, batch: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Pack each module's sequences."""
        import torch
        from torch.nn.utils.rnn import PackedSequence

        if Columns.RESETS in batch:
            raise BatchLayoutError(
                "PackSequences",
                expected="sequences of one chunk each",
                found="sequence_end 'continue', in whose sequences other chunks begin",
                do="use JaggedSequences, or sequence_end 'pad', whose padding is not packed",
            )
        unknown = [name for name in self.columns or () if name not in batch or group.is_per_sequence(name)]
        if unknown:
            names = sorted(name for name in batch if not group.is_per_sequence(name))
            expected, do = f"columns with a time axis: {', '.join(names)}", nearest(unknown[0], names)
            raise UnknownNameError("PackSequences, columns", expected=expected, found=repr(unknown[0]), do=do)
        kept = torch.nonzero(batch[Columns.SEQ_LENS]).flatten()
        rows, steps = num_sequences_and_steps(batch)
        lengths, order = torch.sort(batch[Columns.SEQ_LENS][kept], descending=True, stable=True)
        time = torch.arange(steps, device=order.device)[:, None]
        mask = time < lengths
        places = (kept[order] * steps + time)[mask]
        sizes = mask.sum(1)
        sizes = sizes[sizes > 0].cpu()
        back = torch.argsort(order)

        def pack(leaf: torch.Tensor) -> PackedSequence:
            return PackedSequence(leaf.flatten(0, 1).index_select(0, places), sizes, order, back)

        def keep(leaf: torch.Tensor) -> torch.Tensor:
            return leaf if len(kept) == rows else leaf.index_select(0, kept)

        out = (
            map_sequences(batch, group, keep)
            | map_rows(batch, group, keep)
            | map_rows(batch, group, pack, self.columns)
        )
        return {name: out[name] for name in batch}
