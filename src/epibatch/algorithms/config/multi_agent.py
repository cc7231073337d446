"""Several agents: which module decides for an agent, and what the modules of a config are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, final

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError, UnknownNameError, nearest
from epibatch.core.plain import key_text
from epibatch.core.settings import ErrorList

from ..policy_spec import PolicySpec
from .module_specs import check_model_config

if TYPE_CHECKING:
    from .settings import AlgorithmSettings

_WILD = frozenset("*?[")


@final
class AgentMapping:
    """A mapping function without code: the first entry that fits an agent names its module.

    Agents are compared as text, so the agent 3 fits the entry "3", and ("red", 0) the entry "('red', 0)". An entry with
    `*` (any text), `?` (any character) or `[abc]` (one of them) fits all agents of that form.

    Args:
        table: Agent, or pattern of agents -> module id; the order counts.

    Raises:
        ConfigError: the table is empty, an agent or module is no text, or an entry is never reached because one in
            front of it fits the same agents.

    Examples:
        >>> mapping = AgentMapping({"red_captain": "captain", "red_*": "red", "*": "blue"})
        >>> [mapping(agent) for agent in ("red_captain", "red_7", "green_1")]
        ['captain', 'red', 'blue']
    """

    def __init__(self, table: Mapping[Any, str]) -> None:
        problem = _problem_of(table)
        if problem:
            raise ConfigError(
                "AgentMapping",
                expected="agents, or patterns of agents, with their modules",
                found=problem,
                do='write {"red_*": "red", "*": "others"}, say',
            )
        self._table = {key_text(agent): str(module) for agent, module in table.items()}
        self._known: dict[str, str] = {}

    @property
    def table(self) -> dict[str, str]:
        """The entries, as text."""
        return dict(self._table)

    @property
    def modules(self) -> list[str]:
        """The modules, each once, in the order of the table."""
        return list(dict.fromkeys(self._table.values()))

    def unmatched(self, agents: Iterable[Any]) -> list[Any]:
        """The agents that no entry fits."""
        return [agent for agent in agents if self._module_of(key_text(agent)) is None]

    def __call__(self, agent_id: Any, episode: Any = None, **kwargs: Any) -> str:
        """The module of an agent.

        Args:
            agent_id: The agent.
            episode: Not looked at.
            **kwargs: Not looked at.

        Raises:
            UnknownNameError: no entry fits the agent.
        """
        name = key_text(agent_id)
        module = self._known.get(name) or self._module_of(name)
        if module is None:
            raise UnknownNameError(
                f"module of agent {agent_id!r}",
                expected=f"an agent that one of these fits: {', '.join(self._table)}",
                found="none that does",
                do=f'add an entry for it, or "*": {self.modules[-1]} for all others',
            )
        self._known[name] = module
        return module

    def _module_of(self, name: str) -> str | None:
        return next((module for entry, module in self._table.items() if _fits(entry, name)), None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AgentMapping):
            return NotImplemented
        return list(self._table.items()) == list(other._table.items())

    def __hash__(self) -> int:
        return hash(tuple(self._table.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return AgentMapping, (self._table,)

    def __repr__(self) -> str:
        return f"AgentMapping({self._table!r})"


def _fits(entry: str, name: str) -> bool:
    return entry == name or fnmatchcase(name, entry)


def _problem_of(table: Any) -> str | None:
    """Return the fault of a table, or None."""
    if not isinstance(table, Mapping):
        return f"{type(table).__name__} {table!r}"
    if not table:
        return "an empty table"
    seen: list[str] = []
    for agent, module in table.items():
        if isinstance(agent, bool) or not isinstance(agent, (str, int, np.integer, tuple)) or agent == "":
            return f"the agent {agent!r}, which is neither text, a number nor a tuple"
        if not isinstance(module, str) or not module:
            return f"the module {module!r} of {agent!r}, which is no text"
        name = key_text(agent)
        # A pattern after another may match more names; a plain name after a pattern that matches it is never reached.
        first = next((entry for entry in seen if entry == name or (not _WILD & set(name) and _fits(entry, name))), None)
        if first is None and "*" in seen:
            first = "*"
        if first is not None:
            return f"{name!r} after {first!r}, which fits it already: it is never reached"
        seen.append(name)
    return None


# ---------------------------------------------------------------------------- the modules of a config


def specs_by_module(settings: AlgorithmSettings) -> dict[str, Any]:
    """Module id -> RLModuleSpec, of a `MultiRLModuleSpec`; nothing for another spec."""
    return dict(getattr(settings.rl_module.rl_module_spec, "rl_module_specs", None) or {})


def policies_of_settings(settings: AlgorithmSettings) -> dict[str, PolicySpec]:
    """Module id -> what is different about it; the default policy alone if there is one agent.

    Without `policies` the modules are those of the table and of the MultiRLModuleSpec.
    """
    section: Any = settings.multi_agent
    if section.policies is not None:
        return dict(section.policies)
    mapping = section.policy_mapping_fn
    if mapping is None:
        return {DEFAULT_MODULE_ID: PolicySpec()}
    named = mapping.modules if isinstance(mapping, AgentMapping) else []
    return {module_id: PolicySpec() for module_id in dict.fromkeys([*named, *specs_by_module(settings)])}


def mapping_of(settings: AlgorithmSettings) -> Callable[..., Any] | None:
    """The mapping function; of a single module, the table that gives it to all agents."""
    mapping: Any = settings.multi_agent.policy_mapping_fn
    policies = policies_of_settings(settings)
    return AgentMapping({"*": next(iter(policies))}) if mapping is None and len(policies) == 1 else mapping


def module_spaces(settings: AlgorithmSettings) -> dict[str, PolicySpec]:
    """Module id -> the spaces that it was given; those of its RLModuleSpec count before those of its policy."""
    policies, specs = policies_of_settings(settings), specs_by_module(settings)
    spaces = {}
    for module_id in {**policies, **specs}:
        policy = policies.get(module_id, PolicySpec())
        sources = (specs.get(module_id), policy.rl_module_spec, policy)
        spaces[module_id] = PolicySpec(
            observation_space=_first(sources, "observation_space"), action_space=_first(sources, "action_space")
        )
    return spaces


def _first(sources: Iterable[Any], name: str) -> Any:
    values = (getattr(source, name, None) for source in sources)
    return next((value for value in values if value is not None), None)


def overrides_by_module(settings: AlgorithmSettings) -> dict[str, dict[str, Any]]:
    """Module id -> settings of its own, of modules that have some."""
    policies = policies_of_settings(settings)
    overrides = {module_id: dict(spec.config) for module_id, spec in policies.items() if spec.config}
    for module_id, values in settings.multi_agent.algorithm_config_overrides_per_module.items():
        overrides[module_id] = {**overrides.get(module_id, {}), **values}
    return overrides


# ------------------------------------------------------------------------------------------ checking


def add_policy_errors(settings: AlgorithmSettings, errors: ErrorList) -> None:
    """Add ids that no module has, what is missing, and settings that the default network does not have."""
    section: Any = settings.multi_agent
    module_ids = list(dict.fromkeys([*policies_of_settings(settings), *specs_by_module(settings)]))
    if not module_ids:
        errors.add("multi_agent.policies", "missing: list the modules that policy_mapping_fn gives")
        return
    if section.policies is not None and section.policy_mapping_fn is None and len(module_ids) > 1:
        errors.add(
            "multi_agent.policy_mapping_fn",
            f"missing: say which agents {', '.join(module_ids)} decide for, by a function or a table",
        )
    for module_id, spec in (section.policies or {}).items():
        if spec.rl_module_spec is None and settings.rl_module.rl_module_spec is None:
            check_model_config(spec.model_config, errors, f"multi_agent.policies.{module_id}.model_config")
    mapping = section.policy_mapping_fn
    named: list[tuple[str, Iterable[str]]] = [
        ("policies_to_train", section.policies_to_train if isinstance(section.policies_to_train, list) else ()),
        ("algorithm_config_overrides_per_module", section.algorithm_config_overrides_per_module),
    ]
    if isinstance(mapping, AgentMapping):
        named.append(("policy_mapping_fn", mapping.modules))
    for name, modules in named:
        for module_id in modules:
            if module_id not in module_ids:
                errors.add(f"multi_agent.{name}", f"no module {module_id!r}; {nearest(module_id, module_ids)}")


def check_agents(mapping: Any, agents: Iterable[Any], modules: Iterable[str]) -> None:
    """Check that every agent has a module.

    Args:
        mapping: The mapping function; one that answers only for an episode is not checked.
        agents: All agents there can be.
        modules: Ids of the modules.

    Raises:
        ConfigError: no entry of the table fits an agent, the function takes other arguments, or gives what is
            no module.
    """
    agent_ids, module_ids = list(agents), list(modules)
    if isinstance(mapping, AgentMapping):
        unmatched = mapping.unmatched(agent_ids)
        if unmatched:
            raise ConfigError(
                "multi_agent.policy_mapping_fn",
                expected=f"a module for each of the agents {_listed(agent_ids)}",
                found=f"no entry that fits {_listed(unmatched)} among {', '.join(mapping.table)}",
                do=f'add entries for them, or "*": {mapping.modules[-1]} for all others',
            )
        return
    if mapping is not None:
        _check_arguments(mapping)
    unknown = {}
    for agent in agent_ids if mapping is not None else ():
        try:
            module = mapping(agent, None)
        except Exception:  # it needs an episode, which may be what it decides by
            return
        if module not in module_ids:
            unknown[agent] = module
    if unknown:
        found = ", ".join(f"{module!r} for agent {agent!r}" for agent, module in unknown.items())
        raise ConfigError(
            "multi_agent.policy_mapping_fn",
            expected=f"one of the modules {', '.join(module_ids)}",
            found=found,
            do=nearest(str(next(iter(unknown.values()))), module_ids),
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
    names = [repr(agent) for agent in agents]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
