"""The settings of a learner and of its loss; configs have the same models in their training section."""

from __future__ import annotations

from typing import Literal

from epibatch.core.settings import (
    Coefficient,
    Count,
    Positive,
    PositiveNumber,
    PositiveOrInfinite,
    SettingsModel,
    Switch,
)

__all__ = ["LearnerSettings", "OptimizerSettings", "PPOSettings"]


class OptimizerSettings(SettingsModel):
    """Optimiser, gradient clipping and minibatches."""

    lr: PositiveNumber = 5e-5
    """Learning rate of Adam."""
    minibatch_size: Positive | None = None
    """Timesteps of a minibatch; None: the whole batch."""
    num_epochs: Positive = 1
    """Passes through each batch."""
    grad_clip: PositiveNumber | None = None
    """Bound of the gradients; None for none."""
    grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm"
    """"global_norm" scales all gradients of a module by one factor, "norm" each parameter's gradient by its own,
    "value" clips every entry."""


class LearnerSettings(OptimizerSettings):
    """How a learner steps through a batch, checked when it is set.

    Args:
        lr: learning rate, > 0.
        optimizer: "adam" (Kingma and Ba 2015, arXiv:1412.6980).
        grad_clip: bound of the gradients, > 0, or None for none.
        grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each
            parameter's gradient by its own, "value" clips every entry.
        num_epochs: passes through each batch.
        minibatch_size: timesteps per minibatch, None for the whole batch.
        shuffle: "epoch", "once" or None, see `Minibatches`.
        remainder: "keep", "drop" or "spread", see `Minibatches`.
        seed: seed of the learner's own random generator, None for a random one.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    optimizer: Literal["adam"] = "adam"
    shuffle: Literal["epoch", "once"] | None = "epoch"
    remainder: Literal["keep", "drop", "spread"] = "keep"
    seed: Count | None = None


class PPOSettings(SettingsModel):
    """The hyperparameters of the PPO loss, checked when they are set.

    Raises:
        ConfigError: a value is out of its range.
    """

    clip_param: PositiveNumber = 0.3
    """The probability ratio is clipped to `1 +- clip_param`."""
    vf_clip_param: PositiveOrInfinite = 10.0
    """Upper bound of a row's squared value error; `inf` for none."""
    vf_loss_coeff: Coefficient = 1.0
    """Weight of the value loss."""
    entropy_coeff: Coefficient = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: Switch = True
    """True if the KL divergence from the acting policy is part of the loss."""
    kl_coeff: Coefficient = 0.2
    """First weight of the KL term; the learner adapts it."""
    kl_target: PositiveNumber = 0.01
    """KL divergence that the adaptation aims at."""
