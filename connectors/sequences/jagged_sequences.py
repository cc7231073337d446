"""Gives modules their sequences one after the other, without padding."""

from __future__ import annotations

from typing import Any, ClassVar

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .batch_of_sequences import PieceOfSequences, map_rows, map_sequences, num_sequences_and_steps


class JaggedSequences(PieceOfSequences):
    """Makes each column `[B, T, ...]` the rows `[R, ...]` of its real steps, one sequence after the other.

    `seq_offsets` int64 [B + 1] says where sequences begin: rows `seq_offsets[b]` to `seq_offsets[b + 1]` are sequence
    b. Attention for sequences of different lengths takes this form (as `cu_seqlens`), and
    `torch.nested.nested_tensor_from_jagged(batch["obs"], batch["seq_offsets"])` is the nested tensor over the same
    memory. Columns with one row per sequence (`state_in`, `seq_lens`) stay. Put it at the pipeline's end.

    Use it in a user's training loop. The Learner refuses ragged batches, because it cuts batches into minibatches.

    Examples:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> batch = {"obs": torch.tensor([[1.0, 2.0], [3.0, 0.0]]), "seq_lens": torch.tensor([2, 1])}
        >>> batch["loss_mask"] = batch["obs"] > 0
        >>> batch = JaggedSequences()(rl_module=SimpleNamespace(), batch=batch, episodes=[])
        >>> batch["obs"], batch["seq_offsets"]
        (tensor([1., 2., 3.]), tensor([0, 2, 3]))
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.SEQ_OFFSETS,)

    def changed(self, batch: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Take each module's sequences out of their padding."""
        import torch

        lengths = batch[Columns.SEQ_LENS]
        _, steps = num_sequences_and_steps(batch)
        mask = torch.arange(steps, device=lengths.device) < lengths[:, None]
        places = torch.nonzero(mask.flatten()).flatten()
        out = map_rows(batch, group, lambda leaf: leaf.flatten(0, 1).index_select(0, places))
        out |= map_sequences(batch, group, lambda leaf: leaf)
        out = {name: out[name] for name in batch}
        group.ragged = True
        out[Columns.SEQ_OFFSETS] = torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])
        return out
