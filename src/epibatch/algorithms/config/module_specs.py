"""The networks of a config, and the columns of other steps that they need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import CheckpointError, ConfigError, error_context, nearest
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.module_facts import is_stateful, model_option, sequence_settings
from epibatch.core.settings import ErrorList

from ...connectors.views.view import View, as_views
from ..policy_spec import PolicySpec, settings_of

if TYPE_CHECKING:
    from ..algorithm_config import AlgorithmConfig

_SPACES = ("observation_space", "action_space")


def complete_spec(config: AlgorithmConfig, spec: Any, spaces: Iterable[Any], model_config: Any) -> Any:
    """A copy of a module's spec with all that it leaves open: spaces, and the class of the algorithm's default network.

    Args:
        config: The algorithm's.
        spec: The RLModuleSpec.
        spaces: The env-to-module pipeline's output observation space and the action space, for those it lacks.
        model_config: The settings of the network.
    """
    from epibatch.core.rl_module.rl_module import default_module_spec

    filled = dataclasses.replace(spec, model_config=model_config)
    for name, space in zip(_SPACES, spaces):
        if getattr(filled, name) is None:
            setattr(filled, name, space)
    if filled.module_class is None:
        default = config.get_default_rl_module_spec()
        filled.module_class = default.module_class
        given, options = settings_of(model_config), settings_of(default.model_config)
        if options and isinstance(given, Mapping):
            model_config = filled.model_config = {**options, **given}
    if filled.module_class is None:
        own_spaces = filled.observation_space, filled.action_space
        filled.module_class = default_module_spec(*own_spaces, model_config, config.heads).module_class
    return filled


def _first(space: Any, other: Any) -> Any:
    return other if space is None else space


def multi_module_spec(config: AlgorithmConfig, spaces: Mapping[str, tuple[Any, Any]], inference_only: bool) -> Any:
    """The spec of several modules, with all that is left open filled in.

    Args:
        config: The algorithm's; settings of a policy and of a spec go before its `model_config`.
        spaces: Module id -> observation and action space, for modules that have none of their own.
        inference_only: For acting only: without modules that only learners need.

    Raises:
        ConfigError: modules without spaces.
    """
    from epibatch.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec

    given, policies = config.rl_module_spec, config.policies
    user_specs = getattr(given, "rl_module_specs", None)
    common = RLModuleSpec() if given is None or user_specs is not None else given
    errors, parts = ErrorList(), {}
    for key in {**policies, **(user_specs or {})}:
        policy = policies.get(key, PolicySpec())
        spec = (user_specs or {}).get(key) or policy.rl_module_spec or common
        if inference_only and spec.learner_only:
            continue
        own = [_first(getattr(policy, name), space) for name, space in zip(_SPACES, spaces.get(key, (None, None)))]
        for name, space in zip(_SPACES, own):
            if space is None and getattr(spec, name) is None:
                text = "missing: no agent is mapped to this module whose space it could have"
                errors.add(f"multi_agent.policies.{key}.{name}", text)
        settings = {**config.model_config, **policy.model_config, **settings_of(spec.model_config)}
        parts[key] = spec, own, settings
    errors.raise_if_any("modules")
    specs = {}
    for key, (spec, own, settings) in parts.items():
        with error_context(f"module {key!r}:"):
            specs[key] = complete_spec(config, spec, own, settings)
        if key not in (user_specs or {}):
            specs[key].inference_only = inference_only
    if user_specs is not None:
        return dataclasses.replace(given, rl_module_specs=specs, inference_only=inference_only)
    return MultiRLModuleSpec(rl_module_specs=specs, inference_only=inference_only)


def check_model_config(
    model_config: Mapping[str, Any], errors: ErrorList, path: str = "rl_module.model_config"
) -> None:
    """Note unknown settings of the default network, and values that it cannot use."""
    names = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for key in model_config:
        if key not in names:
            errors.add(f"{path}.{key}", f"unknown setting; {nearest(str(key), names)}")
    try:
        DefaultModelConfig.from_dict({key: value for key, value in model_config.items() if key in names})
    except ConfigError as error:
        errors.add(path, str(error))


def burns_in(model_configs: Iterable[Any]) -> bool:
    """True if one of several model_configs (or None) has steps to burn in.

    Examples:
        >>> burns_in([None, {"max_seq_len": 20}]), burns_in([{"max_seq_len": 20, "burn_in": 5}])
        (False, True)
    """
    found = map(settings_of, model_configs)
    return any(value.get("burn_in") if isinstance(value, Mapping) else getattr(value, "burn_in", 0) for value in found)


def check_module(module: Any, normalize_actions: bool) -> None:
    """Check what can be known of a module before it is used.

    Args:
        module: The module.
        normalize_actions: Whether its actions are stretched from [-1, 1] to the bounds of the environment's.

    Raises:
        ConfigError: it is recurrent, and neither its model_config nor its class says `max_seq_len`, or its
            `sequence_end` and `burn_in` do not fit; or it squashes
            its actions into [-1, 1], and nothing stretches them.
    """
    if is_stateful(module):
        sequence_settings(module)
    options = module.model_config
    if not normalize_actions and hasattr(options, "get") and options.get("squash_actions", False):
        raise ConfigError(
            "rl_module.model_config.squash_actions",
            expected="environment.normalize_actions: true, which stretches [-1, 1] to the bounds of the actions",
            found="false",
            do="leave normalize_actions at true, or squash_actions out",
        )


def check_sequence_settings(modules: Iterable[Any]) -> None:
    """Refuse settings about sequences where no train batch has any.

    Args:
        modules: All modules of an algorithm.

    Raises:
        ConfigError: a `sequence_end` or `burn_in`, and no module is recurrent.
    """
    from epibatch.core.rl_module.rl_module import RLModule

    every = list(modules)
    if any(map(is_stateful, every)):
        return
    for module in every:
        for name, default in (("sequence_end", "pad"), ("burn_in", 0)):
            value = model_option(module, name)
            if value not in (None, default):
                is_custom = not type(module).__module__.startswith(RLModule.__module__.rpartition(".")[0])
                do = "write get_initial_state in its class" if is_custom else 'add "use_lstm": True'
                raise ConfigError(
                    f"rl_module.model_config.{name}",
                    expected="a recurrent module, whose train batches consist of sequences",
                    found=f"{value!r} with {type(module).__name__}, which has no state",
                    do=f"{do}, or leave {name} out",
                )


# --------------------------------------------------------------------------------------------- views


def module_views(config: Any) -> tuple[dict[str, View], dict[str, dict[str, View]]]:
    """The views that pipelines are to have, of all modules and of single ones.

    Args:
        config: An `AlgorithmConfig`: its `view_requirements`, and those of its modules' classes.

    Raises:
        ConfigError: the config and a module mean different things by one name, or a view cannot be meant.
    """
    common, user_spec = dict(config.view_requirements), config.rl_module_spec
    if not config.is_multi_agent:
        settings = settings_of(getattr(user_spec, "model_config", None)) or config.model_config
        return _merge_views(common, _declared_views(config, user_spec, settings), "the module"), {}
    specs, per_module = getattr(user_spec, "rl_module_specs", None) or {}, {}
    for module_id in {**config.policies, **specs}:
        policy = config.policies.get(module_id, PolicySpec())
        spec = specs.get(module_id) or policy.rl_module_spec or (None if specs else user_spec)
        settings = {**config.model_config, **policy.model_config}
        settings.update(settings_of(getattr(spec, "model_config", None)))
        views = _declared_views(config, spec, settings)
        _merge_views(common, views, f"module {module_id!r}")
        views = {name: view for name, view in views.items() if name not in common}
        if views:
            per_module[module_id] = views
    return common, per_module


def _declared_views(config: AlgorithmConfig, spec: Any, settings: Mapping[str, Any]) -> dict[str, View]:
    """The views that the class of a spec's module declares."""
    cls: Any = getattr(spec, "module_class", None) or config.get_default_rl_module_spec().module_class
    if cls is None and (settings.get("use_prev_action") or settings.get("use_prev_reward")):
        from epibatch.core.rl_module.default_modules import DefaultRecurrentActorCritic

        cls = DefaultRecurrentActorCritic
    declare = getattr(cls, "get_view_requirements", None) if isinstance(cls, type) else None
    return {} if declare is None else as_views(declare(settings), f"{cls.__name__}.view_requirements")


def _merge_views(common: Mapping[str, View], views: Mapping[str, View], where: str) -> dict[str, View]:
    for name in common:
        if name in views and views[name] != common[name]:
            raise ConfigError(
                f"rl_module.view_requirements[{name!r}]",
                expected=f"what {where} declares under this name: {views[name]}",
                found=str(common[name]),
                do="give one of them another name",
            )
    return {**common, **views}


def config_with_views(
    config: AlgorithmConfig, own: Mapping[str, View], added: Mapping[str, View], where: str
) -> AlgorithmConfig:
    """A copy of a config with its own views and those that an algorithm was given while it ran.

    Raises:
        CheckpointError: the config means something else by the name of an added view.
    """
    for name, view in added.items():
        if own.get(name, view) != view:
            raise CheckpointError(
                f"{where}, view {name!r}",
                expected=f"a config without it, or with the one that was added: {view}",
                found=str(own[name]),
                do="give the config's view another name, or leave it out",
            )
    return config.copy().change("add_view", {"rl_module": {"view_requirements": {**own, **added}}})
