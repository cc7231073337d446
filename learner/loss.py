"""The interface of losses."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from epibatch.core.errors import ConfigError, NotAvailableError
from epibatch.core.imports import load_object

from .settings import loss_problem

LossFunction: TypeAlias = Callable[
    [Mapping[str, Any], Mapping[str, Any], Any], "tuple[torch.Tensor, dict[str, torch.Tensor]]"
]
"""`function(batch, outputs, distribution_class) -> (scalar loss, metrics)`."""


class Loss(ABC):
    """A loss and the coefficients that it adapts between updates.

    A plain function `(batch, outputs, distribution_class) -> (loss, metrics)` works as well; subclass this
    for coefficients that change with the metrics and belong to the saved state.
    """

    def setting_names(self) -> tuple[str, ...]:
        """The names that `with_settings` accepts."""
        return ()

    def with_settings(self, **changes: Any) -> Loss:
        """Return this loss with some of its settings changed, for a module with its own settings.

        Args:
            **changes: values for some of `setting_names`.

        Raises:
            ConfigError: a value is out of its range.
            NotAvailableError: the loss has no settings.
        """
        raise NotAvailableError(
            f"{type(self).__name__}.with_settings",
            expected="a loss that has settings",
            found=f"none, and values for {', '.join(changes)}",
            do="implement setting_names and with_settings, or give the module another loss",
        )

    def initial_coefficients(self) -> dict[str, float]:
        """Return the coefficients of a module that was never updated."""
        return {}

    def scheduled_coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Return the coefficients that follow a schedule, for an update.

        Args:
            num_env_steps: environment steps that the learner has learned from so far.
        """
        return {}

    def standardized_columns(self) -> tuple[str, ...]:
        """Return the columns that the loss standardizes over each minibatch; by default none.

        Of several learners that update together each has a part of the minibatch. The coefficients then have
        `<column>_mean` and `<column>_std` of the rows of all learners.
        """
        return ()

    def augment(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch that the module and the loss get; by default the same one.

        Args:
            minibatch: column -> tensor, on the module's device; not to be changed in place.
        """
        return minibatch

    def ends_update(self, metrics: Mapping[str, float]) -> bool:
        """True if the update ends before the step of the minibatch with these metrics."""
        return False

    def adapts_lr(self) -> bool:
        """True if `adapted_lr` changes the learning rate, which then belongs to the learner's state."""
        return False

    def adapted_lr(self, lr: float, metrics: Mapping[str, float]) -> float:
        """Return the learning rate for the step of the minibatch with these metrics; by default the same one.

        Args:
            lr: that of the step before; at first the one of the settings.
            metrics: of the minibatch, over the rows of all learners.
        """
        return lr

    @abstractmethod
    def __call__(
        self,
        batch: Mapping[str, Any],
        outputs: Mapping[str, Any],
        distribution_class: Any,
        coefficients: Mapping[str, float],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the scalar loss of one minibatch and detached scalar metrics.

        Args:
            batch: one minibatch, column -> tensor.
            outputs: the output of `forward_train`, with `vf_preds` added for modules that predict values.
            distribution_class: the module's action distribution for training.
            coefficients: those of `initial_coefficients` or `adapt`, and those of `scheduled_coefficients`; for
                several learners also those that `standardized_columns` names.
        """

    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the coefficients for the next update.

        Args:
            coefficients: those of this update.
            metrics: means of this loss's metrics over the update's last epoch.
        """
        return dict(coefficients)


class PlainLoss(Loss):
    """A loss function without coefficients, as a `Loss`."""

    def __init__(self, function: LossFunction) -> None:
        self._function = function

    def __call__(
        self,
        batch: Mapping[str, Any],
        outputs: Mapping[str, Any],
        distribution_class: Any,
        coefficients: Mapping[str, float],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Call the function."""
        return self._function(batch, outputs, distribution_class)


def as_loss(loss: Loss | LossFunction | type[Loss] | str, settings: Any = None) -> Loss:
    """Return a `Loss` for a loss, a function, a class or an import path.

    Args:
        loss: the loss, or a function, class or import path for it.
        settings: for a class with a parameter `settings`, as PPOLoss and its subclasses have.

    Raises:
        ConfigError: it is none of these, or it takes other arguments.
    """
    chosen: Any = load_object(loss, "loss", "loss") if isinstance(loss, str) else loss
    problem = loss_problem(chosen)
    if problem is not None:
        raise ConfigError(
            "loss", expected=problem[0], found=problem[1], do="correct it, or pass PPOLoss(), for example"
        )
    if isinstance(chosen, type):
        takes_settings = settings is not None and "settings" in inspect.signature(chosen).parameters
        chosen = chosen(settings=settings) if takes_settings else chosen()
    return chosen if isinstance(chosen, Loss) else PlainLoss(chosen)
