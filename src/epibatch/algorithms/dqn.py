"""Deep Q-networks: their settings, their config and their update rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.rl_module.rl_module import Heads, QValueAPI
from epibatch.core.settings import Positive, ScheduledCoefficient, Switch

from ..connectors.actions.epsilon_greedy import EpsilonGreedy
from ..learner.update_rule import Losses, UpdateRule, frozen_copy, polyak
from .registry import register_algorithm
from .replay import ReplayConfig, ReplayTraining

__all__ = ["DQNConfig", "DQNRule"]


class DQNTraining(ReplayTraining):
    """Set learning rate, exploration, targets and the replay buffer."""

    lr: ScheduledCoefficient = 5e-4
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps."""
    train_batch_size: Positive = 32
    """Steps drawn for one update."""
    epsilon: ScheduledCoefficient = Field(default=[[0, 1.0], [10_000, 0.05]])
    """Probability of a random action, or a schedule of it by environment steps that were sampled."""
    double_q: Switch = True
    """True: the network says which next action is the best, and the target what it is worth."""
    target_network_update_freq: Positive = 500
    """Gradient steps from one change of the target to the next."""


class DQNRule(UpdateRule):
    """The Huber loss of Q-values (Mnih et al. 2015), with double Q-learning (van Hasselt et al. 2016)."""

    needs = (QValueAPI,)
    row_outputs = ("td_error",)

    def make_own(self, module: Any) -> nn.Module:
        """Return the target."""
        return nn.ModuleDict({"target": frozen_copy(module)})

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `qf_mean` and `td_error_mean`."""
        settings, after = self.settings, {Columns.OBS: batch[Columns.NEXT_OBS]}
        with torch.no_grad():
            values = own["target"].compute_q_values(after)[0]
            chooser = module.compute_q_values(after)[0] if settings.double_q else values
            best = values.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
            alive = ~batch[Columns.TERMINATEDS].bool()
            goals = batch[Columns.REWARDS].float() + batch["discounts"] * alive * best
        chosen = module.compute_q_values(batch, batch[Columns.ACTIONS])[0]
        errors = chosen - goals
        rows = nn.functional.huber_loss(chosen, goals, reduction="none")
        loss = (rows * batch.get("weights", 1.0)).mean()
        metrics = {"qf_mean": chosen.detach().mean(), "td_error_mean": errors.detach().abs().mean()}
        return Losses({"total": loss}, metrics, {"td_error": errors.detach()})

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the target."""
        if num_steps % self.settings.target_network_update_freq == 0:
            polyak(own["target"], module, self.settings.tau)


@register_algorithm("dqn")
class DQNConfig(ReplayConfig):
    """Settings of deep Q-networks (Mnih et al. 2015); names are RLlib's.

    Example:
        >>> config = DQNConfig().environment("CartPole-v1").training(epsilon=[[0, 1.0], [5000, 0.04]], n_step=3)
        >>> config.n_step, config.replay_buffer_config["capacity"]
        (3, 100000)
    """

    training_model: ClassVar[type[ReplayTraining]] = DQNTraining
    rule: ClassVar[Any] = DQNRule
    heads: ClassVar[Heads] = "q_values"

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build the pipeline, with random actions now and then."""
        pipeline = super().build_module_to_env_connector(env=env, spaces=spaces)
        pipeline.prepend(EpsilonGreedy(epsilon=self.epsilon))
        return pipeline
