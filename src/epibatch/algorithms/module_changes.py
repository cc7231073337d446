"""Adding modules to a running algorithm, and removing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import ConfigError, EpibatchError, UnknownNameError, nearest

from .pipelines import check_same_pieces
from .policy_spec import PolicySpec, settings_of

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .algorithm_config import AlgorithmConfig

__all__ = ["ModuleChange", "added", "removed"]


class ModuleChange:
    """A change of which modules there are, checked as a whole before anything is changed.

    Args:
        algorithm: what is changed.
        method: the method that changes it, for messages.
        settings: new settings of the section `multi_agent`.
        others: new settings of other sections.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        method: str,
        settings: Mapping[str, Any],
        others: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._algorithm, self._method = algorithm, method
        self._settings, self._others = dict(settings), dict(others or {})
        self.config: AlgorithmConfig = self._planned()
        runner = algorithm.env_runner
        self.pipeline = self.config.build_env_to_module_connector(env=runner.env, spaces=runner.get_spaces())
        check_same_pieces(
            {"env_to_module": self.pipeline}, {"env_to_module": runner.pipelines["env_to_module"]}, self._where
        )

    @property
    def _where(self) -> str:
        return f"{type(self._algorithm).__name__}.{self._method}"

    def _planned(self) -> Any:
        planned = self._algorithm.config.copy().change(self._method, self._parts())
        planned.validate()
        return planned

    def _parts(self) -> dict[str, Mapping[str, Any]]:
        return {"multi_agent": self._settings, **self._others}

    def spaces_of(self, module_id: str) -> tuple[Any, Any] | None:
        """What a module sees and decides on, as follows from its agents'; None if nothing follows."""
        spaces = (self.pipeline.observation_space, self.pipeline.action_space)
        own = [getattr(space, "spaces", {}).get(module_id) for space in spaces]
        return None if None in own else (own[0], own[1])

    def describe(self, module_id: str, policy: PolicySpec) -> None:
        """Let the config say this of a module from now on."""
        self._settings["policies"] = {**self._settings["policies"], module_id: policy}

    def adopt(self, spaces: Mapping[str, Any]) -> None:
        """Take over the settings, and let all parts know of them; learner and module have changed.

        Args:
            spaces: module id -> its spaces, of modules that are new.
        """
        algorithm = self._algorithm
        algorithm.config.change(self._method, self._parts())
        known = algorithm.env_runner.get_spaces()
        for module_id in [each for each in known if not each.startswith("__") and each not in algorithm.learner.module]:
            del known[module_id]
        known.update(spaces)
        for name in ("env_to_module", "learner"):
            algorithm.config.update_modules(algorithm.pipelines[name])
        algorithm.env_runner.weights_updated()
        algorithm._modules_changed()


def added(
    algorithm: Algorithm,
    module_id: str,
    module_spec: Any,
    overrides: Mapping[str, Any] | None,
    mapping: Any,
    trained: Any,
) -> Any:
    """See `Algorithm.add_module`."""
    from epibatch.core.rl_module.rl_module import RLModule, RLModuleSpec

    config, learner = algorithm.config, algorithm.learner
    _check_new(algorithm, module_id)
    spec = RLModuleSpec.from_module(module_spec) if isinstance(module_spec, RLModule) else module_spec
    policy = PolicySpec(config=overrides or {}, rl_module_spec=spec)
    settings = _changed(config, {**config.policies, module_id: policy}, mapping, trained)
    change = ModuleChange(algorithm, "add_module", settings)
    derived = change.spaces_of(module_id)
    runner = algorithm.env_runner
    spaces = {**runner.get_spaces(), **({} if derived is None else {module_id: derived})}
    spec = change.config.get_multi_rl_module_spec(env=runner.env, spaces=spaces)[module_id]
    module = module_spec if isinstance(module_spec, RLModule) else spec.build()
    algorithm._check(module_id, module, change.config)
    result = learner.add_module(
        module_id,
        module,
        config_overrides=algorithm.learner_overrides(policy.config),
        new_should_module_be_updated=None if trained is None else change.config.policies_to_train,
    )
    if _is_default(spec, module):
        change.describe(module_id, _as_settings(spec, policy, derived or (None, None)))
    change.adopt({module_id: (spec.observation_space, spec.action_space)})
    return result


