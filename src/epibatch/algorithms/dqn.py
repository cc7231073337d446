"""Deep Q-networks: their settings, their config and their update rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.rl_module import Heads, QDistributionAPI, QValueAPI, RLModule, RLModuleSpec
from epibatch.core.settings import (
    Coefficient,
    Count,
    ErrorList,
    Number,
    Positive,
    PositiveNumber,
    ScheduledCoefficient,
    Switch,
)
from epibatch.core.structs import map_struct

from ..connectors.actions.epsilon_greedy import EpsilonGreedy
from ..learner.update_rule import Losses, UpdateRule, frozen_copy, polyak
from .config.settings import BATCH_SIZE_NAMES
from .registry import register_algorithm
from .replay import ReplayConfig, ReplayTraining

__all__ = ["DQNConfig", "DQNRule"]

_RESCALING = 1e-3
"""Slope of the rescaling of values far from 0."""


class DQNTraining(ReplayTraining):
    """Set learning rate, exploration, network, targets and the replay buffer."""

    lr: ScheduledCoefficient = 5e-4
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps."""
    train_batch_size: Positive = Field(default=32, validation_alias=BATCH_SIZE_NAMES)
    """Steps drawn for one update."""
    epsilon: ScheduledCoefficient = Field(default=[[0, 1.0], [10_000, 0.05]])
    """Probability of a random action, or a schedule of it by environment steps that were sampled."""
    double_q: Switch = True
    """True: the network says which next action is the best, and the target what it is worth."""
    dueling: Switch = True
    """True: the network adds up a value of the observation and an advantage of each action."""
    num_atoms: Positive = 1
    """Above 1: the network learns a distribution over so many returns, from `v_min` to `v_max`."""
    v_min: Number = -10.0
    """The lowest of these returns."""
    v_max: Number = 10.0
    """The highest."""
    noisy: Switch = False
    """True: learned noise on the weights of the heads explores; then set `epsilon` to 0."""
    sigma0: PositiveNumber = 0.5
    """Scale of that noise at first."""
    burn_in_len: Count = 0
    """Steps at the start of each sequence of a recurrent network that only compute its state; they count for
    `max_seq_len`."""
    value_rescaling: Switch = False
    """True: the network learns h(return), with h(x) = sign(x)(sqrt(|x| + 1) - 1) + x / 1000, so returns of any size."""
    td_error_loss_fn: Literal["huber", "mse"] = "huber"
    """The loss of errors; with `num_atoms` above 1 it is the cross-entropy."""
    min_q_weight: Coefficient = 0.0
    """Weight of the soft maximum over the Q-values of all actions less that of the recorded one, which the loss lowers:
    conservative Q-learning (Kumar et al. 2020), for recorded episodes."""
    target_network_update_freq: Positive = 500
    """Gradient steps from one change of the target to the next."""


