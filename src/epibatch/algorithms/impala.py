"""IMPALA: its settings, its config and its update rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from epibatch.core.columns import Columns
from epibatch.core.rl_module.rl_module import ValueFunctionAPI
from epibatch.core.schedules import value_at
from epibatch.core.settings import Positive
from epibatch.core.structs import map_struct

from ..learner.masked_rows import as_mask
from ..learner.update_rule import Losses, UpdateRule
from .config.settings import TrainingSettings
from .fragment_queue import QueueSettings
from .fragments import FragmentConfig, FragmentTraining
from .registry import register_algorithm

__all__ = ["IMPALAConfig", "IMPALARule"]


class IMPALATraining(FragmentTraining):
    """Set learning rate, batch sizes, V-trace, the queue and the weights of the losses."""

    learner_queue_size: Positive = 3
    """Train batches that wait for the learner; the oldest is dropped for one more."""


class IMPALARule(UpdateRule):
    """The policy gradient, a value loss and the entropy, with V-trace's advantages (Espeholt et al. 2018)."""

    needs = (ValueFunctionAPI,)
    on_policy = True

    def scheduled_coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Return the weight of the entropy."""
        return {"entropy_coeff": value_at(self.settings.entropy_coeff, num_env_steps)}

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `policy_loss`, `vf_loss`, `entropy` and those of the policy's loss."""
        mask = as_mask(batch.get(Columns.LOSS_MASK), type(self).__name__)

        def real(column: Any) -> Any:
            return column if mask is None else map_struct(lambda leaf: leaf[mask], column)

        outputs = module.forward_train(batch)
        policy = module.get_train_action_dist_cls().from_logits(real(outputs[Columns.ACTION_DIST_INPUTS]))
        values = module.compute_values(batch, embeddings=outputs.get(Columns.EMBEDDINGS))
        policy_loss, metrics = self.policy_loss(batch, policy, own, coefficients, real)
        vf_loss = 0.5 * real(values - batch[Columns.VALUE_TARGETS]).square().mean()
        entropy = policy.entropy().mean()
        total = policy_loss + self.settings.vf_loss_coeff * vf_loss - coefficients["entropy_coeff"] * entropy
        found = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy, **metrics}
        metrics = {name: value.detach() for name, value in found.items()}
        return Losses({"total": total}, metrics, outputs={**outputs, Columns.VF_PREDS: values})

    def policy_loss(
        self,
        batch: Mapping[str, Any],
        policy: Any,
        own: Any,
        coefficients: Mapping[str, float],
        real: Callable[[Any], Any],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return what the policy is to lower, a scalar with gradients, and metrics.

        Args:
            batch: The minibatch.
            policy: The distribution of actions in the rows with loss.
            own: What the rule keeps for the module.
            coefficients: As for `losses`.
            real: Makes a column of the rows with loss of one of the batch.
        """
        logp = policy.logp(real(batch[Columns.ACTIONS]))
        return -(logp * real(batch[Columns.ADVANTAGES])).mean(), {}


@register_algorithm("impala")
class IMPALAConfig(FragmentConfig):
    """Settings of IMPALA (Espeholt et al. 2018, arXiv:1802.01561), whose runners never wait; names are RLlib's.

    Examples:
        >>> config = IMPALAConfig().environment("CartPole-v1").training(lr=1e-3, learner_queue_size=4)
        >>> config.train_batch_size, config.learner_queue_size
        (500, 4)
    """

    training_model: ClassVar[type[TrainingSettings]] = IMPALATraining
    rule: ClassVar[Any] = IMPALARule

    @property
    def queue(self) -> QueueSettings:
        """The queue of train batches."""
        return QueueSettings(self.learner_queue_size, 1, False, "learner_queue_size")