def _check_new(algorithm: Algorithm, module_id: Any) -> None:
    where = f"{type(algorithm).__name__}.add_module"
    if not algorithm.config.is_multi_agent:
        raise ConfigError(
            where,
            expected="an algorithm of several agents",
            found="one agent",
            do="build it from a config with .multi_agent(policies=[...]), if only of one module",
        )
    taken = module_id in algorithm.learner.module
    if not isinstance(module_id, str) or not module_id or taken:
        found = f"{module_id!r}, which is taken" if taken else repr(module_id)
        raise ConfigError(where, expected="an id that is free", found=found, do="choose another one")


def _as_settings(spec: Any, policy: PolicySpec, derived: tuple[Any, Any]) -> PolicySpec:
    """A default network's policy without code: its settings, and spaces that do not follow from its agents'."""
    names = ("observation_space", "action_space")
    own = {name: getattr(spec, name) for name, space in zip(names, derived) if getattr(spec, name) != space}
    return PolicySpec(config=policy.config, model_config=settings_of(spec.model_config), **own)


def removed(algorithm: Algorithm, module_id: str, mapping: Any, trained: Any) -> Any:
    """See `Algorithm.remove_module`."""
    config, learner = algorithm.config, algorithm.learner
    policies = {each: policy for each, policy in config.policies.items() if each != module_id}
    if module_id not in learner.module or not policies:
        alone = module_id in learner.module
        raise UnknownNameError(
            f"{type(algorithm).__name__}.remove_module",
            expected="the id of one of several modules",
            found=f"{module_id!r}, the only one" if alone else repr(module_id),
            do="keep it" if alone else nearest(str(module_id), learner.module),
        )
    settings = _changed(config, policies, mapping, trained)
    rule, overrides = settings.get("policies_to_train"), config.algorithm_config_overrides_per_module
    if isinstance(rule, list):
        settings["policies_to_train"] = [each for each in rule if each != module_id or trained is not None]
    settings["algorithm_config_overrides_per_module"] = {
        each: own for each, own in overrides.items() if each != module_id
    }
    change = ModuleChange(algorithm, "remove_module", settings, _without_spec(config, module_id))
    result = learner.remove_module(
        module_id, new_should_module_be_updated=None if trained is None else change.config.policies_to_train
    )
    change.adopt({})
    algorithm.env_runner.checkpoint_reset()
    return result


def _without_spec(config: AlgorithmConfig, module_id: str) -> dict[str, Mapping[str, Any]]:
    """The section `rl_module` without a module's spec, if it has one."""
    given = config.rl_module_spec
    specs = getattr(given, "rl_module_specs", {})
    if module_id not in specs:
        return {}
    left = {each: spec for each, spec in specs.items() if each != module_id}
    return {"rl_module": {"rl_module_spec": dataclasses.replace(given, rl_module_specs=left)}}


def _changed(config: AlgorithmConfig, policies: Mapping[str, PolicySpec], mapping: Any, trained: Any) -> dict[str, Any]:
    """The section `multi_agent` with other policies, and what else is given."""
    return {
        "policies": dict(policies),
        "policy_mapping_fn": config.policy_mapping_fn if mapping is None else mapping,
        "policies_to_train": config.policies_to_train if trained is None else trained,
    }


def _is_default(spec: Any, module: Any) -> bool:
    """Whether a module is the one that a config makes of the settings alone."""
    from epibatch.core.rl_module.rl_module import default_module_spec

    try:
        default = default_module_spec(spec.observation_space, spec.action_space, spec.model_config)
    except EpibatchError:
        return False
    return default.module_class is type(module)
