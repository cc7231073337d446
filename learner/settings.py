"""Settings of a learner, of its loss and of single modules; configs have the same models in their training section."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BeforeValidator, ConfigDict, PlainValidator, ValidationInfo, WithJsonSchema
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from epibatch.core.errors import ConfigError, UnknownNameError, add_context, nearest
from epibatch.core.imports import load_object
from epibatch.core.plain import python_scalar
from epibatch.core.settings import (
    Coefficient,
    Count,
    Expected,
    Positive,
    PositiveNumber,
    PositiveOrInfinite,
    ScheduledCoefficient,
    ScheduledPositive,
    SettingsModel,
    Switch,
    brief,
    check_import,
    expect,
    raise_problems,
    reported,
)

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
    if not isinstance(value, Mapping):
        return value
    keywords = [str(key) for key in value if key != "optimizer"]
    if keywords:
        kind = load_object(OPTIMIZERS.get(chosen, chosen), "optimizer") if isinstance(chosen, str) else chosen
        signature = _signature(kind)
        parameters = {} if signature is None else signature.parameters
        if parameters and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            known = parameters.keys() - {"params", "lr"}
            text = "the optimizer takes no such keyword; "
            raise_problems(((key,), text + nearest(key, known)) for key in keywords if key not in known)
    return dict(value)


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature of a function or class; what is built in need not have one."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def loss_problem(loss: Any) -> tuple[str, str] | None:
    """Say what a loss has to be, and what it is; None if it fits, or does not say what it takes.

    Examples:
        >>> loss_problem(lambda batch, outputs: outputs["loss"])[1]
        '(batch, outputs): too many positional arguments'
    """
    is_class, is_loss = isinstance(loss, type), hasattr(loss, "initial_coefficients")
    kind = loss if is_class else type(loss)
    if hasattr(kind, "make_own") and not any("__call__" in vars(base) for base in kind.__mro__):
        return None  # an update rule with losses of its own, or a class of one
    if not callable(loss) or (is_class and not is_loss):
        function = "a function (batch, outputs, distribution_class) -> (loss, metrics)"
        return f"a Loss, a class of one, {function}, or the import path of these", brief(loss)
    names = ["batch", "outputs", "distribution_class", *(["coefficients"] if is_loss else [])]
    call = inspect.getattr_static(kind, "__call__", None)
    is_bound = isinstance(call, (staticmethod, classmethod))
    signature = _signature(loss.__call__ if is_class or is_bound else loss)
    if signature is not None:
        try:
            signature.bind(*(["self"] if is_class and not is_bound else []), *names)
        except TypeError as error:
            name = getattr(loss, "__name__", type(loss).__name__)
            return f"{name}({', '.join(names)}) -> (loss, metrics)", f"{signature}: {error}"
    return None


class OptimizerSettings(SettingsModel):
    """Optimiser, gradient clipping and minibatches."""

    lr: ScheduledCoefficient = 5e-5
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
        lr: Learning rate, >= 0, or a schedule `[[0, value], [step, value], ...]` by environment steps learned from.
        optimizer: "adam" (Kingma and Ba 2015, arXiv:1412.6980), "adamw", "nadam", "radam", "rmsprop" or "sgd", a class
            `(parameters, lr=..., ...)`, or its import path `module:name`; a mapping `{"optimizer": one of these, ...}`
            has further keywords for it, such as `weight_decay` and `eps`.
        grad_clip: Bound of the gradients, > 0, or None for none.
        grad_clip_by: "global_norm" scales all gradients of a module by one factor, "norm" each
            parameter's gradient by its own, "value" clips every entry.
        num_epochs: Passes through each batch.
        minibatch_size: Timesteps per minibatch, None for the whole batch.
        shuffle: "epoch", "once" or None, see `Minibatches`.
        remainder: "keep", "drop" or "spread", see `Minibatches`.
        seed: Seed of the learner's own random generator, None for a random one.
        autocast: "bfloat16": `torch.autocast` computes losses and their forward passes partly in this type; weights,
            gradients and optimisers stay as they are.
        compile_backend: Backend of `torch.compile`, such as "inductor", for the losses and the modules in them; None:
            they are not compiled.
        compile_mode: Its mode, such as "reduce-overhead"; None: torch's default.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    shuffle: Literal["epoch", "once"] | None = "epoch"
    remainder: Literal["keep", "drop", "spread"] = "keep"
    seed: Count | None = None
    autocast: Literal["bfloat16"] | None = None
    compile_backend: str | None = None
    compile_mode: str | None = None

    @classmethod
    def _unknown(cls, detail: ErrorDetails) -> str | None:
        said, name = super()._unknown(detail), detail["loc"][-1]
        return f"{said}; PPOSettings has {name!r}" if said and name in PPOSettings.names() else said


class PPOSettings(SettingsModel):
    """The hyperparameters of the PPO loss, validated when set.

    Raises:
        ConfigError: a value is out of its range.
    """

    clip_param: ScheduledPositive = 0.3
    """The probability ratio is clipped to `1 +- clip_param`; a number, or a schedule as for `lr`."""
    vf_clip_param: PositiveOrInfinite = 10.0
    """Upper bound of a row's squared value error; `inf` for none."""
    use_clipped_value_loss: Switch = False
    """True: a row's value loss is the larger of two squared errors: with the new value, and with the new value limited
    to `clip_param` around `vf_preds`, the one recorded while acting or else before the update. `vf_clip_param` is then
    unused."""
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
    desired_kl: PositiveNumber | None = None
    """Divergence at which the learning rate is kept, which begins at `lr`: before each step it shrinks by a third, at
    least to 1e-5, if the minibatch's exceeds twice this, and grows by half, at most to 1e-2, if it is under half of
    this. None: no adaptation."""
    standardize_advantages: Annotated[Literal[True, False, "batch", "minibatch"], BeforeValidator(python_scalar)] = True
    """Where advantages get mean 0 and standard deviation 1: in each train batch ("batch" or True), in each minibatch,
    or nowhere (False)."""


