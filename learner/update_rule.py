"""Update rules: the losses of a minibatch, and the parameters that each of them moves."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.errors import NotAvailableError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Losses:
    """The losses of one minibatch, with what is reported of it.

    Args:
        losses: Name of a group of parameters -> scalar loss. A group that is left out makes no step.
        metrics: Name -> detached scalar.
        rows: Name -> detached floats [B, ...], one entry per row of the minibatch, such as TD errors for priorities.
        outputs: The module's outputs; with `vf_preds` in them, the update reports `explained_variance`.
    """

    losses: Mapping[str, torch.Tensor]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, torch.Tensor] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)


class Group:
    """The parameters that one loss moves, with an optimiser of their own.

    Args:
        *parts: Networks and parameters, of the module or of what the rule keeps for it.
        without: Networks among them that this loss does not move.
        **settings: Fields of `LearnerSettings` for this optimiser alone: `lr` (a number or a schedule), `grad_clip`,
            `grad_clip_by`, `optimizer`. None: as the learner's.
    """

    def __init__(self, *parts: nn.Module | nn.Parameter, without: Sequence[nn.Module] = (), **settings: Any) -> None:
        self.settings = {name: value for name, value in settings.items() if value is not None}
        tensors = [p for part in parts for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())]
        left_out = {id(parameter) for part in without for parameter in part.parameters()}
        self.ids = {id(parameter) for parameter in tensors if parameter.requires_grad} - left_out


class UpdateRule(ABC):
    """The way a module learns from one minibatch: named losses, and the parameters that each of them moves.

    One rule serves all modules of a learner, so it keeps nothing between calls. What it needs to keep for a module,
    such as a target network or a learned temperature, is in the `nn.Module` that `make_own` returns. The learner puts
    that on the module's device, saves it in checkpoints and keeps it equal on all learners. For every minibatch the
    learner calls `losses`, lets each loss add gradients to its own group, exchanges gradients with other learners,
    clips, steps all groups that have gradients, and calls `after_step`.

    Args:
        settings: Hyperparameters, a `SettingsModel`; modules may have their own values.
    """

    on_policy: ClassVar[bool] = False
    """True: outputs in training are compared with the recorded ones in a module's first update."""
    needs: ClassVar[tuple[type, ...]] = ()
    """Interfaces that the modules must inherit, such as `ValueFunctionAPI`."""
    row_outputs: ClassVar[tuple[str, ...]] = ()
    """Names of the values per row that `losses` returns."""
    settings: Any = None

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    def make_own(self, module: Any) -> nn.Module | None:
        """Return what is kept for a module between steps; None for nothing.

        A target is a `frozen_copy`, what is learned is a parameter, a count or a moving average is a buffer. It is a
        function of the module's weights and the settings.

        Args:
            module: The module, on its device.
        """
        return None

    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return the parameters that each loss moves; by default one loss, "total", moves all of the module.

        Every trainable parameter of the module and of what is kept belongs to one group.

        Args:
            module: The module.
            own: What `make_own` returned for it.
        """
        return {"total": Group(module)}

    @abstractmethod
    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of one minibatch; the rule makes the forward passes, with gradients.

        Random numbers have to come from torch's generator, which checkpoints contain.

        Args:
            batch: One minibatch, column -> tensor [B, ...] or [B, T, ...], on the module's device.
            module: The module, in training mode.
            own: What `make_own` returned for it.
            coefficients: Those of `initial_coefficients` or `adapt`, and those of `scheduled_coefficients`; for
                several learners also those that `standardized_columns` names.
        """

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:  # noqa: B027 - a hook
        """Change what is kept after a gradient step, without gradients, as by `polyak`.

        The change depends on the weights and `num_steps` alone, so that learners that update together stay equal.

        Args:
            module: The module, after the step.
            own: What `make_own` returned for it.
            num_steps: Gradient steps of the module so far.
        """

    def setting_names(self) -> tuple[str, ...]:
        """The names that `with_settings` accepts."""
        names = getattr(type(self.settings), "names", None)
        return tuple(names()) if callable(names) else ()

    def with_settings(self, **changes: Any) -> Self:
        """Return this rule with some of its settings changed, for a module with its own settings.

        Args:
            **changes: Values for some of `setting_names`.

        Raises:
            ConfigError: a value is out of its range.
            NotAvailableError: the rule has no settings.
        """
        if not self.setting_names():
            raise NotAvailableError(
                f"{type(self).__name__}.with_settings",
                expected="a loss that has settings",
                found=f"none, and values for {', '.join(changes)}",
                do="implement setting_names and with_settings, or give the module another loss",
            )
        changed = copy.copy(self)
        object.__setattr__(changed, "settings", self.settings.with_changes(**changes))  # also of a frozen dataclass
        return changed

    def initial_coefficients(self) -> dict[str, float]:
        """Return the coefficients of a module that was never updated."""
        return {}

    def scheduled_coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Return the coefficients that follow a schedule, for an update.

        Args:
            num_env_steps: Environment steps that the learner has learned from so far.
        """
        return {}

    def standardized_columns(self) -> tuple[str, ...]:
        """Return the columns that the loss standardizes over each minibatch; by default none.

        Of several learners that update together each has a part of the minibatch. The coefficients then have
        `<column>_mean` and `<column>_std` of the rows of all learners.
        """
        return ()

    def count_rows(self, batch: Mapping[str, Any]) -> int:
        """Return the rows that the losses are means of; by default all, and of sequences the steps with loss.

        They weight gradients and metrics of learners that update together, and metrics of minibatches.

        Args:
            batch: One minibatch, column -> tensor, before `augment`.
        """
        return num_rows_of(batch)

    def augment(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch that the module and the loss get; by default the same one.

        Args:
            minibatch: Column -> tensor, on the module's device; not to be changed in place.
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
            lr: That of the step before; at first the one of the settings.
            metrics: Of the minibatch, over the rows of all learners.
        """
        return lr

    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the coefficients for the next update.

        Args:
            coefficients: Those of this update.
            metrics: Means of this loss's metrics over the update's last epoch.
        """
        return dict(coefficients)


def num_rows_of(minibatch: Mapping[str, Any]) -> int:
    """Return the rows of a minibatch; of sequences the steps with loss."""
    mask = minibatch.get(Columns.LOSS_MASK)
    if mask is not None and mask.ndim > 1:
        return int(mask.sum())
    return next((len(column) for column in minibatch.values() if isinstance(column, torch.Tensor)), 1)


def frozen_copy(module: nn.Module) -> Any:
    """Return a copy of a module, or of a part of one, whose parameters need no gradients: a target network.

    Args:
        module: The module, or a part of it.

    Examples:
        >>> [parameter.requires_grad for parameter in frozen_copy(nn.Linear(1, 1)).parameters()]
        [False, False]
    """
    return copy.deepcopy(module).requires_grad_(False)


def polyak(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move a target's parameters a share of the way to their source's, and copy its buffers.

    Args:
        target: The target.
        source: A module of the same structure.
        tau: The share, from 0 to 1; 1 copies.

    Examples:
        >>> target, source = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> polyak(target, source, tau=1.0)
        >>> torch.equal(target.weight, source.weight)
        True
    """
    with torch.no_grad():
        for old, new in zip(target.parameters(), source.parameters()):
            old.lerp_(new, tau)
        for buffer, new_buffer in zip(target.buffers(), source.buffers()):
            buffer.copy_(new_buffer)
