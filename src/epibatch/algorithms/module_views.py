"""Columns of other steps that a config's modules need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import CheckpointError, ConfigError

from ..connectors.views.view import View, as_views
from .policy_spec import PolicySpec, settings_of

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

__all__ = ["config_with_views", "module_views"]


def module_views(config: Any) -> tuple[dict[str, View], dict[str, dict[str, View]]]:
    """The views that pipelines are to have, of all modules and of single ones.

    Args:
        config: an `AlgorithmConfig`: its `view_requirements`, and those of its modules' classes.

    Raises:
        ConfigError: the config and a module mean different things by one name, or a view cannot be meant.
    """
    common, given = dict(config.view_requirements), config.rl_module_spec
    if not config.is_multi_agent:
        settings = settings_of(getattr(given, "model_config", None)) or config.model_config
        return _together(common, _declared(given, settings), "the module"), {}
    specs, per_module = getattr(given, "rl_module_specs", None) or {}, {}
    for module_id in {**config.policies, **specs}:
        policy = config.policies.get(module_id, PolicySpec())
        spec = specs.get(module_id) or policy.rl_module_spec or (None if specs else given)
        settings = {**config.model_config, **policy.model_config}
        settings.update(settings_of(getattr(spec, "model_config", None)))
        own = _declared(spec, settings)
        _together(common, own, f"module {module_id!r}")
        own = {name: view for name, view in own.items() if name not in common}
        if own:
            per_module[module_id] = own
    return common, per_module


def _declared(spec: Any, settings: Mapping[str, Any]) -> dict[str, View]:
    """The views that the class of a spec's module declares."""
    cls: Any = getattr(spec, "module_class", None)
    if cls is None and (settings.get("use_prev_action") or settings.get("use_prev_reward")):
        from epibatch.core.rl_module.default_modules import DefaultRecurrentActorCritic

        cls = DefaultRecurrentActorCritic
    declare = getattr(cls, "get_view_requirements", None)
    return {} if declare is None else as_views(declare(settings), f"{cls.__name__}.view_requirements")


def _together(common: Mapping[str, View], own: Mapping[str, View], where: str) -> dict[str, View]:
    for name in common:
        if name in own and own[name] != common[name]:
            raise ConfigError(
                f"rl_module.view_requirements[{name!r}]",
                expected=f"what {where} declares under this name: {own[name]}",
                found=str(common[name]),
                do="give one of them another name",
            )
    return {**common, **own}


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
