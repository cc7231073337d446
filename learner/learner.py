"""The learner: episodes through the learner pipeline, minibatches through the loss, gradients into the modules."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from epibatch.core import ALL_MODULES
from epibatch.core.columns import Columns
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    EpisodeError,
    NonFiniteLossError,
    UnknownNameError,
    explain,
    nearest,
)
from epibatch.core.state_codec import state_parts
from epibatch.core.structs import map_struct

from .loss import Loss, LossFunction, PlainLoss
from .minibatches import Minibatches
from .optimizers import ModuleOptimizer
from .settings import LearnerSettings
from .update_metrics import UpdateMetrics

if TYPE_CHECKING:
    from epibatch.core.rl_module import MultiRLModule

__all__ = ["Learner"]


class Learner:
    """Turns episodes into gradient steps of the modules of a `MultiRLModule`.

    Args:
        module: the modules to train; each has its own optimiser.
        connector: the learner pipeline; called as `connector(rl_module=, batch={}, episodes=, shared_data={},
            metrics=)`, it returns `{module_id: {column: tensor}}`.
        settings: optimiser and minibatches.
        loss: a `Loss` (PPOLoss, say), or a function `(batch, outputs, distribution_class) -> (loss, metrics)`.
        device: where the modules live and minibatches are moved to; None leaves both where they are.
    """

    def __init__(
        self,
        *,
        module: MultiRLModule,
        connector: Any,
        settings: LearnerSettings,
        loss: Loss | LossFunction,
        device: torch.device | str | None = None,
    ) -> None:
        self._module = module
        self._connector = self._learner_connector = connector
        self._settings = settings
        self._loss = loss if isinstance(loss, Loss) else PlainLoss(loss)
        self._device = None if device is None else torch.device(device)
        self._generator = torch.Generator()
        if settings.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(settings.seed)
        self._optimizers: dict[str, ModuleOptimizer | None] = {}
        self._coefficients: dict[str, dict[str, float]] = {}
        self._num_updates = 0
        self._num_gradient_steps = 0
        for module_id in module.keys():  # noqa: SIM118 - iterating a module is not part of its contract
            self._prepare(module_id)

    @property
    def module(self) -> MultiRLModule:
        """The modules being trained."""
        return self._module

    @property
    def connector(self) -> Any:
        """The learner pipeline."""
        return self._connector

    @property
    def settings(self) -> LearnerSettings:
        """The settings."""
        return self._settings

    def update(self, *, episodes: Sequence[Any], metrics: Any = None) -> dict[str, dict[str, float]]:
        """Run the pipeline over the episodes, then all epochs of minibatches of every module in the batch.

        Args:
            episodes: chunks as an environment runner returns them.
            metrics: logger handed to the pipeline.

        Returns:
            Per module id the means of the loss's metrics over all minibatches, weighted by their valid rows, and
            `grad_norm` (before clipping), `explained_variance` (of the last epoch), `lr`, `num_rows`
            (valid rows of one epoch), `num_minibatches` and the loss's coefficients as used; under
            `__all_modules__` `connector_s`, `update_s`, `num_updates` and `num_gradient_steps`.

        Raises:
            EpisodeError: there are no episodes.
            BatchLayoutError: the pipeline returned something else than batches per module.
            NonFiniteLossError: a loss, metric or gradient is not finite; the module was not changed by it.
        """
        if len(episodes) == 0:
            raise EpisodeError(
                explain("Learner.update", expected="at least one episode", found="none", do="sample episodes first")
            )
        start = time.perf_counter()
        batch = self._learner_connector(
            rl_module=self._module, batch={}, episodes=episodes, shared_data={}, metrics=metrics
        )
        self._check_batch(batch)
        connected = time.perf_counter()
        results = {module_id: self._update_module(module_id, columns) for module_id, columns in batch.items()}
        self._num_updates += 1
        results[ALL_MODULES] = {
            "connector_s": connected - start,
            "update_s": time.perf_counter() - connected,
            "num_updates": self._num_updates,
            "num_gradient_steps": self._num_gradient_steps,
        }
        return results

    def get_state(self) -> dict[str, Any]:
        """Everything the next update depends on, as dicts of NumPy arrays, numbers and strings (copies)."""
        state = {
            "module": _copies(self._module.get_state()),
            "optimizers": {key: value.get_state() for key, value in self._optimizers.items() if value is not None},
            "coefficients": {key: dict(value) for key, value in self._coefficients.items()},
            "generator": self._generator.get_state().numpy().copy(),
            "num_updates": self._num_updates,
            "num_gradient_steps": self._num_gradient_steps,
        }
        if hasattr(self._connector, "get_state"):
            state["connector"] = _copies(self._connector.get_state())
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was called: the next update is bit-identical.

        The settings (learning rate and so on) are not part of the state; they are those of this learner.

        Raises:
            CheckpointError: the state lacks a part or does not fit the modules.
        """
        self._check_state(state)
        self._module.set_state(state["module"])
        for module_id in self._module.keys():  # noqa: SIM118
            self._prepare(module_id)
        for module_id, values in state["optimizers"].items():
            optimizer = self._optimizers.get(module_id)
            if optimizer is None:
                raise _state_error(f"modules {sorted(self._optimizers)}", f"an optimiser of {module_id!r}")
            optimizer.set_state(values)
        for module_id, values in state["coefficients"].items():
            own = self._coefficients.get(module_id, {})
            if own.keys() != values.keys():
                raise _state_error(f"coefficients {sorted(own)} of {module_id!r}", f"{sorted(values)}")
            self._coefficients[module_id] = dict(values)
        self._generator.set_state(torch.from_numpy(np.array(state["generator"], np.uint8)))
        self._num_updates = int(state["num_updates"])
        self._num_gradient_steps = int(state["num_gradient_steps"])
        if "connector" in state and hasattr(self._connector, "set_state"):
            self._connector.set_state(state["connector"])

    def _prepare(self, module_id: str) -> None:
        """Give a module its device, optimiser and coefficients, once."""
        if module_id in self._coefficients:
            return
        module = self._module[module_id]
        parameters: dict[str, torch.nn.Parameter] = {}
        if isinstance(module, torch.nn.Module):
            if self._device is not None:
                module.to(self._device)
            parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self._optimizers[module_id] = ModuleOptimizer(parameters, self._settings) if parameters else None
        self._coefficients[module_id] = self._loss.initial_coefficients()

    def _update_module(self, module_id: str, columns: Mapping[str, Any]) -> dict[str, float]:
        self._prepare(module_id)
        optimizer = self._optimizers[module_id]
        settings = self._settings
        minibatches = Minibatches(
            columns,
            size=settings.minibatch_size,
            epochs=settings.num_epochs,
            shuffle=settings.shuffle,
            generator=self._generator,
            remainder=settings.remainder,
        )
        if optimizer is None:  # a fixed policy: nothing to train
            return {"num_rows": minibatches.num_rows, "num_minibatches": 0}
        means = UpdateMetrics()
        coefficients = self._coefficients[module_id]
        for epoch in minibatches.by_epoch():
            means.begin_epoch()
            for minibatch in epoch:
                self._step(module_id, optimizer, minibatch, means)
        self._coefficients[module_id] = self._loss.adapt(coefficients, means.last_epoch())
        return {**means.result(), "lr": settings.lr, **coefficients}

    def _step(
        self, module_id: str, optimizer: ModuleOptimizer, minibatch: dict[str, Any], means: UpdateMetrics
    ) -> None:
        module = self._module[module_id]
        if self._device is not None:
            minibatch = map_struct(self._to_device, minibatch)
        outputs = module.forward_train(minibatch)
        if hasattr(module, "compute_values"):
            values = module.compute_values(minibatch, embeddings=outputs.get(Columns.EMBEDDINGS))
            outputs = {**outputs, Columns.VF_PREDS: values}
        loss, metrics = self._loss(
            minibatch, outputs, module.get_train_action_dist_cls(), self._coefficients[module_id]
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        tensors = {"total_loss": loss.detach(), **metrics, "grad_norm": optimizer.clip()}
        values_now = dict(zip(tensors, torch.stack([value.float() for value in tensors.values()]).tolist()))
        if not all(map(math.isfinite, values_now.values())):
            raise _not_finite(module_id, values_now)
        optimizer.step()
        self._num_gradient_steps += 1
        means.add(values_now, minibatch, outputs)

    def _to_device(self, leaf: Any) -> Any:
        return leaf.to(self._device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    def _check_batch(self, batch: Any) -> None:
        if not isinstance(batch, dict) or not batch or not all(isinstance(value, dict) for value in batch.values()):
            found = f"columns {sorted(map(str, batch))}" if isinstance(batch, dict) else type(batch).__name__
            raise BatchLayoutError(
                explain(
                    "batch of the learner pipeline",
                    expected="{module_id: {column: tensor}} with at least one module",
                    found=found,
                    do="keep BatchIndividualItems (or AgentToModuleMapping) in the learner pipeline",
                )
            )
        known = list(self._module.keys())
        for module_id in batch:
            if module_id not in known:
                raise UnknownNameError(
                    explain(
                        "batch of the learner pipeline",
                        expected="ids of modules that this learner holds",
                        found=repr(module_id),
                        do=nearest(str(module_id), known),
                    )
                )

    def _check_state(self, state: Mapping[str, Any]) -> None:
        needed = ("module", "optimizers", "coefficients", "generator", "num_updates", "num_gradient_steps")
        state_parts("Learner.set_state", state)
        missing = [name for name in needed if name not in state]
        if missing:
            raise _state_error(f"parts {', '.join(needed)}", f"no {', '.join(missing)}")


def _copies(state: Any) -> Any:
    """Copies of the arrays of a state, tensors as arrays."""
    return map_struct(_copy, state)


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().numpy().copy()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _not_finite(module_id: str, values: Mapping[str, float]) -> NonFiniteLossError:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    return NonFiniteLossError(
        explain(
            f"update of module {module_id!r}, minibatch loss",
            expected="finite loss, metrics and gradients",
            found=", ".join(f"{name}={values[name]}" for name in bad),
            do="look for NaN or huge values in observations, rewards and advantages, or lower the learning rate; "
            "the step was not applied",
        )
    )


def _state_error(expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        explain("learner state", expected=expected, found=found, do="restore a state that Learner.get_state gave")
    )
