"""Which columns of other steps a config's modules ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import CheckpointError, ConfigError, UnknownNameError, nearest

from ..connectors.views.view import View, as_views
from .policy_spec import PolicySpec, settings_of

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .algorithm_config import AlgorithmConfig

__all__ = ["added_view", "config_with_views", "module_views", "removed_view", "set_added_views"]


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
        from epibatch.core.rl_module.default_lstm_actor_critic import DefaultLSTMActorCritic

        cls = DefaultLSTMActorCritic
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


def added_view(algorithm: Algorithm, name: str, view: Any) -> None:
    """See `Algorithm.add_view`."""
    where = f"{type(algorithm).__name__}.add_view"
    views = as_views({name: view}, where)
    common, per_module = module_views(algorithm.config)
    if name == "obs" or any(name in own for own in (common, *per_module.values())):
        found = f"{name!r}, which {'shapes the module' if name == 'obs' else 'the modules have already'}"
        do = "choose another name; the config takes views of 'obs': .rl_module(view_requirements=...)"
        raise ConfigError(where, expected="a new name", found=found, do=do)
    kept = algorithm.env_runner._lookback()
    set_added_views(algorithm, {**algorithm.added_views, **views}, where)
    if views[name].lookback > kept:
        algorithm.env_runner.checkpoint_reset()


def removed_view(algorithm: Algorithm, name: str) -> None:
    """See `Algorithm.remove_view`."""
    where, added = f"{type(algorithm).__name__}.remove_view", dict(algorithm.added_views)
    if name not in added:
        do = f"{nearest(str(name), added)}; views of the config and its modules stay"
        raise UnknownNameError(where, expected="a view that add_view gave", found=repr(name), do=do)
    del added[name]
    set_added_views(algorithm, added, where)


def set_added_views(algorithm: Algorithm, data: Mapping[str, Any], where: str) -> None:
    """Let config and pipelines have these views beside the config's own; they stay as before if they cannot.

    Args:
        algorithm: The algorithm.
        data: Name -> view, or its arguments.
        where: The caller, for messages.

    Raises:
        CheckpointError: the config means something else by one of these names.
        ConfigError: it has not the pieces that give views to modules, or views cannot be meant.
    """
    config, added = algorithm.config, as_views(dict(data), where)
    own = {name: view for name, view in config.view_requirements.items() if name not in algorithm.added_views}
    planned = config_with_views(config, own, added, where)
    if planned.view_requirements != config.view_requirements:
        if not config.add_default_connectors_to_env_to_module_pipeline:
            do = "use epibatch.connectors.views.add_view with each of algo.pipelines"
            raise ConfigError(where, expected="the default pieces", found="none of them", do=do)
        planned.validate()
        module_views(planned)
        config.change("add_view", {"rl_module": {"view_requirements": planned.view_requirements}})
        for each in ("env_to_module", "learner"):
            config.update_views(algorithm.pipelines[each])
        algorithm._modules_changed()
        algorithm._share_lookback()
    algorithm.added_views = added


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
