"""What the sections of a config say together about several agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError, nearest

from .agent_mapping import AgentMapping
from .evaluation_config import note_overrides
from .module_specs import check_model_config
from .policy_spec import PolicySpec

if TYPE_CHECKING:
    from .settings import Problems

__all__ = [
    "check_agents",
    "mapping_of",
    "module_spaces",
    "note_module_settings",
    "note_policies",
    "overrides_by_module",
    "policies_of_sections",
    "specs_by_module",
]

COMMON_SETTINGS = {"train_batch_size": "all modules learn from one sample"}
"""Settings of the training that no module has of its own -> why."""


def specs_by_module(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Module id -> RLModuleSpec, of a `MultiRLModuleSpec`; nothing for another spec."""
    return dict(getattr(sections["rl_module"].rl_module_spec, "rl_module_specs", None) or {})


def policies_of_sections(sections: Mapping[str, Any]) -> dict[str, PolicySpec]:
    """Module id -> what is different about it; the default policy alone if there is one agent.

    Without `policies` the modules are those of the table and of the MultiRLModuleSpec.
    """
    settings = sections["multi_agent"]
    if settings.policies is not None:
        return dict(settings.policies)
    mapping = settings.policy_mapping_fn
    if mapping is None:
        return {DEFAULT_MODULE_ID: PolicySpec()}
    named = mapping.modules if isinstance(mapping, AgentMapping) else []
    return {each: PolicySpec() for each in dict.fromkeys([*named, *specs_by_module(sections)])}


def mapping_of(sections: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The mapping function; of a single module, the table that gives it to all agents."""
    mapping: Callable[..., Any] | None = sections["multi_agent"].policy_mapping_fn
    policies = policies_of_sections(sections)
    return AgentMapping({"*": next(iter(policies))}) if mapping is None and len(policies) == 1 else mapping


def module_spaces(sections: Mapping[str, Any]) -> dict[str, PolicySpec]:
    """Module id -> the spaces that it was given; those of its RLModuleSpec count before those of its policy."""
    policies, specs = policies_of_sections(sections), specs_by_module(sections)
    spaces = {}
    for each in {**policies, **specs}:
        policy = policies.get(each, PolicySpec())
        sources = (specs.get(each), policy.rl_module_spec, policy)
        spaces[each] = PolicySpec(
            observation_space=_first(sources, "observation_space"), action_space=_first(sources, "action_space")
        )
    return spaces


def _first(sources: Iterable[Any], name: str) -> Any:
    values = (getattr(source, name, None) for source in sources)
    return next((value for value in values if value is not None), None)


def overrides_by_module(sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Module id -> settings of its own, of modules that have some."""
    policies = policies_of_sections(sections)
    overrides = {each: dict(spec.config) for each, spec in policies.items() if spec.config}
    for each, own in sections["multi_agent"].algorithm_config_overrides_per_module.items():
        overrides[each] = {**overrides.get(each, {}), **own}
    return overrides


# ------------------------------------------------------------------------------------------ checking


def note_policies(sections: Mapping[str, Any], problems: Problems) -> None:
    """Note ids that no module has, what is missing, and settings that the default network does not have."""
    settings = sections["multi_agent"]
    known = list(dict.fromkeys([*policies_of_sections(sections), *specs_by_module(sections)]))
    if not known:
        problems.add("multi_agent.policies", "missing: list the modules that policy_mapping_fn gives")
        return
    if settings.policies is not None and settings.policy_mapping_fn is None and len(known) > 1:
        problems.add(
            "multi_agent.policy_mapping_fn",
            f"missing: say which agents {', '.join(known)} decide for, by a function or a table",
        )
    for each, spec in (settings.policies or {}).items():
        if spec.rl_module_spec is None and sections["rl_module"].rl_module_spec is None:
            check_model_config(spec.model_config, problems, f"multi_agent.policies.{each}.model_config")
    mapping = settings.policy_mapping_fn
    named: list[tuple[str, Iterable[str]]] = [
        ("policies_to_train", settings.policies_to_train if isinstance(settings.policies_to_train, list) else ()),
        ("algorithm_config_overrides_per_module", settings.algorithm_config_overrides_per_module),
    ]
    if isinstance(mapping, AgentMapping):
        named.append(("policy_mapping_fn", mapping.modules))
    for name, modules in named:
        for each in modules:
            if each not in known:
                problems.add(f"multi_agent.{name}", f"no module {each!r}; {nearest(each, known)}")


def note_module_settings(settings: Any, config: Any, problems: Problems) -> None:
    """Note settings of single modules that do not exist, that no module has of its own, or that do not fit.

    Args:
        settings: the section.
        config: the config, or its class.
        problems: where to note them.
    """
    path = "multi_agent.algorithm_config_overrides_per_module"
    own = {f"{path}.{each}": given for each, given in settings.algorithm_config_overrides_per_module.items()}
    for each, spec in (settings.policies or {}).items():
        own[f"multi_agent.policies.{each}.config"] = spec.config
    for path, given in own.items():
        for name in COMMON_SETTINGS:
            if name in given:
                problems.add(f"{path}.{name}", f"no setting of single modules: {COMMON_SETTINGS[name]}")
        single = {name: value for name, value in given.items() if name not in COMMON_SETTINGS}
        note_overrides(single, config, problems, path=path, sections=("training",))


def check_agents(mapping: Any, agents: Iterable[Any], modules: Iterable[str]) -> None:
    """Check that every agent has a module.

    Args:
        mapping: the mapping function; one that answers only for an episode is not checked.
        agents: all agents there can be.
        modules: ids of the modules.

    Raises:
        ConfigError: no entry of the table fits an agent, the function takes other arguments, or gives what is
            no module.
    """
    wanted, known = list(agents), list(modules)
    if isinstance(mapping, AgentMapping):
        unmatched = mapping.unmatched(wanted)
        if unmatched:
            raise ConfigError(
                "multi_agent.policy_mapping_fn",
                expected=f"a module for each of the agents {_listed(wanted)}",
                found=f"no entry that fits {_listed(unmatched)} among {', '.join(mapping.table)}",
                do=f'add entries for them, or "*": {mapping.modules[-1]} for all others',
            )
        return
    if mapping is not None:
        _check_arguments(mapping)
    wrong = {}
    for agent in wanted if mapping is not None else ():
        try:
            module = mapping(agent, None)
        except Exception:  # it needs an episode, which may be what it decides by
            return
        if module not in known:
            wrong[agent] = module
    if wrong:
        given = ", ".join(f"{module!r} for agent {agent!r}" for agent, module in wrong.items())
        raise ConfigError(
            "multi_agent.policy_mapping_fn",
            expected=f"one of the modules {', '.join(known)}",
            found=given,
            do=nearest(str(next(iter(wrong.values()))), known),
        )


def _check_arguments(mapping: Any) -> None:
    try:
        signature = inspect.signature(mapping)
    except (TypeError, ValueError):  # what is built in need not have one
        return
    try:
        signature.bind("agent", None)
    except TypeError as error:
        raise ConfigError(
            "multi_agent.policy_mapping_fn",
            expected="a function that is called as policy_mapping_fn(agent_id, episode)",
            found=f"one of {signature}: {error}",
            do="write it as `def policy_mapping_fn(agent_id, episode, **kwargs):`",
        ) from error


def _listed(agents: Iterable[Any]) -> str:
    shown = [repr(agent) for agent in agents]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
