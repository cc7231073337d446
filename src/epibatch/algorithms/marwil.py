"""MARWIL: imitation weighted by advantages; its settings, its config and its update rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import AliasChoices, Field

from epibatch.core.columns import Columns
from epibatch.core.rl_module.rl_module import ValueFunctionAPI
from epibatch.core.settings import Coefficient, Fraction, Positive, PositiveNumber, ScheduledCoefficient

from ..connectors.learner.learner_connector_pipeline import add_advantages
from ..learner.masked_rows import as_mask, masked_mean
from ..learner.update_rule import Losses, UpdateRule
from .algorithm_config import AlgorithmConfig
from .config.settings import BATCH_SIZE_NAMES, TrainingSettings
from .registry import register_algorithm

if TYPE_CHECKING:
    from ..connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline

__all__ = ["MARWILConfig", "MARWILRule"]

_NORM = "moving_average_sqd_adv_norm"


class MARWILTraining(TrainingSettings):
    """Set learning rate, batch sizes, and how much advantages count."""

    lr: ScheduledCoefficient = 1e-4
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned from."""
    train_batch_size: Positive = Field(default=2000, validation_alias=BATCH_SIZE_NAMES)
    """Environment steps of an iteration, at least; whole episodes."""
    lambda_: Fraction = Field(default=1.0, validation_alias=AliasChoices("lambda_", "lambda"))
    """Trace decay of the returns: 1 for those of whole episodes, less to trust the value function more."""
    beta: Coefficient = 1.0
    """Exponent of the advantages that weight the actions; 0: all count the same, which is behaviour cloning."""
    vf_coeff: Coefficient = 1.0
    """Weight of the value loss."""
    moving_average_sqd_adv_norm_start: PositiveNumber = 100.0
    """First value of the moving average of squared advantages, by whose root advantages are divided."""
    moving_average_sqd_adv_norm_update_rate: Fraction = 1e-8
    """Share of the way that this average moves with each train batch; the default keeps it nearly where it starts."""


class MARWILRule(UpdateRule):
    """The likelihood of recorded actions, weighted by their advantages, with a value function (Wang et al. 2018)."""

    needs = (ValueFunctionAPI,)

    def initial_coefficients(self) -> dict[str, float]:
        """Return the first moving average of squared advantages."""
        return {_NORM: float(self.settings.moving_average_sqd_adv_norm_start)}

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `policy_loss` and `vf_loss`."""
        settings, mask = self.settings, as_mask(batch.get(Columns.LOSS_MASK), "MARWIL")
        outputs = module.forward_train(batch)
        policy = module.get_train_action_dist_cls().from_logits(outputs[Columns.ACTION_DIST_INPUTS])
        values = module.compute_values(batch, embeddings=outputs.get(Columns.EMBEDDINGS))
        advantages = batch[Columns.VALUE_TARGETS] - values
        squares = masked_mean(advantages.square(), mask)
        norm = self._moved(coefficients[_NORM], squares.detach())
        weights = torch.exp(settings.beta * advantages.detach() / (1e-8 + norm.sqrt()))
        policy_loss = -masked_mean(weights * policy.logp(batch[Columns.ACTIONS]), mask)
        vf_loss = 0.5 * squares
        metrics = {"policy_loss": policy_loss.detach(), "vf_loss": vf_loss.detach()}
        total = policy_loss + settings.vf_coeff * vf_loss
        return Losses({"total": total}, metrics, outputs={**outputs, Columns.VF_PREDS: values})

    def _moved(self, norm: Any, squares: Any) -> Any:
        return norm + self.settings.moving_average_sqd_adv_norm_update_rate * (squares - norm)

    def adapt(self, coefficients: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the moving average after this update."""
        return {_NORM: self._moved(coefficients[_NORM], 2 * metrics["vf_loss"])}


@register_algorithm("marwil")
class MARWILConfig(AlgorithmConfig):
    """Settings of MARWIL (Wang et al. 2018), behaviour cloning in which better actions count more; names are RLlib's.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(
        ...     observations=[[0.0], [1.0], [2.0]], actions=[0, 1], rewards=[0.0, 1.0], terminated=True,
        ...     len_lookback_buffer=0,
        ... )
        >>> algo = MARWILConfig().offline_data(input_=[episode]).training(train_batch_size=20, beta=2.0).build_algo()
        >>> algo.train()["num_env_steps_sampled_lifetime"]
        20
        >>> algo.stop()
    """

    training_model: ClassVar[type[TrainingSettings]] = MARWILTraining
    rule: ClassVar[Any] = MARWILRule
    offline: ClassVar[bool] = True

    def extend_learner_connector(self, pipeline: LearnerConnectorPipeline) -> None:
        """Add a bootstrap step to every chunk after the user's pieces, and returns at the end."""
        if self.add_default_connectors_to_learner_pipeline:
            add_advantages(pipeline, gamma=self.gamma, lambda_=self.lambda_, standardize_advantages=False)
