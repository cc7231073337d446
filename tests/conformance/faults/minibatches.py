"""The minibatches that both libraries make of a batch."""

from __future__ import annotations

from itertools import islice
from typing import Any

from oracle.libraries import RLLIB
from oracle.probes import plain


def minibatches(library: Any, batches: dict[str, dict[str, Any]], size: int) -> dict[str, Any]:
    """For each module the column `x` of its first five minibatches in one epoch, unshuffled."""
    if library is not RLLIB:
        made = library.module("learner.minibatches").Minibatches
        return {
            name: [plain(part["x"]) for part in islice(made(batch, size=size, shuffle=None), 5)]
            for name, batch in batches.items()
        }
    sample_batch = library.module("policy.sample_batch")
    columns = {
        name: sample_batch.SampleBatch(batch, _zero_padded="seq_lens" in batch) for name, batch in batches.items()
    }
    for name, batch in columns.items():
        if "seq_lens" in batches[name]:  # as its Learner does for recurrent modules
            batch.enable_slicing_by_batch_id()
    together = sample_batch.MultiAgentBatch(columns, 1)
    parts = library.module("utils.minibatch_utils").MiniBatchCyclicIterator(
        together, minibatch_size=size, shuffle_batch_per_epoch=False
    )
    shown: dict[str, Any] = {name: [] for name in batches}
    for part in islice(parts, 5):
        for name, own in part.policy_batches.items():
            shown[name].append(plain(own["x"]) if "x" in own else "no columns")
    return shown
