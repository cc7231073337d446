"""The settings of a learner and of its loss; configs have the same models in their training section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator, ValidationInfo, WithJsonSchema

from epibatch.core.errors import nearest
from epibatch.core.settings import (
    Coefficient,
    Count,
    Positive,
    PositiveNumber,
    PositiveOrInfinite,
    SettingsModel,
    Switch,
    check_import,
    python_scalar,
)

from .schedules import ScheduledCoefficient, ScheduledPositive

__all__ = ["OPTIMIZERS", "LearnerSettings", "OptimizerSettings", "PPOSettings"]

OPTIMIZERS = {
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "nadam": "torch.optim:NAdam",
    "radam": "torch.optim:RAdam",
    "rmsprop": "torch.optim:RMSprop",
    "sgd": "torch.optim:SGD",
}
"""Name of an optimiser -> the import path of its class."""

_OPTIMIZER_SCHEMA = {
    "anyOf": [{"enum": list(OPTIMIZERS)}, {"type": "string"}, {"type": "object", "required": ["optimizer"]}]
}


def _optimizer(value: Any, info: ValidationInfo) -> Any:
    chosen = value.get("optimizer") if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and "lr" in value:
        raise ValueError("the learning rate of the optimizer is the setting lr")
    if isinstance(chosen, str) and ":" not in chosen and chosen not in OPTIMIZERS:
        raise ValueError(f"expected an optimizer, or its import path module:name; {nearest(chosen, OPTIMIZERS)}")
    if not isinstance(chosen, str) and not callable(chosen):
        raise ValueError('expected a name such as "adamw", a class, or {"optimizer": one of them, further keywords}')
    check_import(chosen, info)
    return dict(value) if isinstance(value, Mapping) else value


class OptimizerSettings(SettingsModel):
    """Optimiser, gradient clipping and minibatches."""

    lr: ScheduledPositive = 5e-5
    """Learning rate, or a schedule of it: `[[0, 1e-3], [500_000, 1e-4]]`, by environment steps learned from."""
    optimizer: Annotated[
        str | Mapping[str, Any] | Callable[..., Any], PlainValidator(_optimizer), WithJsonSchema(_OPTIMIZER_SCHEMA)
    ] = "adam"
    """A name such as "adamw", a class, or its import path; with keywords: `{"optimizer": "adamw", "eps": 1e-5}`."""
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
    """Optimiser and minibatches of a learner, validated when set.

    Args:
        lr: learning rate, > 0, or a schedule `[[0, value], [step, value], ...]` by environment steps learned from.
        optimizer: "adam" (Kingma and Ba 2015, arXiv:1412.6980), "adamw", "nadam", "radam", "rmsprop" or "sgd", a class
            `(parameters, lr=..., ...)`, or its import path `module:name`; a mapping `{"optimizer": one of these, ...}`
            has further keywords for it, such as `weight_decay` and `eps`.
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

    shuffle: Literal["epoch", "once"] | None = "epoch"
    remainder: Literal["keep", "drop", "spread"] = "keep"
    seed: Count | None = None


class PPOSettings(SettingsModel):
    """The hyperparameters of the PPO loss, validated when set.

    Raises:
        ConfigError: a value is out of its range.
    """

    clip_param: ScheduledPositive = 0.3
    """The probability ratio is clipped to `1 +- clip_param`; a number, or a schedule as for `lr`."""
    vf_clip_param: PositiveOrInfinite = 10.0
    """Upper bound of a row's squared value error; `inf` for none."""
    vf_loss_coeff: Coefficient = 1.0
    """Weight of the value loss."""
    entropy_coeff: ScheduledCoefficient = 0.0
    """Weight of the entropy bonus; a number, or a schedule as for `lr`."""
    use_kl_loss: Switch = True
    """True if the KL divergence from the acting policy is part of the loss."""
    kl_coeff: Coefficient = 0.2
    """First weight of the KL term; the learner adapts it."""
    kl_target: PositiveNumber = 0.01
    """KL divergence that the adaptation aims at."""
    target_kl: PositiveNumber | None = None
    """An update ends early when the approximate KL divergence of a minibatch exceeds 1.5 times this; None: never."""
    standardize_advantages: Annotated[Literal[True, False, "batch", "minibatch"], BeforeValidator(python_scalar)] = True
    """Where advantages get mean 0 and standard deviation 1: in each train batch ("batch" or True), in each minibatch,
    or nowhere (False)."""
