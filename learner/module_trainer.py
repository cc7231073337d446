"""Updates one module: minibatches through the loss, gradient steps, and the means of the metrics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from epibatch.core.columns import Columns, TrackedBatch, add_column_hint
from epibatch.core.errors import (
    ColumnError,
    ConfigError,
    EpibatchError,
    EpibatchWarning,
    NonFiniteLossError,
    add_context,
)
from epibatch.core.random_streams import random_stream, seed_of
from epibatch.core.restoring import restore_torch_generator
from epibatch.core.shared_moments import moments_of, pooled_moments
from epibatch.core.structs import map_struct

from ..connectors._engine.modules import describe_batch
from .loss import Loss
from .minibatches import Minibatches
from .optimizers import ModuleOptimizer
from .schedules import value_at
from .settings import LearnerSettings
from .shared_update import SharedGradients, SharedUpdate
from .unread_columns import ColumnUse, tracked_minibatch

Floats = npt.NDArray[np.float64]


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

    def result(self, shared: SharedUpdate | None = None) -> dict[str, float]:
        """Return means over the whole update, with `explained_variance`, `num_rows` and `num_minibatches`.

        Args:
            shared: the update of several learners, whose value predictions count together.
        """
        means = self._means(0)
        means.update(self._explained() if shared is None else self._explained_together(shared))
        means["num_rows"] = self._num_rows
        means["num_minibatches"] = len(self._values)
        return means

    def _explained(self) -> dict[str, float]:
        if not self._targets:
            return {}
        targets, errors = self._targets_and_errors()
        return {"explained_variance": _explained_variance(*(float(x.var(correction=0)) for x in (targets, errors)))}

    def _explained_together(self, shared: SharedUpdate) -> dict[str, float]:
        moments = [part for part in shared.finish(shared.attempt(self._moments)) if part is not None]
        if not moments:
            return {}
        counts, _, squares = pooled_moments(moments)
        return {"explained_variance": _explained_variance(*(squares / counts).tolist())}

    def _moments(self) -> Floats | None:
        """Return the moments of targets and errors, float64 [3, 2]; None without any."""
        if not self._targets:
            return None
        return np.stack([moments_of(values.cpu().numpy()) for values in self._targets_and_errors()], axis=1)

    def _targets_and_errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        targets = torch.cat(self._targets).double()
        return targets, targets - torch.cat(self._predictions).double()

    def _means(self, start: int) -> dict[str, float]:
        total = sum(self._weights[start:])
        pairs = list(zip(self._values[start:], self._weights[start:]))
        return {name: sum(values[name] * weight for values, weight in pairs) / total for name in self._values[start]}


def _explained_variance(of_targets: float, of_errors: float) -> float:
    """Return the share of the targets' variance that the predictions explain; 0 if the targets do not vary."""
    return 1.0 - of_errors / of_targets if of_targets else 0.0


def _num_rows(minibatch: Mapping[str, Any]) -> int:
    """Return the rows of a minibatch; of sequences the steps with loss."""
    mask = minibatch.get(Columns.LOSS_MASK)
    if mask is not None and mask.ndim > 1:
        return int(mask.sum())
    for column in minibatch.values():
        if isinstance(column, torch.Tensor):
            return len(column)
    return 1


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
    """One learner's share of the minibatches of a module that several learners update together.

    Args:
        shared: the update.
        minibatches: of this learner's rows, as `ModuleTrainer.minibatches` makes them; None without rows.
        num_rows: rows of all learners, of which an epoch draws.
        num_per_epoch: minibatches of an epoch, the same on all learners.
        is_source: True for the learner with the most rows, which gives the others the module's buffers.
    """

    shared: SharedUpdate
    minibatches: Minibatches | None
    num_rows: int
    num_per_epoch: int
    is_source: bool


_MISSING = (
    "A learner piece adds columns, or a view with train=True, which modules declare on the class: pipelines are made "
    "before the module. What env-to-module pieces add is not stored."
)


