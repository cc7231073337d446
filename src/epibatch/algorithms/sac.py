"""Soft actor-critic: its settings, its config and its update rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import torch
from pydantic import Field
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.rl_module.rl_module import Heads, QValueAPI
from epibatch.core.settings import Count, Fraction, Number, Positive, PositiveNumber, ScheduledCoefficient, Switch
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten

from ..learner.update_rule import Group, Losses, UpdateRule, frozen_copy, polyak
from .config.settings import BATCH_SIZE_NAMES
from .registry import register_algorithm
from .replay import ReplayConfig, ReplayTraining

__all__ = ["SACConfig", "SACRule"]

_DISCRETE = 0.98
"""Share of the highest entropy of a Discrete policy that is its goal."""


class SACTraining(ReplayTraining):
    """Set learning rates, temperature, targets and the replay buffer."""

    lr: ScheduledCoefficient = 3e-4
    """Learning rate of what has none of its own, or a schedule of it by environment steps."""
    actor_lr: ScheduledCoefficient | None = None
    """Learning rate of the policy; None: `lr`."""
    critic_lr: ScheduledCoefficient | None = None
    """Learning rate of the critics; None: `lr`."""
    alpha_lr: ScheduledCoefficient | None = None
    """Learning rate of the temperature; None: `lr`."""
    train_batch_size: Positive = Field(default=256, validation_alias=BATCH_SIZE_NAMES)
    """Steps drawn for one update."""
    num_steps_sampled_before_learning_starts: Count = 1500
    """Environment steps with random actions before the first update."""
    tau: Fraction = 5e-3
    """Share of the way that targets move towards the critics after each step: 1 copies them."""
    initial_alpha: PositiveNumber = 1.0
    """Weight of the entropy at first; it is learned."""
    deterministic_backup: Switch = False
    """True: what a step leads to is worth its Q-value, without the entropy of the policy there."""
    target_entropy: Number | Literal["auto"] = "auto"
    """Entropy that the weight is learned for; "auto": minus the number of actions, of Discrete ones 98 % of most."""


class SACRule(UpdateRule):
    """The losses of critics, policy and temperature (Haarnoja et al. 2018, arXiv:1812.05905).

    Of Discrete actions the expectations are sums over all of them (Christodoulou 2019, arXiv:1910.07207).
    """

    needs = (QValueAPI,)
    row_outputs = ("td_error",)

    def make_own(self, module: Any) -> nn.Module:
        """Return the targets of the critics, and the temperature."""
        own = nn.Module()
        own.target = frozen_copy(module)
        own.log_alpha = nn.Parameter(torch.tensor(math.log(self.settings.initial_alpha)))
        return own

    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return the critics, the policy and the temperature, with their learning rates."""
        settings = self.settings
        return {
            "critic": Group(module.critic, lr=settings.critic_lr),
            "actor": Group(module, without=[module.critic], lr=settings.actor_lr),
            "alpha": Group(own.log_alpha, lr=settings.alpha_lr),
        }

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of a minibatch, with `alpha`, `entropy`, `qf_mean` and `td_error_mean`."""
        alpha, after = own.log_alpha.exp().detach(), {Columns.OBS: batch[Columns.NEXT_OBS]}
        with torch.no_grad():
            backup = torch.zeros_like(alpha) if self.settings.deterministic_backup else alpha
            value, _ = self._soft_value(module, own.target, after, backup)
            alive = ~batch[Columns.TERMINATEDS].bool()
            goals = batch[Columns.REWARDS].float() + batch["discounts"] * alive * value
        values = module.compute_q_values(batch, batch[Columns.ACTIONS])
        errors = values - goals
        value, entropy = self.policy_value(batch, module, own, alpha)
        weights, goal = batch.get("weights", 1.0), self._target_entropy(module.action_space)
        losses = {
            "critic": (errors.square().mean(0) * weights).mean(),
            "actor": -value.mean(),
            "alpha": (own.log_alpha * (entropy - goal).detach()).mean(),
        }
        td_error = errors.detach().abs().mean(0)
        metrics = {"alpha": alpha, "entropy": entropy.detach().mean(), "td_error_mean": td_error.mean()}
        return Losses(losses, metrics, {"td_error": td_error})

    def policy_value(
        self, batch: Mapping[str, Any], module: Any, own: Any, alpha: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the policy is to raise, with its gradients, and its entropy.

        Args:
            batch: The minibatch.
            module: The module.
            own: What the rule keeps for it.
            alpha: The weight of the entropy, a scalar without gradient.

        Returns:
            The soft value of each row, and the entropy, both `[B]`.
        """
        return self._soft_value(module, module, batch, alpha)

    def _soft_value(
        self, module: Any, critics: Any, batch: Mapping[str, Any], alpha: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The value of the policy with its entropy, and the entropy: `[B]` each."""
        outputs = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
        policy = module.get_train_action_dist_cls().from_logits(outputs)
        if isinstance(module.action_space, gym.spaces.Discrete):
            logp = outputs.log_softmax(-1)
            shares, values = logp.exp(), critics.compute_q_values(batch).amin(0)
            entropy = -(shares * logp).sum(-1)
            return (shares * values).sum(-1) + alpha * entropy, entropy
        actions = policy.rsample()
        entropy = -policy.logp(actions)
        return critics.compute_q_values(batch, actions).amin(0) + alpha * entropy, entropy

    def _target_entropy(self, space: Any) -> float:
        if self.settings.target_entropy != "auto":
            return float(self.settings.target_entropy)
        if isinstance(space, gym.spaces.Discrete):
            return _DISCRETE * math.log(space.n)
        return -float(sum(math.prod(leaf.shape) for leaf in flatten(get_base_struct_from_space(space))[0]))

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the targets."""
        polyak(own.target.critic, module.critic, self.settings.tau)


@register_algorithm("sac")
class SACConfig(ReplayConfig):
    """Settings of soft actor-critic (Haarnoja et al. 2018); names are RLlib's.

    Examples:
        >>> config = SACConfig().environment("Pendulum-v1").training(initial_alpha=0.2, tau=0.01)
        >>> config.initial_alpha, config.train_batch_size
        (0.2, 256)
    """

    training_model: ClassVar[type[ReplayTraining]] = SACTraining
    rule: ClassVar[Any] = SACRule
    heads: ClassVar[Heads] = "soft_actor_critic"
