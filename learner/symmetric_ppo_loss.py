"""PPO's loss for tasks with symmetries (Mittal et al. 2024, arXiv:2403.04359)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.structs import flatten, map_struct

from ..connectors.learner.symmetric_augmentation import mirrored_rows, mirrored_struct, symmetry_functions
from .masked_rows import as_mask, masked_mean
from .ppo_loss import PPOLoss, read_columns

__all__ = ["SymmetricPPOLoss"]


@dataclass(frozen=True)
class SymmetricPPOLoss(PPOLoss):
    """PPO's loss on each minibatch and its mirror image, with a loss of the policy's asymmetry.

    The module gets the rows of the minibatch and then their mirrored ones, as `SymmetricAugmentation` makes them. The
    mirror loss, the metric `mirror_loss`, is the mean squared difference between the policy's mean on the mirrored rows
    and the mirrored mean on the original rows, through which no gradient flows.

    For a config, derive a class and set the functions there, as in the example; its import path names it in a file.

    Args:
        settings: PPO's hyperparameters.
        observations: Function of observations [N, ...] or of a struct of them, or its import path; see
            `SymmetricAugmentation`.
        actions: Likewise for actions.
        use_data_augmentation: True if PPO's terms are of mirrored rows too.
        mirror_loss_coeff: Weight of the mirror loss; at 0 it is not computed.

    Raises:
        ConfigError: no functions, nothing to use them for, or a mirror loss for actions without a mean.

    Examples:
        >>> @dataclass(frozen=True)
        ... class LeftAndRight(SymmetricPPOLoss):
        ...     observations: Any = torch.neg
        ...     actions: Any = torch.neg
        >>> LeftAndRight().augment({"obs": torch.ones(2, 1), "actions": torch.zeros(2)})["mirrored"]
        tensor([False, False,  True,  True])
    """

    observations: Callable[[Any], Any] | str | None = None
    actions: Callable[[Any], Any] | str | None = None
    use_data_augmentation: bool = True
    mirror_loss_coeff: float = 0.0

    def __post_init__(self) -> None:
        """Find the functions, and check that they are used."""
        if not self.use_data_augmentation and not self.mirror_loss_coeff > 0:
            expected, do = "use_data_augmentation, or a mirror_loss_coeff above 0", "use PPOLoss for neither"
            found = f"mirror_loss_coeff={self.mirror_loss_coeff}"
            raise ConfigError("SymmetricPPOLoss", expected=expected, found=found, do=do)
        functions = symmetry_functions("SymmetricPPOLoss", self.observations, self.actions)
        object.__setattr__(self, "_functions", functions)

    def augment(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch with its mirrored rows.

        Raises:
            ColumnError: it has no observations or no actions.
        """
        minibatch = dict(dict.items(minibatch))  # of a TrackedBatch: to repeat a column is not to read it
        do = "let the learner pipeline, or the storage, give observations and actions"
        read_columns(minibatch, (Columns.OBS, Columns.ACTIONS), "the train batch", loss="SymmetricPPOLoss", do=do)
        return mirrored_rows(minibatch, *self._functions)  # type: ignore[attr-defined]

    def __call__(
        self,
        batch: Mapping[str, Any],
        outputs: Mapping[str, Any],
        distribution_class: Any,
        coefficients: Mapping[str, float],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return PPO's loss of the rows that `use_data_augmentation` chooses, and the mirror loss."""
        mirrored = batch[Columns.MIRRORED]
        rows = len(mirrored) - int(mirrored.reshape(len(mirrored), -1)[:, 0].sum())
        ppo_batch, ppo_outputs = batch, outputs
        if not self.use_data_augmentation:
            ppo_batch, ppo_outputs = (_first_rows(part, rows, len(mirrored)) for part in (batch, outputs))
        loss, metrics = super().__call__(ppo_batch, ppo_outputs, distribution_class, coefficients)
        if not self.mirror_loss_coeff > 0:
            return loss, metrics
        asymmetry = self._asymmetry(outputs[Columns.ACTION_DIST_INPUTS], rows, distribution_class, batch)
        loss = loss + self.mirror_loss_coeff * asymmetry
        return loss, {**metrics, "total_loss": loss.detach(), "mirror_loss": asymmetry.detach()}

    def _asymmetry(self, inputs: Any, rows: int, distribution_class: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the mean squared difference over rows with loss and entries of actions."""
        means = distribution_class.from_logits(inputs).to_deterministic().rsample()
        leaves, _ = flatten(means)
        if not all(leaf.is_floating_point() for leaf in leaves):
            raise ConfigError(
                "SymmetricPPOLoss.mirror_loss_coeff",
                expected="actions with a mean, as those of a Box have",
                found=f"a mirror loss for {getattr(distribution_class, '__name__', distribution_class)}",
                do="leave mirror_loss_coeff at 0, and let use_data_augmentation mirror the rows",
            )
        mask = as_mask(batch.get(Columns.LOSS_MASK), "SymmetricPPOLoss")
        axes = batch[Columns.MIRRORED].ndim
        originals = map_struct(lambda leaf: leaf[:rows].detach(), means)
        targets = mirrored_struct(originals, self._functions[1], axes, "the function of actions")  # type: ignore[attr-defined]
        errors = [
            (leaf[rows:] - target).square().flatten(axes).mean(-1)
            if leaf.ndim > axes
            else (leaf[rows:] - target).square()
            for leaf, target in zip(leaves, flatten(targets)[0])
        ]
        return masked_mean(torch.stack(errors).mean(0), None if mask is None else mask[rows:])


def _first_rows(columns: Mapping[str, Any], rows: int, total: int) -> dict[str, Any]:
    """Return the first rows of each column that has all of them."""

    def cut(leaf: Any) -> Any:
        return leaf[:rows] if hasattr(leaf, "__len__") and len(leaf) == total else leaf

    return {name: map_struct(cut, column) for name, column in columns.items()}