class DQNRule(UpdateRule):
    """The loss of Q-values (Mnih et al. 2015), with double Q-learning (van Hasselt et al. 2016).

    Of distributions it is C51's (Bellemare et al. 2017, arXiv:1707.06887). Of sequences it is R2D2's (Kapturowski et
    al. 2019): network and target are run from the same state over each sequence, and on to the observations after its
    last steps.
    """

    needs = (QValueAPI,)
    row_outputs = ("td_error",)

    def make_own(self, module: Any) -> nn.Module:
        """Return the target.

        Raises:
            ConfigError: the module reads columns of other steps, which next observations do not have.
        """
        views = module.get_view_requirements(module.model_config) if isinstance(module, RLModule) else ()
        if views:
            raise ConfigError(
                f"DQN with the module {type(module).__name__}",
                expected="a module that reads observations and its state only, of which the next ones are known",
                found=f"one that also reads {', '.join(views)}",
                do="leave use_prev_action and use_prev_reward out, or let the environment put them into observations",
            )
        return nn.ModuleDict({"target": frozen_copy(module)})

    def losses(self, batch: Mapping[str, Any], module: Any, own: Any, coefficients: Mapping[str, float]) -> Losses:
        """Return the loss of a minibatch, with `qf_mean` and `td_error_mean`."""
        settings, mask = self.settings, batch.get(Columns.LOSS_MASK)
        outputs, after, targets = self._outputs(batch, module, own["target"])
        with torch.no_grad():
            best = _values(after if settings.double_q else targets, module).argmax(-1)
            ends = _of_actions(targets, best)
            returns = module.atoms if ends.shape[-1] > 1 else ends
            alive = ~batch[Columns.TERMINATEDS].bool()
            returns = _unscaled(returns) if settings.value_rescaling else returns
            rewards, discounts = batch[Columns.REWARDS].float(), batch["discounts"] * alive
            goals = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * returns
            goals = _rescaled(goals) if settings.value_rescaling else goals
        actions = batch[Columns.ACTIONS].long() - int(module.action_space.start)
        actions = actions if mask is None else actions * mask  # padding is no action
        chosen = _of_actions(outputs, actions)
        if ends.shape[-1] > 1:
            rows = -(_projected(ends.softmax(-1), goals, module.atoms) * chosen.log_softmax(-1)).sum(-1)
            errors = rows.detach()
        else:
            loss = nn.functional.huber_loss if settings.td_error_loss_fn == "huber" else nn.functional.mse_loss
            rows = loss(chosen, goals, reduction="none").squeeze(-1)
            errors = (chosen.detach() - goals).squeeze(-1)
        every = _values(outputs, module)
        values = _of_actions(every.unsqueeze(-1), actions).squeeze(-1)
        if settings.min_q_weight:
            rows = rows + settings.min_q_weight * (every.logsumexp(-1) - values)
        rows, values = rows * batch.get("weights", 1.0), values.detach()
        counted = slice(None) if mask is None else mask
        metrics = {"qf_mean": values[counted].mean(), "td_error_mean": errors[counted].abs().mean()}
        errors = errors if mask is None else errors.masked_fill(~mask, torch.nan)
        return Losses({"total": rows[counted].mean()}, metrics, {"td_error": errors})

    def _outputs(
        self, batch: Mapping[str, Any], module: Any, target: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The outputs at `obs`, and those at `new_obs` of the network and of the target, without gradient."""
        if Columns.SEQ_LENS in batch:
            sequences, places = _continued(batch)
            everywhere = _q(module, sequences)
            with torch.no_grad():
                targets = _q(target, sequences)
            rows = torch.arange(len(places), device=places.device).unsqueeze(-1)
            return everywhere[:, : places.shape[1]], everywhere.detach()[rows, places], targets[rows, places]
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        with torch.no_grad():
            targets = _q(target, following)
            after = _q(module, following) if self.settings.double_q else targets
        return _q(module, batch), after, targets

    def after_step(self, module: Any, own: Any, num_steps: int) -> None:
        """Move the target."""
        if num_steps % self.settings.target_network_update_freq == 0:
            polyak(own["target"], module, self.settings.tau)


def _q(module: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Logits of the distributions of all actions, or values as the only atom: `[B, ..., n, atoms]`."""
    if isinstance(module, QDistributionAPI):
        return module.compute_q_distribution(batch)[0]  # type: ignore[arg-type]
    values: torch.Tensor = module.compute_q_values(batch)[0]
    return values.unsqueeze(-1)


def _values(outputs: torch.Tensor, module: Any) -> torch.Tensor:
    return outputs.squeeze(-1) if outputs.shape[-1] == 1 else (outputs.softmax(-1) * module.atoms).sum(-1)


def _of_actions(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    index = actions[..., None, None].expand(*actions.shape, 1, outputs.shape[-1])
    return outputs.gather(-2, index).squeeze(-2)


def _continued(batch: Mapping[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """Sequences that go on with the observations after their steps, and the place of each step's `new_obs` in them."""
    counts = batch["n_step"].long()
    more = int(counts.max()) + 1  # the last place is for padding
    steps = torch.arange(counts.shape[1], device=counts.device)
    places = torch.where(counts > 0, steps + counts, counts.shape[1] + more - 1)
    rows = torch.arange(len(counts), device=counts.device).unsqueeze(-1)

    def joined(obs: torch.Tensor, new_obs: torch.Tensor) -> torch.Tensor:
        out = torch.cat([obs, obs.new_zeros(len(obs), more, *obs.shape[2:])], 1)
        out[rows, places] = new_obs
        return out

    obs = map_struct(joined, batch[Columns.OBS], batch[Columns.NEXT_OBS])
    return {Columns.OBS: obs, Columns.STATE_IN: batch[Columns.STATE_IN]}, places


def _projected(shares: torch.Tensor, returns: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Divide the shares of returns between the atoms on both sides of each: `[..., atoms]` all."""
    at = (returns.clamp(atoms[0], atoms[-1]) - atoms[0]) / (atoms[1] - atoms[0])
    near = (1 - (at.unsqueeze(-1) - torch.arange(len(atoms), device=at.device)).abs()).clamp(min=0)
    return (shares.unsqueeze(-1) * near).sum(-2)


def _rescaled(values: torch.Tensor) -> torch.Tensor:
    return values.sign() * ((values.abs() + 1).sqrt() - 1) + _RESCALING * values


def _unscaled(values: torch.Tensor) -> torch.Tensor:
    size = values.abs() + 1 + _RESCALING
    root = 2 * size / ((1 + 4 * _RESCALING * size).sqrt() + 1)  # without a difference of numbers that are nearly equal
    return values.sign() * (root.square() - 1)


@register_algorithm("dqn")
class DQNConfig(ReplayConfig):
    """Settings of deep Q-networks (Mnih et al. 2015); names are RLlib's.

    With `use_lstm` or `use_gru` in `model_config` it is R2D2 (Kapturowski et al. 2019): it learns from sequences of
    `max_seq_len` steps, from the states that were recorded before them.

    Examples:
        >>> config = DQNConfig().environment("CartPole-v1").training(epsilon=[[0, 1.0], [5000, 0.04]], n_step=3)
        >>> config.n_step, config.replay_buffer_config["capacity"]
        (3, 100000)
    """

    training_model: ClassVar[type[ReplayTraining]] = DQNTraining
    rule: ClassVar[Any] = DQNRule
    heads: ClassVar[Heads] = "q_values"

    def validate(self) -> None:
        """Check what no single setting can show; options of the network that are settings here have their names.

        Raises:
            ConfigError: settings that contradict each other, all of them in one message.
        """
        super().validate()
        errors, options = ErrorList(), self.model_config
        longest = options.get("max_seq_len", DefaultModelConfig.max_seq_len)
        if self.rl_module_spec is None and self.burn_in_len and not (options.get("use_lstm") or options.get("use_gru")):
            errors.add("training.burn_in_len", "needs a recurrent network: rl_module(model_config={'use_lstm': True})")
        elif self.burn_in_len >= longest:
            errors.add("training.burn_in_len", f"expected less than max_seq_len ({longest}), found {self.burn_in_len}")
        if self.v_min >= self.v_max:
            errors.add("training.v_max", f"expected more than v_min ({self.v_min}), found {self.v_max}")
        errors.raise_if_any(type(self).__name__)

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return a spec with the settings that are about the network."""
        names = ("dueling", "num_atoms", "v_min", "v_max", "noisy", "sigma0")
        return RLModuleSpec(model_config={**{name: getattr(self, name) for name in names}, "burn_in": self.burn_in_len})

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build the pipeline, with random actions now and then."""
        pipeline = super().build_module_to_env_connector(env=env, spaces=spaces)
        pipeline.prepend(EpsilonGreedy(epsilon=self.epsilon))
        return pipeline
