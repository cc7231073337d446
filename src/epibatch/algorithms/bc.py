"""Behaviour cloning: its settings, its config and its update rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.settings import Coefficient, Positive

from ..learner.masked_rows import as_mask, masked_mean
from ..learner.update_rule import Losses, UpdateRule
from .algorithm import Algorithm
from .algorithm_config import AlgorithmConfig
from .config.settings import TrainingSettings
from .registry import register_algorithm

__all__ = ["BC", "BCConfig", "BCRule"]


class BCTraining(TrainingSettings):
    """Set learning rate, batch sizes and the weight of the entropy."""

    minibatch_size: Positive | None = 128
    """Timesteps of a minibatch; None: the whole batch; left out: no more than the batch has."""
    entropy_coeff: Coefficient = 0.0
    """Weight of the policy's entropy, which makes the clone less certain."""


class BCRule(UpdateRule):
    """The negative log-likelihood of the recorded actions, over the steps with loss."""

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `policy_loss` and `entropy`."""
        outputs, mask = module.forward_train(batch), as_mask(batch.get(Columns.LOSS_MASK), "BC")
        policy = module.get_train_action_dist_cls().from_logits(outputs[Columns.ACTION_DIST_INPUTS])
        loss = policy_loss = -masked_mean(policy.logp(batch[Columns.ACTIONS]), mask)
        metrics = {"policy_loss": policy_loss.detach()}
        if self.settings.entropy_coeff:
            entropy = masked_mean(policy.entropy(), mask)
            loss = policy_loss - self.settings.entropy_coeff * entropy
            metrics["entropy"] = entropy.detach()
        return Losses({"total": loss}, metrics)


@register_algorithm("bc")
class BCConfig(AlgorithmConfig):
    """Settings of behaviour cloning (Pomerleau 1991): the policy learns to act as recorded episodes do.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(
        ...     observations=[[0.0], [1.0], [2.0]], actions=[0, 1], rewards=[0.0, 0.0], len_lookback_buffer=0
        ... )
        >>> algo = BCConfig().offline_data(input_=[episode]).training(train_batch_size=20).build_algo()
        >>> algo.train()["num_env_steps_sampled_lifetime"]
        20
        >>> algo.stop()
    """

    training_model: ClassVar[type[TrainingSettings]] = BCTraining
    rule: ClassVar[Any] = BCRule
    offline: ClassVar[bool] = True
    algorithm_class: ClassVar[str] = "epibatch.algorithms.bc:BC"


class BC(Algorithm):
    """Behaviour cloning's training loop; built by `BCConfig.build_algo`."""

    config_class: ClassVar[type[AlgorithmConfig]] = BCConfig
