"""What the learner asks of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from epibatch.core.errors import ConfigError, NotAvailableError

__all__ = ["Loss", "LossFunction", "PlainLoss", "as_loss"]

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
        """What `with_settings` takes."""
        return ()

    def with_settings(self, **changes: Any) -> Loss:
        """This loss with some of its settings changed, for a module that has its own.

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
        """The coefficients of a module that was never updated."""
        return {}

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
            outputs: what `forward_train` returned, with `vf_preds` added for modules that predict values.
            distribution_class: the module's action distribution for training.
            coefficients: as `initial_coefficients` and `adapt` gave them.
        """

    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """The coefficients for the next update.

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


def as_loss(loss: Loss | LossFunction) -> Loss:
    """A loss, or a function as one.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise ConfigError(
            "loss",
            expected="a Loss, or a function (batch, outputs, distribution_class) -> (loss, metrics)",
            found=repr(loss),
            do="pass PPOLoss(), for example",
        )
    return PlainLoss(loss)
