"""APPO: its settings, its config and its update rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.settings import Coefficient, Fraction, Positive, PositiveNumber, Switch

from ..learner.ppo_loss import adapted_kl_coeff
from ..learner.update_rule import frozen_copy, polyak
from .config.settings import TrainingSettings
from .fragment_queue import QueueSettings
from .fragments import FragmentConfig, FragmentTraining
from .impala import IMPALARule
from .registry import register_algorithm

__all__ = ["APPOConfig", "APPORule"]


class APPOTraining(FragmentTraining):
    """Set learning rate, batch sizes, V-trace, the queue, the target and the weights of the losses."""

    clip_param: PositiveNumber = 0.4
    """The probability ratio is clipped to `1 +- clip_param`."""
    use_kl_loss: Switch = False
    """True if the KL divergence from the target network's policy is part of the loss."""
    kl_coeff: Coefficient = 1.0
    """First weight of the KL term; the learner adapts it."""
    kl_target: PositiveNumber = 0.01
    """KL divergence that the adaptation aims at."""
    target_worker_clipping: PositiveNumber = 2.0
    """Highest ratio of probabilities, when it acted to the target network's, that weights the policy's ratio."""
    target_network_update_freq: PositiveNumber = 2
    """Times that the circular buffer's batches are all used up, from one change of the target network to the next."""
    tau: Fraction = 1.0
    """Share of the way that the target network then moves: 1 copies the network."""
    use_circular_buffer: Switch = True
    """False: each train batch is used once, the oldest first."""
    circular_buffer_num_batches: Positive = 8
    """Train batches in the circular buffer; the oldest is dropped for one more."""
    circular_buffer_iterations_per_batch: Positive = 2
    """Updates from each of them; batches are drawn at random."""
    simple_queue_size: Positive = 32
    """Train batches that wait for the learner without the circular buffer."""


class APPORule(IMPALARule):
    """PPO's clipped surrogate for older data (Luo et al. 2020, arXiv:1912.00167), with IMPALA's value loss and entropy.

    The ratio is that of the policy to a target network's, as far as the policy that acted is not too far from both.
    V-trace's advantages are those of the target network's policy.
    """

    def make_own(self, module: Any) -> nn.Module:
        """Return the target network, which acts as runners do: without dropout, and with batch norm as it is."""
        return nn.ModuleDict({"target": frozen_copy(module).eval()})

    def initial_coefficients(self) -> dict[str, float]:
        """Return the weight of the KL term, if there is one."""
        return {"kl_coeff": float(self.settings.kl_coeff)} if self.settings.use_kl_loss else {}

    def policy_loss(
        self,
        batch: Mapping[str, Any],
        policy: Any,
        own: Any,
        coefficients: Mapping[str, float],
        real: Callable[[Any], Any],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the clipped surrogate, with the KL term, and `mean_is_ratio` and `mean_kl`; see IMPALARule."""
        settings, target = self.settings, own["target"]
        actions, acted, advantages = (
            real(batch[name]) for name in (Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES)
        )
        with torch.no_grad():
            logits = real(target.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
            old = target.get_train_action_dist_cls().from_logits(logits)
            weights = (acted - old.logp(actions)).exp().clamp(max=settings.target_worker_clipping)
        ratios = weights * (policy.logp(actions) - acted).exp()
        clipped = ratios.clamp(1 - settings.clip_param, 1 + settings.clip_param)
        loss, metrics = (
            -torch.minimum(ratios * advantages, clipped * advantages).mean(),
            {"mean_is_ratio": weights.mean()},
        )
        if settings.use_kl_loss:
            metrics["mean_kl"] = old.kl(policy).mean()
            loss = loss + coefficients["kl_coeff"] * metrics["mean_kl"]
        return loss, metrics

    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Grow or shrink the weight of the KL term around the divergence that is aimed at."""
        if not self.settings.use_kl_loss:
            return {}
        return {"kl_coeff": adapted_kl_coeff(coefficients["kl_coeff"], metrics["mean_kl"], self.settings.kl_target)}

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the target network."""
        settings = self.settings
        steps = settings.num_epochs * max(1, round(settings.train_batch_size / (settings.minibatch_size or math.inf)))
        updates = settings.circular_buffer_num_batches * settings.circular_buffer_iterations_per_batch
        if num_steps % max(1, round(settings.target_network_update_freq * updates * steps)) == 0:
            polyak(own["target"], module, settings.tau)


@register_algorithm("appo")
class APPOConfig(FragmentConfig):
    """Settings of APPO (Luo et al. 2020), PPO whose runners never wait; names are RLlib's.

    Examples:
        >>> config = APPOConfig().environment("CartPole-v1").training(clip_param=0.2, use_kl_loss=True)
        >>> config.clip_param, config.circular_buffer_num_batches
        (0.2, 8)
    """

    training_model: ClassVar[type[TrainingSettings]] = APPOTraining
    rule: ClassVar[Any] = APPORule
    target: ClassVar[str] = "target"

    @property
    def queue(self) -> QueueSettings:
        """The circular buffer, or the queue, of train batches."""
        if not self.use_circular_buffer:
            return QueueSettings(self.simple_queue_size, 1, False, "simple_queue_size")
        uses = self.circular_buffer_iterations_per_batch
        return QueueSettings(self.circular_buffer_num_batches, uses, True, "circular_buffer_num_batches")
