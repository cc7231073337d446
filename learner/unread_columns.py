"""The columns of train batches that nothing reads, so that the pipeline need not make them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from epibatch.core.column_use import ALWAYS_KEPT, COLUMNS_LEFT_OUT, COLUMNS_READ, TrackedBatch
from epibatch.core.columns import Columns
from epibatch.core.rl_module.evaluation_mode import evaluation_mode
from epibatch.core.structs import flatten

from .loss import Loss, LossFunction, as_loss

__all__ = ["ColumnUse", "UnreadColumns", "trace_columns"]

_LOG = logging.getLogger("epibatch")


class ColumnUse(NamedTuple):
    """Who needs which columns of a module's train batch.

    Args:
        read: Columns that the module, the loss or a piece read.
        left_out: Columns that nobody does.
        bytes_saved: Of the latter, in the batch that was looked at.
        bytes_before: Of all columns in it.
    """

    read: frozenset[str]
    left_out: frozenset[str]
    bytes_saved: int
    bytes_before: int


def trace_columns(module: Any, loss: Loss | LossFunction, batch: Mapping[str, Any], pipeline: Any = None) -> ColumnUse:
    """Run a batch through a module and a loss, and say which of its columns they read; for a loop of one's own.

    The module's `forward_train` and `compute_values` are run, without gradients and without using up random numbers.
    Give later calls of the pipeline `shared_data={"columns_left_out": {"default_policy": use.left_out}}`.

    Args:
        module: The module; of several, one.
        loss: What the learner is given: a Loss, or a function `(batch, outputs, distribution_class)`.
        batch: The module's train batch, as the pipeline made it: column -> tensor; a small one is enough.
        pipeline: The learner pipeline, whose pieces read columns, too.

    Returns:
        The columns that are read, those that are not, and what these take. Rewards and flags always stay.

    Example:
        >>> from epibatch.core.rl_module import TorchRLModule
        >>> class Sum(TorchRLModule):
        ...     def _forward(self, batch, **kwargs):
        ...         return {"sums": batch["obs"].sum(-1)}
        ...     def get_train_action_dist_cls(self):
        ...         return None
        >>> batch = {"obs": torch.ones(2, 3), "rewards": torch.ones(2), "new_obs": torch.ones(2, 3)}
        >>> def loss(batch, outputs, distribution_class):
        ...     return outputs["sums"].mean(), {}
        >>> use = trace_columns(Sum(), loss, batch)
        >>> sorted(use.left_out), use.bytes_saved
        (['new_obs'], 24)
    """
    read: set[str] = set()
    function = as_loss(loss)
    tracked = TrackedBatch(batch, read)
    with torch.random.fork_rng(), torch.no_grad(), evaluation_mode(module):
        outputs = module.forward_train(tracked)
        if hasattr(module, "compute_values"):
            outputs = {**outputs, Columns.VF_PREDS: module.compute_values(tracked)}
        function(tracked, outputs, module.get_train_action_dist_cls(), function.initial_coefficients())
    return _use(batch, read, () if pipeline is None else pipeline.pieces())


def _use(batch: Mapping[str, Any], read: set[str], pieces: Iterable[Any]) -> ColumnUse:
    kept = {*read, *ALWAYS_KEPT}
    if kept & {Columns.NEXT_STATE_IN, Columns.NEXT_RESET_STATES}:
        kept.add(Columns.NEXT_OBS)  # beside which they are made
    for piece in pieces:
        kept.update(piece.reads or ())
        if "tensors" in (piece.input_layouts or ()):
            kept.update(piece.writes)
    sizes = {name: sum(int(getattr(leaf, "nbytes", 0)) for leaf in flatten(own)[0]) for name, own in batch.items()}
    left_out = frozenset(sizes.keys() - kept)
    saved = sum(sizes[name] for name in left_out)
    return ColumnUse(frozenset(read & sizes.keys()), left_out, saved, sum(sizes.values()))


class UnreadColumns:
    """Finds, in the first update of each module, which columns it reads; later updates omit the others.

    The update itself is recorded: nothing runs twice. Recording starts again for a module that was replaced, which has
    a trainer of its own, and for all modules when the pipeline has other pieces.

    Args:
        pipeline: The learner pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._pieces: tuple[Any, ...] = ()
        self._read: defaultdict[Any, set[str]] = defaultdict(set)

    def begin(self, trainers: Mapping[str, Any]) -> dict[str, Any]:
        """Let the trainers record what they read; returns what the pipeline needs in `shared_data`."""
        pieces = self._pipeline.pieces() if hasattr(self._pipeline, "pieces") else ()
        changed = list(map(id, pieces)) != list(map(id, self._pieces))
        self._pieces, self._read = pieces, defaultdict(set)
        for module_id, trainer in trainers.items():
            trainer.read = self._read[module_id]
            if changed:
                trainer.column_use = None
        left_out = {module_id: own.column_use.left_out for module_id, own in trainers.items() if own.column_use}
        return {COLUMNS_READ: self._read, COLUMNS_LEFT_OUT: left_out}

    def end(self, batch: Mapping[str, Any], trainers: Mapping[str, Any]) -> int:
        """Keep what a first update has shown; returns the bytes that this update omitted."""
        saved = 0
        for module_id, columns in batch.items():
            trainer = trainers[module_id]
            if trainer.column_use is not None:
                saved += trainer.column_use.bytes_saved
            elif trainer.num_gradient_steps:
                trainer.column_use = _use(columns, self._read[module_id] | self._read[None], self._pieces)
                _LOG.info("module %s: %s", module_id, trainer.column_use)
        return saved
