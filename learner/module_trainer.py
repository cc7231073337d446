"""Updates one module: minibatches through the loss, gradient steps, and the means of the metrics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from epibatch.core.columns import Columns, TrackedBatch
from epibatch.core.errors import ConfigError, EpibatchError, EpibatchWarning, NonFiniteLossError, add_context
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import check_count, check_like, restore_torch_generator
from epibatch.core.schedules import value_at
from epibatch.core.shared_moments import moments_of, pooled_moments
from epibatch.core.structs import map_struct

from .loss import Loss, add_missing_column, no_loss, numbers
from .minibatches import Minibatches, has_loss, row_steps
from .optimizers import GroupOptimizers, to_array
from .settings import LearnerSettings
from .together.learners import Learners
from .together.shared_update import SharedGradients, SharedUpdate
from .unread_columns import ColumnUse, tracked_minibatch
from .update_rule import Losses, UpdateRule, num_rows_of

Floats = npt.NDArray[np.float64]
_ROWS = "return Losses(losses, metrics, {name: a tensor [B, ...]}) for each name in row_outputs"
_ROW = "row of the batch"
"""Column of minibatches: the place of each row in the batch."""


class _UpdateMetrics:
    """Collects the minibatches' metrics, weighted by their valid rows, and the last epoch's value predictions."""

    def __init__(self) -> None:
        self._first_of_epoch = 0
        self._epochs = 0
        self._num_rows = 0
        self._values: list[Mapping[str, float]] = []
        self._weights: list[int] = []
        self._predictions: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

    def begin_epoch(self) -> None:
        """Begin the next epoch of minibatches."""
        self._first_of_epoch = len(self._values)
        self._epochs += 1
        self._predictions.clear()
        self._targets.clear()

    def add(self, values: Mapping[str, float], num_rows: int) -> None:
        """Add one minibatch's metrics and valid rows."""
        self._values.append(values)
        self._weights.append(num_rows)
        self._num_rows += num_rows if self._epochs == 1 else 0  # later epochs may end early

    def add_predictions(self, minibatch: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Add one minibatch's value predictions and targets."""
        if Columns.VF_PREDS in outputs and Columns.VALUE_TARGETS in minibatch:
            predictions, targets = outputs[Columns.VF_PREDS].detach(), minibatch[Columns.VALUE_TARGETS]
            mask = minibatch.get(Columns.LOSS_MASK)
            recurrent = mask is not None and mask.ndim > 1
            self._predictions.append(predictions[mask] if recurrent else predictions)
            self._targets.append(targets[mask] if recurrent else targets)

    def last_epoch(self) -> dict[str, float]:
        """Return means over the last epoch."""
        return self._means(self._first_of_epoch)

    def result(self, shared: SharedUpdate) -> dict[str, float]:
        """Return means over the whole update, with `explained_variance`, `num_rows` and `num_minibatches`.

        Args:
            shared: The update of all learners, whose value predictions count together.
        """
        means = self._means(0)
        means.update(self._explained(shared))
        means["num_rows"] = self._num_rows
        means["num_minibatches"] = len(self._values)
        return means

    def _explained(self, shared: SharedUpdate) -> dict[str, float]:
        """Return the share of the targets' variance that the predictions explain; 0 if the targets do not vary."""
        moments = [part for part in shared.finish(shared.attempt(self._moments)) if part is not None]
        if not moments:
            return {}
        counts, means, variances = np.stack(moments, axis=1)
        shares = counts / counts.sum(0)  # of one learner 1, so that its variance stays the same to the bit
        variances += (means - (shares * means).sum(0)) ** 2
        of_targets, of_errors = (shares * variances).sum(0).tolist()
        return {"explained_variance": 1.0 - of_errors / of_targets if of_targets else 0.0}

    def _moments(self) -> Floats | None:
        """Return number, mean and variance of targets and errors, float64 [3, 2]; None without any."""
        if not self._targets:
            return None
        targets = torch.cat(self._targets).double()
        both = targets, targets - torch.cat(self._predictions).double()
        return np.array([[len(x), float(x.mean()), float(x.var(correction=0))] for x in both]).T

    def _means(self, start: int) -> dict[str, float]:
        """Return the mean of each metric over the minibatches from one on that have it."""
        sums: dict[str, list[float]] = {}
        for values, weight in zip(self._values[start:], self._weights[start:]):
            for name, value in values.items():
                total = sums.setdefault(name, [0, 0])
                total[0] += value * weight
                total[1] += weight
        return {name: total / (weight or 1) for name, (total, weight) in sums.items()}


def _watched(minibatch: dict[str, Any], columns: Mapping[str, Any], read: set[str]) -> TrackedBatch:
    """Return a minibatch that records in `read` what a loss reads of it, without what the module reads."""
    left_out = getattr(minibatch, "left_out", frozenset[str]())
    watched = TrackedBatch(columns, getattr(minibatch, "read", set[str]()), left_out)
    watched.of_loss = TrackedBatch(columns, read, left_out)
    return watched


def _is_trainable(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _lacks(interface: type, module: Any, rule: UpdateRule) -> ConfigError:
    return ConfigError(
        f"{type(rule).__name__} with the module {type(module).__name__}",
        expected=f"a module with the methods of {interface.__name__}",
        found=f"none, in {type(module).__name__}",
        do=f"let it inherit {interface.__name__} and write its methods",
    )


def _has_padding(mask: Any) -> bool:
    """True if a mask [B, T] has steps without loss in sequences with loss; of flat batches, rows are drawn by it."""
    if mask is None or np.ndim(mask) < 2:
        return False
    mask = torch.as_tensor(mask).bool()
    return not bool(mask[mask.flatten(1).any(1)].all())


def _moments_of_columns(minibatches: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Floats:
    """Return moments of columns over the rows with loss, float64 [3, minibatches, columns]; {} has no rows."""
    result = np.zeros((3, len(minibatches), len(names)))
    for i, minibatch in enumerate(minibatches):
        if not minibatch:
            continue
        mask = minibatch.get(Columns.LOSS_MASK)
        for j, name in enumerate(names):
            values = minibatch[name] if mask is None else minibatch[name][torch.as_tensor(mask).bool()]
            result[:, i, j] = moments_of(values.detach().cpu().double().numpy().reshape(-1))
    return result


class ModuleShare(NamedTuple):
    """One learner's share of the minibatches of a module.

    Args:
        shared: The update.
        minibatches: Of this learner's rows, as `ModuleTrainer.minibatches` makes them; None without rows.
        num_rows: Rows of all learners, of which an epoch draws.
        num_per_epoch: Minibatches of an epoch, the same on all learners; None for a learner that is alone: as many as
            the settings say.
        is_source: True for the learner with the most rows, which gives the others the module's buffers.
    """

    shared: SharedUpdate
    minibatches: Minibatches | None
    num_rows: int
    num_per_epoch: int | None
    is_source: bool


class ModuleTrainer:
    """Updates one module, and keeps its optimiser, coefficients and order of rows between updates.

    Args:
        module_id: The module's id.
        module: The module.
        settings: Its optimiser and minibatches.
        rule: How it learns from a minibatch.
        device: The module's device; None leaves it unchanged.
        learners: The learners that update it together.

    Attributes:
        module: the module.
        settings: as given.
        rule: as given.
        own: what the rule keeps for the module, made by `prepare`; None for nothing.
        coefficients: the rule's adapted coefficients.
        adapted_lr: the learning rate of the last step, if the rule adapts it; None if it does not.
        optimizer: made by `prepare`; None before, and for a module without trainable parameters.
        gradients: its parameters' gradients, as all learners reduce them; made with the optimiser.
        num_gradient_steps: steps taken in the last update.
        row_outputs: name -> float32 [B, ...], the rule's values of the rows of the newest batch, in their order; NaN
            for rows without loss.
        has_computed: True if the last update computed a loss; one of several learners may have had no rows.
        read: set that collects the columns that are read; None: they are not recorded.
        column_use: the columns that are read, if known; others are not in batches.
    """

    def __init__(
        self,
        module_id: str,
        module: Any,
        settings: LearnerSettings,
        rule: UpdateRule,
        device: torch.device | None,
        learners: Learners,
    ) -> None:
        self.module, self.settings, self.rule = module, settings, rule
        self._module_id = module_id
        self.own: torch.nn.Module | None = None
        self._num_steps = 0  # of the module's life, if the rule keeps something
        self.coefficients = rule.initial_coefficients()
        self.adapted_lr = self.initial_lr()
        self.optimizer: GroupOptimizers | None = None
        self.num_gradient_steps = 0
        self.row_outputs: dict[str, torch.Tensor] = {}
        self.has_computed = False
        self.read: set[str] | None = None
        self.column_use: ColumnUse | None = None
        self._watches_mask = self._knows_mask = False
        self._device = device
        self._generator = _row_order(settings.seed, module_id)
        # Of several, each orders its share of the rows by another one, seeded in each update.
        self._share_generator = self._generator if learners.count == 1 else torch.Generator()
        self.gradients: SharedGradients | None = None
        if device is not None and isinstance(module, torch.nn.Module):
            module.to(device)

    def initial_lr(self) -> float | None:
        """Return the learning rate of the first step, if the loss adapts it; None if it does not.

        Raises:
            ConfigError: the learning rate has a schedule, too.
        """
        if not self.rule.adapts_lr():
            return None
        if not isinstance(self.settings.lr, (int, float)):
            raise ConfigError(
                f"lr of module {self._module_id!r}",
                expected="a number, since the loss adapts the learning rate (desired_kl)",
                found=f"a schedule, {self.settings.lr}",
                do="give the first learning rate as a number, or leave desired_kl out",
            )
        return float(self.settings.lr)

    def prepare(self) -> GroupOptimizers | None:
        """Return the module's optimisers, made at the first call; None for a module without trainable parameters.

        Raises:
            ConfigError: the module lacks an interface that the rule needs, or the rule's groups do not fit.
        """
        module = self.module
        if self.optimizer is None and isinstance(module, torch.nn.Module) and _is_trainable(module):
            for interface in self.rule.needs:
                if not isinstance(module, interface):
                    raise _lacks(interface, module, self.rule)
            if self.own is None:
                self.own = self._make_own()
            self.optimizer = GroupOptimizers(module, self.own, self.rule.groups(module, self.own), self.settings)
            self.gradients = SharedGradients(self.optimizer.parameters)
        return self.optimizer

    def _make_own(self) -> torch.nn.Module | None:
        own = self.rule.make_own(self.module)
        if not (own is None or isinstance(own, torch.nn.Module)):
            raise ConfigError(
                f"{type(self.rule).__name__}.make_own",
                expected="an nn.Module, or None",
                found=type(own).__name__,
                do='make it one: nn.ModuleDict({"target": frozen_copy(module)})',
            )
        if own is not None and {*map(id, own.parameters())} & {*map(id, self.module.parameters())}:
            raise ConfigError(
                f"{type(self.rule).__name__}.make_own",
                expected="parameters of its own",
                found="parameters of the module itself, so that a target would always be equal to it",
                do="copy what is kept: frozen_copy(module)",
            )
        return own if own is None or self._device is None else own.to(self._device)

    def renew_own(self) -> None:
        """Make what the rule keeps from the module as it is now; the optimisers' values stay."""
        own = None if self.own is None else self._make_own()
        if self.own is not None and own is not None:
            self.own.load_state_dict(own.state_dict())
            self._num_steps = 0

    def get_own_state(self) -> dict[str, Any]:
        """Return what the rule keeps, as arrays, and the number of steps."""
        own = {} if self.own is None else self.own.state_dict()
        return {"own": {name: to_array(value) for name, value in own.items()}, "num_steps": self._num_steps}

    def set_own_state(self, state: Any) -> None:
        """Restore a state from `get_own_state`; None: make it from the module as it is.

        Raises:
            CheckpointError: it is of another module or rule.
        """
        self.own, self.optimizer, self.gradients, self._num_steps = None, None, None, 0
        if state is None:
            return
        self.prepare()
        check_like(f"what the update rule keeps for {self._module_id!r}", state, self.get_own_state())
        if self.own is not None:
            self.own.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state["own"].items()})
        self._num_steps = check_count(f"gradient steps of {self._module_id!r}", state["num_steps"])

    def minibatches(self, columns: Mapping[str, Any], may_be_empty: bool = True) -> Minibatches | None:
        """Return the minibatches of the module's batch; None if no row has loss.

        Args:
            columns: Column -> tensor, the learner pipeline's output for this module.
            may_be_empty: False: a batch without loss is an error.

        Raises:
            BatchLayoutError: no row has loss.
            ColumnError: a column does not fit the others.
        """
        settings = self.settings
        self._watches_mask = not self._knows_mask and _has_padding(columns.get(Columns.LOSS_MASK))
        try:
            if may_be_empty and not has_loss(columns):
                return None
            if self.rule.row_outputs:
                self._num_rows = len(row_steps(columns))
                columns = {**columns, _ROW: torch.arange(self._num_rows)}
            return Minibatches(
                columns,
                size=settings.minibatch_size,
                epochs=settings.num_epochs,
                shuffle=settings.shuffle,
                generator=self._share_generator,
                remainder=settings.remainder,
            )
        except EpibatchError as error:
            add_context(error, f"in the update of module {self._module_id!r}:")
            raise

    def update(self, share: ModuleShare, num_env_steps: int = 0) -> dict[str, float]:
        """Run all epochs of minibatches of the module's batch, or until the rule ends the update.

        Args:
            share: What this learner contributes.
            num_env_steps: Environment steps learned from so far by all learners, for schedules.

        Returns:
            The metrics of the rule and those that `Learner.update` names.

        Raises:
            NonFiniteLossError: a loss, metric or gradient is not finite; that step is not taken, on all learners.
            Exception: what went wrong on this learner.
            OtherLearnerError: another learner failed.
        """
        shared = share.shared
        if self.settings.shuffle is not None and self._share_generator is not self._generator:
            # one draw, so that all generators stay equal
            draw = int(torch.randint(2**63 - 1, (), generator=self._generator))
            self._share_generator.manual_seed(seed_of(random_stream(draw, shared.index), bits=63))
        try:
            result = self._update(share, num_env_steps)
        except NonFiniteLossError:
            if not shared.failed:  # all learners have it, and go on
                self._share_buffers(share)
            raise
        self._share_buffers(share)
        return result

    def _share_buffers(self, share: ModuleShare) -> None:
        """Take over the buffers of the learner with the most rows."""
        shared, parts = share.shared, [part for part in (self.module, self.own) if isinstance(part, torch.nn.Module)]
        buffers = [buffer for part in parts for buffer in part.buffers()] if shared.count > 1 else []
        if buffers:
            answers = shared.finish([value.cpu() for value in buffers] if share.is_source else None)
            values = next(answer for answer in answers if answer is not None)
            for buffer, value in zip(buffers, values):
                buffer.copy_(value)

    def _update(self, share: ModuleShare, num_env_steps: int) -> dict[str, float]:
        self.num_gradient_steps, self.has_computed = 0, False
        optimizer, gradients = self.prepare(), self.gradients
        if optimizer is None or gradients is None:  # a fixed policy: nothing to train
            return {"num_rows": share.num_rows, "num_minibatches": 0}
        lr = value_at(self.settings.lr, num_env_steps) if self.adapted_lr is None else self.adapted_lr
        optimizer.set_lr(lr)
        rates = optimizer.set_scheduled_lrs(num_env_steps)
        means = _UpdateMetrics()
        scheduled = self.rule.scheduled_coefficients(num_env_steps)
        used = {**self.coefficients, **scheduled}
        self._run_epochs(optimizer, gradients, share, used, means)
        result = means.result(share.shared)
        self.coefficients = self.rule.adapt(self.coefficients, means.last_epoch())
        return {**result, "lr": lr if self.adapted_lr is None else self.adapted_lr, **rates, **used}

    def _run_epochs(
        self,
        optimizer: GroupOptimizers,
        gradients: SharedGradients,
        share: ModuleShare,
        coefficients: Mapping[str, float],
        means: _UpdateMetrics,
    ) -> None:
        shared = share.shared
        for epoch in shared.attempt_each(self._epochs(share)):
            means.begin_epoch()
            for minibatch, moments in self._with_moments(shared, epoch):
                num_rows = (shared.attempt(self.rule.count_rows, minibatch) if minibatch else None) or 0
                used = {**coefficients, **moments}
                has_rows = num_rows or (minibatch and num_rows_of(minibatch))
                own = shared.attempt(self._backward, optimizer, minibatch, used) if has_rows else None
                tensors, num_rows = gradients.reduce(shared, own and own[0], num_rows)
                values = self._checked({**tensors, "grad_norm": optimizer.clip()})
                means.add(values, num_rows)
                if own is not None:
                    shared.attempt(means.add_predictions, *own[1:])
                if self.rule.ends_update(values):
                    return
                shared.attempt(self._take_step, optimizer, values)

    def measure(self, columns: Mapping[str, Any], num_env_steps: int) -> dict[str, float]:
        """Return the losses and metrics of the module's batch, and `num_rows`; nothing is changed."""
        self.prepare()
        used = {**self.coefficients, **self.rule.scheduled_coefficients(num_env_steps)}
        columns = self.to_device(dict(columns))
        computed = self.rule.losses(columns, self.module, self.own, used)
        losses = {f"{name}_loss": loss for name, loss in computed.losses.items()}
        values = {name: float(value) for name, value in {**losses, **computed.metrics}.items()}
        return {**values, "num_rows": self.rule.count_rows(columns)}

    def _epochs(self, share: ModuleShare) -> Iterator[Iterator[dict[str, Any]]]:
        """Return the minibatches of each epoch; without rows they are empty, as many as others have."""
        if share.minibatches is not None:
            return share.minibatches.by_epoch(share.num_per_epoch)
        return (repeat({}, share.num_per_epoch or 0) for _ in range(self.settings.num_epochs))

    def _with_moments(
        self, shared: SharedUpdate, epoch: Iterator[dict[str, Any]] | None
    ) -> Iterator[tuple[dict[str, Any] | None, dict[str, float]]]:
        """Yield the minibatches of an epoch, with the moments of the columns that the rule standardizes.

        The moments are those of the rows of all learners; the rule computes those of one.
        """
        names = self.rule.standardized_columns() if shared.count > 1 else ()
        if not names:
            return zip(shared.attempt_each(epoch), repeat({}))
        minibatches: list[dict[str, Any]] = shared.attempt(list, epoch) or []
        parts = shared.finish(shared.attempt(_moments_of_columns, minibatches, names))
        counts, means, squares = pooled_moments(parts)
        deviations = np.sqrt(squares / np.maximum(counts, 1))
        keys = [f"{name}_mean" for name in names] + [f"{name}_std" for name in names]
        rows = np.concatenate([means, deviations], axis=1).tolist()
        return zip(minibatches, (dict(zip(keys, row)) for row in rows))

    def get_order(self) -> np.ndarray[Any, Any]:
        """Return the state of the generator that orders rows, as bytes."""
        return self._generator.get_state().numpy().copy()

    def set_order(self, state: Any) -> None:
        """Restore the generator that orders rows to a state from `get_order`."""
        restore_torch_generator(f"the order of rows of {self._module_id!r}", self._generator, state)

    def _backward(
        self, optimizer: GroupOptimizers, minibatch: dict[str, Any], coefficients: Mapping[str, float]
    ) -> tuple[dict[str, Any], dict[str, Any], Mapping[str, Any]]:
        """Compute the gradients of a minibatch; return losses and metrics, the columns, and the module's outputs."""
        rows = minibatch.pop(_ROW, None)
        minibatch = self.to_device(minibatch)
        if self.read is None:
            columns = minibatch = self.rule.augment(minibatch)
        else:
            left_out = self.column_use.left_out if self.column_use else frozenset()
            minibatch = tracked_minibatch(self.rule, minibatch, self.read, left_out)
            columns = dict(dict.items(minibatch))  # reads nothing
        read: set[str] = set()
        watched = _watched(minibatch, columns, read) if self._watches_mask else None
        try:
            computed = self.rule.losses(minibatch if watched is None else watched, self.module, self.own, coefficients)
        except KeyError as error:
            add_missing_column(error, columns)
            raise
        if not isinstance(computed, Losses):
            found = f"{type(computed).__name__} of {type(self.rule).__name__}.losses"
            raise no_loss(found, 'return Losses({"total": loss})', expected="Losses")
        if watched is not None:  # rules that are no losses read it in the module, too
            self._check_mask(read if isinstance(self.rule, Loss) else watched.read)
        optimizer.backward(computed.losses)
        self.has_computed = True
        for name, values in computed.rows.items():
            self._add_rows(name, rows, values)
        missing = set(self.rule.row_outputs) - computed.rows.keys()
        if missing:
            raise no_loss(f"no values of the rows {sorted(missing)}, which the rule announces", _ROWS, "Losses")
        losses = {f"{name}_loss": loss.detach() for name, loss in computed.losses.items()}
        return {**losses, **computed.metrics}, columns, computed.outputs

    def _add_rows(self, name: str, rows: Any, values: Any) -> None:
        """Put the values of a minibatch's rows to their places in the batch."""
        if name not in self.rule.row_outputs:
            do = f"list it in {type(self.rule).__name__}.row_outputs"
            raise no_loss(f"values {name!r} of the rows, which the rule does not announce", do, "Losses")
        known = self.row_outputs.get(name)
        if (
            not isinstance(values, torch.Tensor)
            or values.ndim == 0
            or len(values) < len(rows)
            or (known is not None and known.shape[1:] != values.shape[1:])
        ):
            shape = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            found = f"values {name!r} of {len(rows)} rows: {shape}"
            raise no_loss(found, _ROWS, "a tensor with an entry for each row of the minibatch")
        values = values.detach()[: len(rows)].to("cpu", torch.float32)  # augmented rows come after the batch's
        if known is None:
            self.row_outputs[name] = torch.full((self._num_rows, *values.shape[1:]), math.nan)
        self.row_outputs[name][rows] = values

    def _check_mask(self, read: set[str]) -> None:
        """Warn if the loss did not read which steps carry loss, although some do not; once for each module."""
        self._watches_mask, self._knows_mask = False, True
        if self.read is not None:
            self.read |= read
        if not read & {Columns.LOSS_MASK, Columns.SEQ_LENS}:
            warning = EpibatchWarning(
                f"loss of module {self._module_id!r}",
                expected="a loss that leaves out steps where batch['loss_mask'] is False: padding and bootstrap rows",
                found="one that did not read 'loss_mask', so it learns from these steps too",
                do="take means over x[batch['loss_mask']], as PPOLoss does",
            )
            warnings.warn(warning, stacklevel=2)

    def _checked(self, tensors: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of scalar tensors; raise if one is not finite."""
        values = numbers(tensors)
        if not all(map(math.isfinite, values.values())):
            raise _not_finite(self._module_id, values)
        return values

    def _take_step(self, optimizer: GroupOptimizers, metrics: Mapping[str, float]) -> None:
        if self.adapted_lr is not None:
            self.adapted_lr = self.rule.adapted_lr(self.adapted_lr, metrics)
            optimizer.set_lr(self.adapted_lr)
        optimizer.step()
        self.num_gradient_steps += 1
        self._num_steps += 1
        self.rule.after_step(self.module, self.own, self._num_steps)

    def to_device(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return a minibatch on the module's device; the same one if the learner has no device."""
        moved: dict[str, Any] = minibatch if self._device is None else map_struct(self._moved, minibatch)
        return moved

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf


def _row_order(seed: int | None, module_id: str) -> torch.Generator:
    """Return the generator that orders one module's rows.

    Each module has a stream of its own, which depends only on the learner's seed and the module's id. Other modules,
    their order, and their training have no effect on a module's minibatches.

    Args:
        seed: The learner's seed, None for a random one.
        module_id: The module's id.

    Examples:
        >>> _row_order(7, "red").initial_seed() == _row_order(7, "blue").initial_seed()
        False
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed_of(random_stream(seed, "minibatches", module_id), bits=63))
    return generator


def _not_finite(module_id: str, values: Mapping[str, float]) -> NonFiniteLossError:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    return NonFiniteLossError(
        f"update of module {module_id!r}, minibatch loss",
        expected="finite loss, metrics and gradients",
        found=", ".join(f"{name}={values[name]}" for name in bad),
        do="look for NaN or huge values in observations, rewards and advantages, or lower the learning rate; "
        "the step was not applied",
    )
