"""Columns of train batches that are never read, so that the pipeline can omit them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import torch

from epibatch.core.columns import ALWAYS_KEPT, COLUMNS_LEFT_OUT, COLUMNS_READ, Columns, TrackedBatch
from epibatch.core.runtime import evaluation_mode
from epibatch.core.structs import flatten

from .loss import Loss, LossFunction, as_loss
from .update_rule import UpdateRule

_LOG = logging.getLogger("epibatch")


class ColumnUse(NamedTuple):
    """Columns of a module's train batch that are read, and those that are not.

    Args:
        read: Columns that the module, the loss or a piece read.
        left_out: Columns that are not read.
        bytes_saved: Size of the columns that are left out, in the examined batch.
        bytes_before: Size of all its columns.
    """

    read: frozenset[str]
    left_out: frozenset[str]
    bytes_saved: int
    bytes_before: int


def trace_columns(
    module: Any, loss: UpdateRule | LossFunction, batch: Mapping[str, Any], pipeline: Any = None
) -> ColumnUse:
    """Run a batch through a module and a loss, and return the columns that they read; for custom training loops.

    The module's `forward_train` and `compute_values` run without gradients and leave random generators unchanged.
    Pass `shared_data={"columns_left_out": {"default_policy": use.left_out}}` to later calls of the pipeline.

    Args:
        module: The module; of several, one.
        loss: The learner's loss: an update rule, such as a Loss, or a function `(batch, outputs, distribution_class)`.
        batch: The module's train batch from the pipeline: column -> tensor; a small one is enough.
        pipeline: The learner pipeline; its pieces read columns, too.

    Returns:
        The columns that are read, those that are not, and their size in bytes. Rewards and flags always stay.

    Examples:
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
    tracked = tracked_minibatch(function, batch, read)
    coefficients = function.initial_coefficients()
    with torch.random.fork_rng(), torch.set_grad_enabled(not isinstance(function, Loss)), evaluation_mode(module):
        if not isinstance(function, Loss):
            function.losses(tracked, module, function.make_own(module), coefficients)
            return _use(batch, read, () if pipeline is None else pipeline.pieces())
        outputs = module.forward_train(tracked)
        if hasattr(module, "compute_values"):
            outputs = {**outputs, Columns.VF_PREDS: module.compute_values(tracked)}
        function(tracked, outputs, module.get_train_action_dist_cls(), coefficients)
    return _use(batch, read, () if pipeline is None else pipeline.pieces())


def tracked_minibatch(
    loss: UpdateRule, minibatch: Mapping[str, Any], read: set[str], left_out: Set[str] = frozenset()
) -> TrackedBatch:
    """Return the minibatch that the module and the loss get, which records the columns that these or `augment` read.

    Args:
        loss: The loss.
        minibatch: Column -> tensor.
        read: The set to which names are added.
        left_out: Columns that the minibatch lacks because nothing read them before.
    """
    tracked = TrackedBatch(minibatch, read, left_out)
    augmented = loss.augment(tracked)
    return tracked if augmented is tracked else TrackedBatch(augmented, read, left_out)


def _use(batch: Mapping[str, Any], read: set[str], pieces: Iterable[Any]) -> ColumnUse:
    kept = {*read, *ALWAYS_KEPT}
    if kept & {Columns.NEXT_STATE_IN, Columns.NEXT_RESET_STATES}:
        kept.add(Columns.NEXT_OBS)  # they are made together with it
    for piece in pieces:
        kept.update(piece.reads or ())
        if "tensors" in (piece.input_layouts or ()):
            kept.update(piece.writes)
    sizes = {name: sum(int(getattr(leaf, "nbytes", 0)) for leaf in flatten(tree)[0]) for name, tree in batch.items()}
    left_out = frozenset(sizes.keys() - kept)
    saved = sum(sizes[name] for name in left_out)
    return ColumnUse(frozenset(read & sizes.keys()), left_out, saved, sum(sizes.values()))


class UnreadColumns:
    """Records the columns that each module reads in its first update; later updates omit the others.

    The update itself is recorded, so nothing runs twice. Recording starts again for a module that was replaced, as it
    has a new trainer, and for all modules when the pieces of the pipeline change.

    Args:
        pipeline: The learner pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._pieces: tuple[Any, ...] = ()
        self._read: defaultdict[Any, set[str]] = defaultdict(set)

    def begin(self, trainers: Mapping[str, Any]) -> dict[str, Any]:
        """Start recording in the trainers; return the `shared_data` for the pipeline."""
        pieces = self._pipeline.pieces() if hasattr(self._pipeline, "pieces") else ()
        changed = list(map(id, pieces)) != list(map(id, self._pieces))
        self._pieces, self._read = pieces, defaultdict(set)
        for module_id, trainer in trainers.items():
            trainer.read = self._read[module_id]
            if changed:
                trainer.column_use = None
        left_out = {key: trainer.column_use.left_out for key, trainer in trainers.items() if trainer.column_use}
        return {COLUMNS_READ: self._read, COLUMNS_LEFT_OUT: left_out}

    def end(self, batch: Mapping[str, Any], trainers: Mapping[str, Any]) -> int:
        """Store the columns recorded in first updates; return the bytes that this update omitted."""
        saved = 0
        for module_id, columns in batch.items():
            trainer = trainers[module_id]
            if trainer.column_use is not None:
                saved += trainer.column_use.bytes_saved
            elif trainer.num_gradient_steps and trainer.has_computed:
                trainer.column_use = _use(columns, self._read[module_id] | self._read[None], self._pieces)
                _LOG.info("module %s: %s", module_id, trainer.column_use)
        return saved
