"""Finds the columns of train batches that nobody reads, so that the pipeline need not make them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from epibatch.core.column_use import COLUMNS_LEFT_OUT, COLUMNS_READ, ReadColumns, left_out_of
from epibatch.core.columns import Columns
from epibatch.core.rl_module.rl_module import evaluation_mode
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

    def __str__(self) -> str:
        names = ", ".join(sorted(self.left_out)) or "none"
        share = self.bytes_saved / max(1, self.bytes_before)
        return f"columns left out: {names}; {self.bytes_saved} of {self.bytes_before} bytes per batch ({share:.0%})"


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
    as_loss_ = as_loss(loss)
    with torch.random.fork_rng(), torch.no_grad(), evaluation_mode(module):
        outputs = module.forward_train(ReadColumns(batch, read))
        if hasattr(module, "compute_values"):
            values = module.compute_values(ReadColumns(batch, read))
            outputs = {**outputs, Columns.VF_PREDS: values}
        distribution = module.get_train_action_dist_cls()
        as_loss_(ReadColumns(batch, read), outputs, distribution, as_loss_.initial_coefficients())
    return _use(batch, read, () if pipeline is None else pipeline.pieces())


def _use(batch: Mapping[str, Any], read: set[str], pieces: Any) -> ColumnUse:
    sizes = {name: sum(int(getattr(leaf, "nbytes", 0)) for leaf in flatten(own)[0]) for name, own in batch.items()}
    left_out = left_out_of(batch, read, pieces)
    return ColumnUse(frozenset(read), left_out, sum(sizes[name] for name in left_out), sum(sizes.values()))


class UnreadColumns:
    """Finds, in the first update of each module, which columns it reads; later ones go without the others.

    What is recorded is the update itself: nothing is run twice. It begins anew for a module that was replaced, and for
    all when the pipeline's pieces are others.

    Args:
        pipeline: The learner pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._pieces: tuple[Any, ...] = ()
        self._found: dict[str, tuple[Any, ColumnUse]] = {}
        self._read: dict[Any, set[str]] = {}

    def uses(self, modules: Any) -> dict[str, ColumnUse]:
        """Module id -> what was found about it."""
        return {key: use for key, (module, use) in self._found.items() if modules.get(key) is module}

    def begin(self, modules: Any) -> dict[str, Any]:
        """What the pipeline's `shared_data` needs in the next update."""
        pieces = self._pipeline.pieces() if hasattr(self._pipeline, "pieces") else ()
        if len(pieces) != len(self._pieces) or any(one is not other for one, other in zip(pieces, self._pieces)):
            self._pieces, self._found = pieces, {}
        self._read = {}
        left_out = {key: use.left_out for key, use in self.uses(modules).items()}
        return {COLUMNS_READ: self._read, COLUMNS_LEFT_OUT: left_out}

    def watch(self, trainers: Mapping[str, Any]) -> None:
        """Let each trainer take note of what it reads, or refuse what was left out."""
        known = self.uses({key: own.module for key, own in trainers.items()})
        for module_id, trainer in trainers.items():
            use = known.get(module_id)
            trainer.read = self._read.setdefault(module_id, set()) if use is None else None
            trainer.left_out = frozenset() if use is None else use.left_out

    def end(self, batch: Mapping[str, Any], trainers: Mapping[str, Any]) -> int:
        """Settle what was found in an update; gives the bytes that it went without."""
        known = self.uses({key: own.module for key, own in trainers.items()})
        for module_id, columns in batch.items():
            trainer = trainers[module_id]
            if module_id not in known and trainer.num_gradient_steps:
                read = self._read.get(module_id, set()) | self._read.get(None, set())
                use = _use(columns, read, self._pieces)
                self._found[module_id] = trainer.module, use
                _LOG.info("module %s: %s", module_id, use)
        return sum(known[module_id].bytes_saved for module_id in batch if module_id in known)
