"""Losses: update rules with a single loss."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import torch

from epibatch.core.columns import Columns, add_column_hint
from epibatch.core.errors import ColumnError, ConfigError, EpibatchError, add_context
from epibatch.core.imports import load_object
from epibatch.core.rl_module.module_facts import describe_batch
from epibatch.core.structs import map_struct

from .settings import loss_problem
from .update_rule import Losses, UpdateRule

LossFunction: TypeAlias = Callable[
    [Mapping[str, Any], Mapping[str, Any], Any], "tuple[torch.Tensor, dict[str, torch.Tensor]]"
]
"""`function(batch, outputs, distribution_class) -> (scalar loss, metrics)`."""


class Loss(UpdateRule):
    """An update rule with one loss, which moves all of the module.

    A plain function `(batch, outputs, distribution_class) -> (loss, metrics)` works as well; subclass this
    for coefficients that change with the metrics and belong to the saved state.
    """

    on_policy = True

    def __init__(self) -> None:
        """Have no settings; a subclass may."""

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of the module's outputs in training, as one that moves all of the module."""
        outputs = _outputs(module, batch)
        of_loss = getattr(batch, "of_loss", None)
        try:
            result = self(
                batch if of_loss is None else of_loss, outputs, module.get_train_action_dist_cls(), coefficients
            )
        except KeyError as error:
            add_missing_column(error, batch)
            add_column_hint(error, outputs, meant="`outputs`")
            raise
        loss, metrics = _loss_and_metrics(result)
        return Losses({"total": loss}, metrics, outputs=outputs)

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
            batch: One minibatch, column -> tensor.
            outputs: The output of `forward_train`, with `vf_preds` added for modules that predict values.
            distribution_class: The module's action distribution for training.
            coefficients: As for `losses`.
        """


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


def as_loss(loss: UpdateRule | LossFunction | type[UpdateRule] | str, settings: Any = None) -> UpdateRule:
    """Return an update rule for one, a loss function, a class or an import path.

    Args:
        loss: The rule, or a function, class or import path for it.
        settings: For a class with a parameter `settings`, as PPOLoss and its subclasses have.

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
    return chosen if isinstance(chosen, UpdateRule) else PlainLoss(chosen)


_MISSING = (
    "A learner piece adds columns, or a view with train=True, which modules declare on the class: pipelines are made "
    "before the module. What env-to-module pieces add is not stored."
)


def add_missing_column(error: KeyError, batch: Mapping[str, Any]) -> None:
    """Say in a rule's KeyError which columns the minibatch has, unless the error says so already."""
    if not getattr(error.args[0] if error.args else "", "hint", ""):
        add_column_hint(error, dict(dict.items(cast("dict[str, Any]", batch))), _MISSING)


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
        outputs = map_struct(_in_single, dict(outputs))  # networks may compute in 16 bits, losses do in 32
    except Exception as error:
        if not isinstance(error, (KeyError, EpibatchError)):
            add_context(error, f"in {type(module).__name__}.{method}, with {describe_batch(minibatch, error)}:")
        raise
    return cast("dict[str, Any]", outputs)


def _in_single(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bfloat16, torch.float16) else leaf


def _loss_and_metrics(result: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Return the scalar loss and the metrics from a loss's result; a tensor alone is a loss without metrics.

    Raises:
        ConfigError: the result is something else, or a loss without a gradient.
    """
    pair = (result, {}) if isinstance(result, torch.Tensor) else result
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[1], (Mapping, type(None))):
        kinds = ", ".join(type(part).__name__ for part in pair) if isinstance(pair, (tuple, list)) else ""
        raise no_loss(f"{type(pair).__name__}{kinds and f' of {kinds}'}")
    loss, metrics = pair
    if not isinstance(loss, torch.Tensor):
        raise no_loss(f"{type(loss).__name__} as the loss")
    if loss.numel() != 1 or not loss.is_floating_point():
        raise no_loss(f"a loss of shape {list(loss.shape)} and {loss.dtype}", "return the mean over the rows")
    if not loss.requires_grad:
        raise no_gradient()
    return loss.reshape(()), metrics or {}


def no_loss(
    found: str,
    do: str = "return the loss as a tensor, and a dict of metrics",
    expected: str = "(scalar loss, metrics)",
) -> ConfigError:
    return ConfigError("what the loss returned", expected=expected, found=found, do=do)


def no_gradient(name: str = "total") -> ConfigError:
    return no_loss(
        "a loss that no gradient comes from" + ("" if name == "total" else f", {name!r}"),
        "compute it from the module's outputs, without detach(), item(), torch.no_grad() or NumPy",
    )


def numbers(scalars: Mapping[str, Any]) -> dict[str, float]:
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
        raise no_loss(
            f"{type(value).__name__}{shape} as the metric {name!r}", "return a scalar tensor or a number per metric"
        ) from error
