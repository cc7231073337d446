"""The loss of a student that imitates a teacher's actions (Ross et al. 2011, "A Reduction of Imitation Learning")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from epibatch.core.columns import Columns, nearest_column
from epibatch.core.distributions import Deterministic, DiagGaussian, SquashedGaussian
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.masked_column import MaskedColumn

from .loss import Loss
from .masked_rows import as_mask, fill_masked, masked_mean
from .ppo_loss import read_columns

__all__ = ["DistillationLoss"]

LossType = Literal["mse", "huber"]
_WITH_MEAN = (DiagGaussian, SquashedGaussian, Deterministic)


@dataclass(frozen=True)
class DistillationLoss(Loss):
    """The error of the student's mean action against a column of teacher actions.

    Other distributions than Gaussians, such as those of discrete or nested actions, have no mean. For them the loss is
    the negative log-likelihood of the teacher's action. Rows with a `loss_mask` of False do not count, nor do those
    without a teacher action, if the column is a `MaskedColumn`.

    Args:
        loss_type: "mse", or "huber" with a threshold of 1; for actions with a mean.
        column: The actions to imitate: "teacher_actions", or "dagger_actions", say.

    Raises:
        ConfigError: another `loss_type`.

    Examples:
        >>> batch = {"teacher_actions": torch.tensor([[1.0], [2.0]])}
        >>> outputs = {"action_dist_inputs": torch.zeros(2, 2, requires_grad=True)}
        >>> DistillationLoss()(batch, outputs, DiagGaussian, {})[1]
        {'total_loss': tensor(2.5000), 'behavior_loss': tensor(2.5000)}
    """

    loss_type: LossType = "mse"
    column: str = "teacher_actions"

    def __post_init__(self) -> None:
        """Check the type."""
        if self.loss_type not in get_args(LossType):
            expected = f"one of {get_args(LossType)}"
            raise ConfigError(
                "DistillationLoss.loss_type", expected=expected, found=repr(self.loss_type), do="choose one"
            )

    def count_rows(self, batch: Mapping[str, Any]) -> int:
        """Return the rows with loss and a teacher action."""
        targets, mask = batch.get(self.column), as_mask(batch.get(Columns.LOSS_MASK), "DistillationLoss")
        if not isinstance(targets, MaskedColumn):
            return super().count_rows(batch)
        return int((targets.mask if mask is None else mask & targets.mask).sum())

    def __call__(
        self,
        batch: Mapping[str, Any],
        outputs: Mapping[str, Any],
        distribution_class: Any,
        coefficients: Mapping[str, float],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the mean over the rows with loss and, of means, over the entries of an action.

        Raises:
            ColumnError: there are no teacher actions or no outputs of the student, or the actions have another shape
                than the student's.
        """
        where = f"DistillationLoss: column {self.column!r}"
        if self.column not in batch:
            do = f"{nearest_column(self.column, map(str, batch))}; record the teacher's actions, or pass column="
            raise ColumnError(where, expected="the actions to imitate", found="none", do=do)
        do = f"return {Columns.ACTION_DIST_INPUTS!r} from the module's _forward_train, or from _forward"
        names = (Columns.ACTION_DIST_INPUTS,)
        (inputs,) = read_columns(outputs, names, "the module's outputs", loss="DistillationLoss", do=do).values()
        targets = batch[self.column]
        mask = as_mask(batch.get(Columns.LOSS_MASK), "DistillationLoss")
        if isinstance(targets, MaskedColumn):
            mask, targets = targets.mask if mask is None else mask & targets.mask, targets.value
        if mask is not None:
            targets, inputs = fill_masked(targets, mask), fill_masked(inputs, mask)
        student = distribution_class.from_logits(inputs)
        if not isinstance(student, _WITH_MEAN):
            loss = masked_mean(-student.logp(targets), mask)
            return loss, {"total_loss": loss.detach(), "behavior_loss": loss.detach()}
        means = student.to_deterministic().rsample()
        if means.shape != targets.shape:
            expected, found = f"shape {list(means.shape)}, as the student's", f"shape {list(targets.shape)}"
            raise ColumnError(where, expected=expected, found=found, do="record actions of the same action space")
        function = torch.nn.functional.mse_loss if self.loss_type == "mse" else torch.nn.functional.huber_loss
        errors = function(means, targets.to(means.dtype), reduction="none")
        rows = inputs.ndim - 1
        loss = masked_mean(errors.flatten(rows).mean(-1) if errors.ndim > rows else errors, mask)
        return loss, {"total_loss": loss.detach(), "behavior_loss": loss.detach()}