PoliciesToTrain: TypeAlias = Collection[str] | Callable[[str, Any], bool] | None
"""Ids of modules, or `function(module_id, batch) -> bool`, or None for all."""


def _ids_or_function(rule: Any) -> Any:
    fits = rule is None or callable(rule) or (isinstance(rule, Collection) and not isinstance(rule, str))
    expect(fits, "module ids, a function (module_id, batch) -> bool, or None for all modules")
    return rule


def _multi_agent_error(name: str, expected: str, value: Any) -> ConfigError:
    names = ("overrides_per_module", "policies_to_train")
    if name not in names:
        return ConfigError("MultiAgentSettings", expected=" or ".join(names), found=name, do=nearest(name, names))
    do = 'write {"main": {"lr": 1e-4}}, for example'
    if name == "policies_to_train":
        do = f"write [{value!r}]" if isinstance(value, str) else "list the ids, or leave it out"
    return ConfigError(name, expected=expected, found=repr(value), do=do)


_Overrides = Annotated[Mapping[Any, Mapping[Any, Any]], Expected("a dict of settings for each module's id")]


@reported(_multi_agent_error)
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MultiAgentSettings:
    """The modules of a learner to update, and their own settings.

    Args:
        overrides_per_module: Module id -> settings of its own: fields of `LearnerSettings`, `loss`, and
            fields of the loss's settings, such as `{"lr": 1e-4, "minibatch_size": 64, "entropy_coeff": 0.01}`.
        policies_to_train: The ids of the modules to update; or a function of a module's id and the
            train batch `{module_id: {column: tensor}}` that returns True to update the module; None updates
            all. The others get no optimiser.

    Raises:
        ConfigError: one of them is of another form.

    Examples:
        >>> settings = MultiAgentSettings(policies_to_train=["main"])
        >>> settings.should_be_updated("main"), settings.should_be_updated("past")
        (True, False)
    """

    overrides_per_module: _Overrides = field(default_factory=dict)
    policies_to_train: Annotated[PoliciesToTrain, PlainValidator(_ids_or_function)] = None

    @property
    def known_ids(self) -> frozenset[str] | None:
        """The ids of the modules to update, if they are known without a batch."""
        rule = self.policies_to_train
        return None if rule is None or callable(rule) else frozenset(rule)

    def check_ids(self, known: Iterable[str]) -> None:
        """Check that every named module exists.

        Raises:
            UnknownNameError: one does not.
        """
        names = list(known)
        for where, named in (
            ("overrides_per_module", self.overrides_per_module),
            ("policies_to_train", sorted(self.known_ids or (), key=str)),
        ):
            for module_id in named:
                if module_id not in names:
                    raise UnknownNameError(
                        where,
                        expected="ids of modules that the learner holds",
                        found=repr(module_id),
                        do=nearest(str(module_id), map(str, names)),
                    )

    def should_be_updated(self, module_id: str, batch: Any = None) -> bool:
        """True if a module is updated by a batch.

        Raises:
            ConfigError: the function returned something other than True or False.
        """
        rule = self.policies_to_train
        if rule is None:
            return True
        if not callable(rule):
            return module_id in rule
        where = f"policies_to_train({module_id!r}, batch)"
        try:
            answer = rule(module_id, batch)
        except Exception as error:
            add_context(error, f"in {where}:")
            raise
        if not isinstance(answer, (bool, np.bool_)):
            raise ConfigError(
                where, expected="True or False", found=repr(answer), do="let the function return one of them"
            )
        return bool(answer)

    def with_module(self, module_id: str, overrides: Mapping[str, Any] | None) -> MultiAgentSettings:
        """Return these settings with overrides for one more module."""
        if overrides is None:
            return self
        return replace(self, overrides_per_module={**self.overrides_per_module, module_id: overrides})

    def without_module(self, module_id: str) -> MultiAgentSettings:
        """Return these settings without those of a module."""
        overrides = {key: changes for key, changes in self.overrides_per_module.items() if key != module_id}
        rule = self.policies_to_train
        if rule is not None and not callable(rule):
            rule = [key for key in rule if key != module_id]
        return MultiAgentSettings(overrides, rule)
