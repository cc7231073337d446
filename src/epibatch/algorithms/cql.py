"""Conservative Q-learning: its settings, its config and its update rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import torch
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.settings import Coefficient, Count, Number, Positive, PositiveNumber, ScheduledCoefficient, Switch
from epibatch.core.structs import flatten, map_struct

from ..learner.update_rule import Group, Losses
from .registry import register_algorithm
from .replay import ReplayTraining
from .sac import SACConfig, SACRule, SACTraining

__all__ = ["CQLConfig", "CQLRule"]

_MOST = 1e6
"""The highest weight that `lagrangian` learns."""


class CQLTraining(SACTraining):
    """Set learning rates, temperature, targets, and the weight of Q-values of other actions."""

    actor_lr: ScheduledCoefficient | None = 1e-4
    """Learning rate of the policy; None: `lr`."""
    critic_lr: ScheduledCoefficient | None = 1e-3
    """Learning rate of the critics; None: `lr`."""
    alpha_lr: ScheduledCoefficient | None = 1e-3
    """Learning rate of the temperature; None: `lr`."""
    deterministic_backup: Switch = True
    """True: what a step leads to is worth its Q-value, without the entropy of the policy there."""
    bc_iters: Count = 20_000
    """Updates at first in which the policy learns to act as the data does, and not yet to have high Q-values."""
    min_q_weight: Coefficient = 5.0
    """Weight of the Q-values of other actions over those of the data, which the critics' loss lowers."""
    temperature: PositiveNumber = 1.0
    """Temperature of the soft maximum over these actions."""
    num_actions: Positive = 10
    """Actions that are drawn for it at each observation, from each of three distributions; Discrete ones all count."""
    lagrangian: Switch = False
    """True: a further weight is learned, which keeps what the critics' loss lowers near `lagrangian_thresh`."""
    lagrangian_thresh: Number = 5.0
    """The goal of that weight."""


class CQLRule(SACRule):
    """SAC's losses, and one that lowers Q-values of actions that the data does not have (Kumar et al. 2020).

    It is CQL(H), arXiv:2006.04779. The soft maximum over actions is an importance-weighted sum over uniform ones and
    those of the policy at the observation and at the next one; of Discrete actions it is over all of them. All are
    valued at the observation itself, as in the authors' code; RLlib values the policy's next ones at the next one.
    """

    def make_own(self, module: Any) -> nn.Module:
        """Return SAC's targets and temperature, the number of updates, and the weight that `lagrangian` learns."""
        own = super().make_own(module)
        own.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))
        if self.settings.lagrangian:
            own.log_alpha_prime = nn.Parameter(torch.zeros(()))
        return own

    def groups(self, module: Any, own: Any) -> Mapping[str, Group]:
        """Return SAC's groups, and the weight that `lagrangian` learns, with the learning rate of the critics."""
        groups = super().groups(module, own)
        if self.settings.lagrangian:
            groups = {**groups, "alpha_prime": Group(own.log_alpha_prime, lr=self.settings.critic_lr)}
        return groups

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the losses of a minibatch, with SAC's metrics and `cql_loss`."""
        settings, made = self.settings, super().losses(batch, module, own, coefficients)
        gap, losses, metrics = settings.min_q_weight * self._gap(batch, module), dict(made.losses), dict(made.metrics)
        if settings.lagrangian:
            gap = gap - settings.lagrangian_thresh
            weight = own.log_alpha_prime.exp().clamp(max=_MOST)
            losses["alpha_prime"] = -weight * gap.detach()
            gap, metrics["alpha_prime"] = weight.detach() * gap, weight.detach()
        losses["critic"] = losses["critic"] + gap
        return Losses(losses, {**metrics, "cql_loss": gap.detach()}, made.rows)

    def policy_value(
        self, batch: Mapping[str, Any], module: Any, own: Any, alpha: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the policy is to raise: at first the likelihood of recorded actions, with its entropy."""
        value, entropy = super().policy_value(batch, module, own, alpha)
        if own.num_steps < self.settings.bc_iters:
            value = _policy(module, batch).logp(batch[Columns.ACTIONS]) + alpha * entropy
        return value, entropy

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the targets, and count."""
        super().after_step(module, own, num_steps)
        own.num_steps.fill_(num_steps)

    def _gap(self, batch: Mapping[str, Any], module: Any) -> torch.Tensor:
        """Return the mean difference of the soft maximum over actions and the Q-value of the recorded one."""
        temperature = self.settings.temperature
        if isinstance(module.action_space, gym.spaces.Discrete):
            values = module.compute_q_values(batch)
        else:
            values = self._weighted_values(batch, module)
        highest = temperature * torch.logsumexp(values / temperature, -1)
        gap: torch.Tensor = (highest - module.compute_q_values(batch, batch[Columns.ACTIONS])).mean()
        return gap

    def _weighted_values(self, batch: Mapping[str, Any], module: Any) -> torch.Tensor:
        """Q-values of drawn actions less the logarithms of their densities: `[K, B, 3 num_actions]`."""
        count = self.settings.num_actions

        def repeated(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.repeat_interleave(count, 0)

        with torch.no_grad():
            sizes = [leaf[0].numel() for leaf in flatten(batch[Columns.ACTIONS])[0]]
            uniform = map_struct(lambda leaf: repeated(torch.empty_like(leaf)).uniform_(-1, 1), batch[Columns.ACTIONS])
            drawn: list[tuple[Any, Any]] = [(uniform, -sum(sizes) * math.log(2))]
            for name in (Columns.OBS, Columns.NEXT_OBS):
                drawn.append(_policy(module, {Columns.OBS: batch[name]}, repeated).rsample_and_logp())
        seen = {Columns.OBS: map_struct(repeated, batch[Columns.OBS])}
        parts = [module.compute_q_values(seen, actions) - logp for actions, logp in drawn]
        return torch.cat([part.reshape(len(part), -1, count) for part in parts], -1)


def _policy(module: Any, batch: Mapping[str, Any], change: Any = None) -> Any:
    """The policy's distribution at the observations of a batch; the logits can be changed before."""
    logits = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    return module.get_train_action_dist_cls().from_logits(logits if change is None else change(logits))


@register_algorithm("cql")
class CQLConfig(SACConfig):
    """Settings of conservative Q-learning (Kumar et al. 2020), SAC from recorded episodes; names are RLlib's.

    An iteration draws 100,000 steps, of which each train batch is an update.

    Examples:
        >>> config = CQLConfig().training(bc_iters=0, min_q_weight=1.0)
        >>> config.bc_iters, config.num_actions
        (0, 10)
    """

    training_model: ClassVar[type[ReplayTraining]] = CQLTraining
    rule: ClassVar[Any] = CQLRule
    offline: ClassVar[bool] = True
    min_env_steps_per_iteration: ClassVar[int] = 100_000
