"""Implicit Q-learning: its settings, its config and its update rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.rl_module.rl_module import Heads, QValueAPI, ValueFunctionAPI
from epibatch.core.settings import Coefficient, Fraction, ScheduledCoefficient

from ..learner.update_rule import Group, Losses, UpdateRule, frozen_copy, polyak
from .registry import register_algorithm
from .replay import ReplayConfig, ReplayTraining

__all__ = ["IQLConfig", "IQLRule"]

_MOST = 100.0
"""The highest weight of an action."""


class IQLTraining(ReplayTraining):
    """Set learning rates, targets, and how much better actions count."""

    lr: ScheduledCoefficient = 3e-4
    """Learning rate of what has none of its own, or a schedule of it by environment steps learned from."""
    actor_lr: ScheduledCoefficient | None = None
    """Learning rate of the policy and the value function; None: `lr`."""
    critic_lr: ScheduledCoefficient | None = None
    """Learning rate of the critics; None: `lr`."""
    tau: Fraction = 5e-3
    """Share of the way that targets move towards the critics after each step: 1 copies them."""
    expectile: Fraction = 0.7
    """Expectile of the Q-values of recorded actions that the value function learns: 0.5 for their mean, more for better
    ones."""
    beta: Coefficient = 3.0
    """Exponent of the advantages that weight the actions; 0: all count the same, which is behaviour cloning."""


class IQLRule(UpdateRule):
    """The losses of critics, value function and policy, all at recorded actions (Kostrikov et al. 2021).

    The value function learns an expectile of the Q-values, the critics learn from the value after a step, and the
    policy imitates actions by their advantages (arXiv:2110.06169).
    """

    needs = (QValueAPI, ValueFunctionAPI)
    row_outputs = ("td_error",)

    def make_own(self, module: Any) -> nn.Module:
        """Return the targets of the critics."""
        return nn.ModuleDict({"target": frozen_copy(module)})

    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return the critics, and all else, with their learning rates."""
        settings = self.settings
        return {
            "critic": Group(module.critic, lr=settings.critic_lr),
            "actor": Group(module, without=[module.critic], lr=settings.actor_lr),
        }

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of a minibatch, with `policy_loss`, `vf_loss`, `vf_mean` and `td_error_mean`."""
        settings, actions = self.settings, batch[Columns.ACTIONS]
        with torch.no_grad():
            goals = own["target"].compute_q_values(batch, actions).amin(0)
            alive = ~batch[Columns.TERMINATEDS].bool()
            after = module.compute_values({Columns.OBS: batch[Columns.NEXT_OBS]})
            returns = batch[Columns.REWARDS].float() + batch["discounts"] * alive * after
        errors = module.compute_q_values(batch, actions) - returns
        values = module.compute_values(batch)
        advantages = goals - values
        sides = torch.where(advantages > 0, settings.expectile, 1 - settings.expectile)
        vf_loss = (sides * advantages.square()).mean()
        shares = (settings.beta * advantages.detach()).exp().clamp(max=_MOST)
        logits = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
        policy_loss = -(shares * module.get_train_action_dist_cls().from_logits(logits).logp(actions)).mean()
        losses = {
            "critic": (errors.square().mean(0) * batch.get("weights", 1.0)).mean(),
            "actor": policy_loss + vf_loss,
        }
        td_error = errors.detach().abs().mean(0)
        metrics = {"policy_loss": policy_loss.detach(), "vf_loss": vf_loss.detach(), "vf_mean": values.detach().mean()}
        return Losses(losses, {**metrics, "td_error_mean": td_error.mean()}, {"td_error": td_error})

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the targets."""
        polyak(own["target"].critic, module.critic, self.settings.tau)


@register_algorithm("iql")
class IQLConfig(ReplayConfig):
    """Settings of implicit Q-learning (Kostrikov et al. 2021), from recorded episodes; defaults are the paper's.

    An iteration draws 100,000 steps, of which each train batch is an update.

    Examples:
        >>> config = IQLConfig().training(expectile=0.9, beta=10.0)
        >>> config.expectile, config.train_batch_size
        (0.9, 256)
    """

    training_model: ClassVar[type[ReplayTraining]] = IQLTraining
    rule: ClassVar[Any] = IQLRule
    heads: ClassVar[Heads] = "implicit_q"
    offline: ClassVar[bool] = True
    min_env_steps_per_iteration: ClassVar[int] = 100_000