class ModuleTrainer:
    """Updates one module, and keeps its optimiser, coefficients and order of rows between updates.

    Args:
        module_id: the module's id.
        module: the module.
        settings: its optimiser and minibatches.
        loss: its loss.
        device: the module's device; None leaves it unchanged.

    Attributes:
        module: the module.
        settings: as given.
        loss: as given.
        coefficients: the loss's adapted coefficients.
        adapted_lr: the learning rate of the last step, if the loss adapts it; None if it does not.
        optimizer: made by `prepare`; None before, and for a module without trainable parameters.
        num_gradient_steps: steps taken in the last update.
        has_computed: True if the last update computed a loss; one of several learners may have had no rows.
        read: set that collects the columns that are read; None: they are not recorded.
        column_use: the columns that are read, if known; others are not in batches.
    """

    def __init__(
        self,
        module_id: str,
        module: Any,
        settings: LearnerSettings,
        loss: Loss,
        device: torch.device | None,
    ) -> None:
        self.module, self.settings, self.loss = module, settings, loss
        self._module_id = module_id
        self.coefficients = loss.initial_coefficients()
        self.adapted_lr = self.initial_lr()
        self.optimizer: ModuleOptimizer | None = None
        self.num_gradient_steps = 0
        self.has_computed = False
        self.read: set[str] | None = None
        self.column_use: ColumnUse | None = None
        self._watches_mask = self._knows_mask = False
        self._device = device
        self._generator = _row_order(settings.seed, module_id)
        self._share_generator = torch.Generator()  # of this learner's share of the rows, seeded in each update
        self._gradients: SharedGradients | None = None
        if device is not None and isinstance(module, torch.nn.Module):
            module.to(device)

    def initial_lr(self) -> float | None:
        """Return the learning rate of the first step, if the loss adapts it; None if it does not.

        Raises:
            ConfigError: the learning rate has a schedule, too.
        """
        if not self.loss.adapts_lr():
            return None
        if not isinstance(self.settings.lr, (int, float)):
            raise ConfigError(
                f"lr of module {self._module_id!r}",
                expected="a number, since the loss adapts the learning rate (desired_kl)",
                found=f"a schedule, {self.settings.lr}",
                do="give the first learning rate as a number, or leave desired_kl out",
            )
        return float(self.settings.lr)

    def prepare(self) -> ModuleOptimizer | None:
        """Return the module's optimiser, made at the first call; None for a module without trainable parameters."""
        if self.optimizer is None and isinstance(self.module, torch.nn.Module):
            parameters = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
            if parameters:
                self.optimizer = ModuleOptimizer(parameters, self.settings)
        return self.optimizer

    def prepare_together(self) -> SharedGradients | None:
        """Return the module's gradients as several learners reduce them; None without trainable parameters.

        An error here, such as too little memory, concerns one learner, so that this has to be called where the others
        can be told.
        """
        optimizer = self.prepare()
        if optimizer is not None and (
            self._gradients is None or self._gradients.parameters is not optimizer.parameters
        ):
            self._gradients = SharedGradients(optimizer.parameters)
        return self._gradients

    def metric_names(self) -> list[str] | None:
        """Return the names of the metrics, as this learner knows them of earlier updates together; None if not."""
        gradients, optimizer = self._gradients, self.optimizer
        is_old = gradients is None or optimizer is None or gradients.parameters is not optimizer.parameters
        return None if is_old or gradients is None else gradients.names

    def forget_metric_names(self) -> None:
        """Let all learners agree on the names of the metrics again in the next update together."""
        self._gradients = None

    def minibatches(self, columns: Mapping[str, Any], *, together: bool = False) -> Minibatches:
        """Return the minibatches of the module's batch.

        Args:
            columns: column -> tensor, the learner pipeline's output for this module.
            together: True if they are for `update_together`.

        Raises:
            BatchLayoutError: no row has loss.
            ColumnError: a column does not fit the others.
        """
        settings = self.settings
        self._watches_mask = not self._knows_mask and _has_padding(columns.get(Columns.LOSS_MASK))
        return Minibatches(
            columns,
            size=settings.minibatch_size,
            epochs=settings.num_epochs,
            shuffle=settings.shuffle,
            generator=self._share_generator if together else self._generator,
            remainder=settings.remainder,
        )

    def update(self, columns: Mapping[str, Any], num_env_steps: int = 0) -> dict[str, float]:
        """Run all epochs of minibatches of the module's batch, or until the loss ends the update.

        Args:
            columns: column -> tensor, the learner pipeline's output for this module.
            num_env_steps: environment steps learned from so far, for schedules.

        Returns:
            The metrics of the loss and those that `Learner.update` names.

        Raises:
            NonFiniteLossError: a loss, metric or gradient is not finite; that step is not taken.
        """
        minibatches = self.minibatches(columns)

        def run(optimizer: ModuleOptimizer, coefficients: Mapping[str, float], means: _UpdateMetrics) -> None:
            self._run_epochs(optimizer, minibatches, coefficients, means)

        return self._update(run, minibatches.num_rows, num_env_steps)

    def update_together(self, share: ModuleShare, num_env_steps: int = 0) -> dict[str, float]:
        """Run all epochs of minibatches together with other learners, as `update` does alone.

        Args:
            share: what this learner contributes.
            num_env_steps: environment steps learned from so far by all learners.

        Raises:
            NonFiniteLossError: as `update` does, on all learners, which have equal buffers then too.
            Exception: what went wrong on this learner.
            OtherLearnerError: another learner failed.
        """
        shared = share.shared
        if self.settings.shuffle is not None:  # one draw, so that all learners' generators stay equal
            draw = int(torch.randint(2**63 - 1, (), generator=self._generator))
            self._share_generator.manual_seed(seed_of(random_stream(draw, shared.index), bits=63))

        def run(optimizer: ModuleOptimizer, coefficients: Mapping[str, float], means: _UpdateMetrics) -> None:
            self._run_epochs_together(optimizer, share, coefficients, means)

        try:
            result = self._update(run, share.num_rows, num_env_steps, shared)
        except NonFiniteLossError:
            if not shared.failed:  # all learners have it, and go on
                self._share_buffers(share)
            raise
        self._share_buffers(share)
        return result

    def _share_buffers(self, share: ModuleShare) -> None:
        """Take over the module's buffers of the learner with the most rows."""
        shared = share.shared
        buffers = dict(self.module.named_buffers()) if isinstance(self.module, torch.nn.Module) else {}
        if buffers:
            answers = shared.finish({name: value.cpu() for name, value in buffers.items()} if share.is_source else None)
            values = next(answer for answer in answers if answer is not None)
            for name, buffer in buffers.items():
                buffer.copy_(values[name])

    def _update(
        self,
        run: Callable[[ModuleOptimizer, Mapping[str, float], _UpdateMetrics], None],
        num_rows: int,
        num_env_steps: int,
        shared: SharedUpdate | None = None,
    ) -> dict[str, float]:
        self.num_gradient_steps, self.has_computed = 0, False
        optimizer = self.prepare()
        if optimizer is None:  # a fixed policy: nothing to train
            return {"num_rows": num_rows, "num_minibatches": 0}
        lr = value_at(self.settings.lr, num_env_steps) if self.adapted_lr is None else self.adapted_lr
        optimizer.set_lr(lr)
        means = _UpdateMetrics()
        scheduled = self.loss.scheduled_coefficients(num_env_steps)
        used = {**self.coefficients, **scheduled}
        run(optimizer, used, means)
        result = means.result(shared)
        self.coefficients = self.loss.adapt(self.coefficients, means.last_epoch())
        return {**result, "lr": lr if self.adapted_lr is None else self.adapted_lr, **used}

    def _run_epochs(
        self,
        optimizer: ModuleOptimizer,
        minibatches: Minibatches,
        coefficients: Mapping[str, float],
        means: _UpdateMetrics,
    ) -> None:
        for epoch in minibatches.by_epoch():
            means.begin_epoch()
            for minibatch in epoch:
                tensors, columns, outputs = self._backward(optimizer, minibatch, coefficients)
                values = self._checked({**tensors, "grad_norm": optimizer.clip()})
                means.add(values, _num_rows(minibatch))
                means.add_predictions(columns, outputs)
                if self.loss.ends_update(values):
                    return
                self._take_step(optimizer, values)

    def _run_epochs_together(
        self, optimizer: ModuleOptimizer, share: ModuleShare, coefficients: Mapping[str, float], means: _UpdateMetrics
    ) -> None:
        shared, count = share.shared, share.num_per_epoch
        gradients = self.prepare_together()
        if gradients is None:
            return
        epochs = iter(()) if share.minibatches is None else share.minibatches.by_epoch(count)
        for _ in range(self.settings.num_epochs):
            means.begin_epoch()
            epoch = shared.attempt(lambda: list(next(epochs, ()))) or [{}] * count
            for minibatch, moments in zip(epoch, self._moments(shared, epoch)):
                num_rows = _num_rows(minibatch) if minibatch else 0
                used = {**coefficients, **moments}
                own = shared.attempt(self._backward, optimizer, minibatch, used) if num_rows else None
                values = None if own is None else shared.attempt(_numbers, own[0])
                reduced, num_rows = gradients.reduce(shared, values, num_rows)
                values = self._checked({**reduced, "grad_norm": optimizer.clip()})
                means.add(values, num_rows)
                if own is not None:
                    shared.attempt(means.add_predictions, *own[1:])
                if self.loss.ends_update(values):
                    return
                shared.attempt(self._take_step, optimizer, values)

    def _moments(self, shared: SharedUpdate, epoch: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        """Return the moments of the columns that the loss standardizes, over all learners' rows, by minibatch."""
        names = self.loss.standardized_columns()
        if not names:
            return [{} for _ in epoch]
        parts = shared.finish(shared.attempt(_moments_of_columns, epoch, names))
        counts, means, squares = pooled_moments(parts)
        deviations = np.sqrt(squares / np.maximum(counts, 1))
        keys = [f"{name}_mean" for name in names] + [f"{name}_std" for name in names]
        return [dict(zip(keys, row)) for row in np.concatenate([means, deviations], axis=1).tolist()]

    def get_order(self) -> np.ndarray[Any, Any]:
        """Return the state of the generator that orders rows, as bytes."""
        return self._generator.get_state().numpy().copy()

    def set_order(self, state: Any) -> None:
        """Restore the generator that orders rows to a state from `get_order`."""
        restore_torch_generator(f"the order of rows of {self._module_id!r}", self._generator, state)

    def _backward(
        self, optimizer: ModuleOptimizer, minibatch: dict[str, Any], coefficients: Mapping[str, float]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Compute the gradients of a minibatch; return the loss and metrics, the columns, and the module's outputs."""
        module = self.module
        minibatch = self.to_device(minibatch)
        if self.read is None:
            columns = minibatch = self.loss.augment(minibatch)
        else:
            left_out = self.column_use.left_out if self.column_use else frozenset()
            minibatch = tracked_minibatch(self.loss, minibatch, self.read, left_out)
            columns = dict(dict.items(minibatch))  # reads nothing
        outputs: dict[str, Any] | None = None
        try:
            outputs = _outputs(module, minibatch)
            read: set[str] = set()
            if self._watches_mask:
                minibatch = TrackedBatch(columns, read, getattr(minibatch, "left_out", frozenset()))
            loss, metrics = _loss_and_metrics(
                self.loss(minibatch, outputs, module.get_train_action_dist_cls(), coefficients)
            )
            if self._watches_mask:
                self._check_mask(read)
        except KeyError as error:
            add_column_hint(error, columns, _MISSING)
            if outputs is not None:
                add_column_hint(error, outputs, meant="`outputs`")
            raise
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if not optimizer.has_gradients() and loss.detach() != 0:
            raise _no_gradient()
        self.has_computed = True
        return {"total_loss": loss.detach(), **metrics}, columns, outputs

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
        values = _numbers(tensors)
        if not all(map(math.isfinite, values.values())):
            raise _not_finite(self._module_id, values)
        return values

    def _take_step(self, optimizer: ModuleOptimizer, metrics: Mapping[str, float]) -> None:
        if self.adapted_lr is not None:
            self.adapted_lr = self.loss.adapted_lr(self.adapted_lr, metrics)
            optimizer.set_lr(self.adapted_lr)
        optimizer.step()
        self.num_gradient_steps += 1

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
        seed: the learner's seed, None for a random one.
        module_id: the module's id.

    Example:
        >>> _row_order(7, "red").initial_seed() == _row_order(7, "blue").initial_seed()
        False
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed_of(random_stream(seed, "minibatches", module_id), bits=63))
    return generator


def _outputs(module: Any, minibatch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's outputs for a minibatch; an error in it names the module and the input shapes."""
    method = "forward_train"
    try:
        outputs = module.forward_train(minibatch)
        if not isinstance(outputs, Mapping):
            raise ColumnError(
                f"{type(module).__name__}.forward_train",
                expected="a dict of columns, such as {'action_dist_inputs': tensor}",
                found=type(outputs).__name__,
                do="return a dict from _forward_train, or from _forward",
            )
        if hasattr(module, "compute_values"):
            method = "compute_values"
            values = module.compute_values(minibatch, embeddings=outputs.get(Columns.EMBEDDINGS))
            outputs = {**outputs, Columns.VF_PREDS: values}
    except Exception as error:
        if not isinstance(error, (KeyError, EpibatchError)):
            add_context(error, f"in {type(module).__name__}.{method}, with {describe_batch(minibatch, error)}:")
        raise
    return cast("dict[str, Any]", outputs)


def _loss_and_metrics(result: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Return the scalar loss and the metrics from a loss's result; a tensor alone is a loss without metrics.

    Raises:
        ConfigError: the result is something else, or a loss without a gradient.
    """
    pair = (result, {}) if isinstance(result, torch.Tensor) else result
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[1], (Mapping, type(None))):
        kinds = ", ".join(type(part).__name__ for part in pair) if isinstance(pair, (tuple, list)) else ""
        raise _no_loss(f"{type(pair).__name__}{kinds and f' of {kinds}'}")
    loss, metrics = pair
    if not isinstance(loss, torch.Tensor):
        raise _no_loss(f"{type(loss).__name__} as the loss")
    if loss.numel() != 1 or not loss.is_floating_point():
        raise _no_loss(f"a loss of shape {list(loss.shape)} and {loss.dtype}", "return the mean over the rows")
    if not loss.requires_grad:
        raise _no_gradient()
    return loss.reshape(()), metrics or {}


def _no_loss(found: str, do: str = "return the loss as a tensor, and a dict of metrics") -> ConfigError:
    return ConfigError("what the loss returned", expected="(scalar loss, metrics)", found=found, do=do)


def _no_gradient() -> ConfigError:
    return _no_loss(
        "a loss that no gradient comes from",
        "compute it from the module's outputs, without detach(), item(), torch.no_grad() or NumPy",
    )


def _numbers(scalars: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of scalar tensors, fetched at once; Python's and NumPy's numbers are allowed too.

    Raises:
        ConfigError: one of them is no scalar.
    """
    try:
        return dict(zip(scalars, torch.stack([value.float() for value in scalars.values()]).tolist()))
    except (AttributeError, RuntimeError, TypeError):
        return {name: _number(name, value) for name, value in scalars.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (RuntimeError, TypeError, ValueError) as error:
        shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
        raise _no_loss(
            f"{type(value).__name__}{shape} as the metric {name!r}", "return a scalar tensor or a number per metric"
        ) from error


def _not_finite(module_id: str, values: Mapping[str, float]) -> NonFiniteLossError:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    return NonFiniteLossError(
        f"update of module {module_id!r}, minibatch loss",
        expected="finite loss, metrics and gradients",
        found=", ".join(f"{name}={values[name]}" for name in bad),
        do="look for NaN or huge values in observations, rewards and advantages, or lower the learning rate; "
        "the step was not applied",
    )
