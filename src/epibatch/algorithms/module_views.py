"""Which columns of other steps a config's modules ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import CheckpointError, ConfigError, UnknownNameError, nearest

from .policy_spec import PolicySpec, settings_of

if TYPE_CHECKING:
    from ..connectors.views.view import View
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
    from ..connectors.views.view import as_views

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
    from ..connectors.views.view import as_views

    where, config = f"{type(algorithm).__name__}.add_view", algorithm.config
    views = as_views({name: view}, where)
    common, per_module = module_views(config)
    if name in common or any(name in own for own in per_module.values()):
        found = f"{name!r}, which the modules have already"
        raise ConfigError(where, expected="a new name", found=found, do="choose another one")
    if name == "obs":
        do = "give it to the config, .rl_module(view_requirements=...), before the module is built"
        raise ConfigError(where, expected="a new column", found="'obs', which shapes the module", do=do)
    _check_default_pieces(config, where)
    kept = algorithm.env_runner._lookback()
    _declare(algorithm, {**config.view_requirements, **views})
    algorithm._added_views = {**algorithm._added_views, **views}
    if views[name].lookback > kept:
        algorithm.env_runner.checkpoint_reset()


def removed_view(algorithm: Algorithm, name: str) -> None:
    """See `Algorithm.remove_view`."""
    added, views = dict(algorithm._added_views), dict(algorithm.config.view_requirements)
    if name not in added:
        own = name in views or any(name in own for own in module_views(algorithm.config)[1].values())
        raise UnknownNameError(
            f"{type(algorithm).__name__}.remove_view",
            expected="a view that add_view gave",
            found=f"{name!r}, which the config or its modules declare" if own else repr(name),
            do="build an algorithm with another config" if own else nearest(str(name), added),
        )
    del added[name], views[name]
    _declare(algorithm, views)
    algorithm._added_views = added


def set_added_views(algorithm: Algorithm, data: Mapping[str, Any]) -> None:
    """Let an algorithm have the views that another one was given while it ran, and no others beside its config's own.

    Args:
        algorithm: The algorithm, which starts new episodes afterwards.
        data: Name -> arguments of the view.

    Raises:
        CheckpointError: its config means something else by one of these names.
        ConfigError: it has not the pieces that give views to modules, or views cannot be meant; nothing was changed.
    """
    where, config = f"{type(algorithm).__name__}.set_state", algorithm.config
    own = {name: view for name, view in config.view_requirements.items() if name not in algorithm._added_views}
    wanted, views = _joined(own, data, where)
    if views != config.view_requirements:
        _check_default_pieces(config, where)
        _declare(algorithm, views)
    algorithm._added_views = wanted


def config_with_views(config: AlgorithmConfig, data: Mapping[str, Any], where: str) -> AlgorithmConfig:
    """A config that has the views as well that an algorithm was given while it ran.

    Args:
        config: The config.
        data: Name -> arguments of the view.
        where: What asks for it.

    Raises:
        CheckpointError: the config means something else by one of these names.
    """
    _, views = _joined(config.view_requirements, data, where)
    return config.copy().change("add_view", {"rl_module": {"view_requirements": views}}) if data else config


def _joined(own: Mapping[str, View], data: Mapping[str, Any], where: str) -> tuple[dict[str, View], dict[str, View]]:
    """The views that were added, and those of a config together with them."""
    from ..connectors.views.view import as_views

    wanted = as_views(dict(data), f"{where}, added views")
    for name, view in wanted.items():
        if own.get(name, view) != view:
            raise CheckpointError(
                f"{where}, view {name!r}",
                expected=f"a config without it, or with the one that was added: {view}",
                found=str(own[name]),
                do="give the config's view another name, or leave it out",
            )
    return wanted, {**own, **wanted}


def _check_default_pieces(config: AlgorithmConfig, where: str) -> None:
    if not config.add_default_connectors_to_env_to_module_pipeline:
        do = "use epibatch.connectors.views.add_view with each of algo.pipelines"
        raise ConfigError(where, expected="the default pieces", found="none of them", do=do)


def _declare(algorithm: Algorithm, views: Mapping[str, View]) -> None:
    """Let config and pipelines have these views of all modules; they stay as they were if they cannot."""
    config = algorithm.config
    planned = config.copy().change("add_view", {"rl_module": {"view_requirements": dict(views)}})
    planned.validate()
    module_views(planned)
    config.change("add_view", {"rl_module": {"view_requirements": planned.view_requirements}})
    for each in ("env_to_module", "learner"):
        config.update_views(algorithm.pipelines[each])
    algorithm._modules_changed()
    algorithm._share_lookback()
