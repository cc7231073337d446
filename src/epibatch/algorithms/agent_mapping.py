"""Which module decides for an agent, as a table of agents and patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, final

from epibatch.core.errors import ConfigError, UnknownNameError

__all__ = ["AgentMapping"]

_WILD = frozenset("*?[")


@final
class AgentMapping:
    """A mapping function without code: the first entry that fits an agent names its module.

    Agents are compared as text, so the agent 3 fits the entry "3". An entry with `*` (any text), `?` (any character)
    or `[abc]` (one of them) fits all agents of that form.

    Args:
        table: Agent, or pattern of agents -> module id; the order counts.

    Raises:
        ConfigError: the table is empty, an agent or module is no text, or an entry is never reached because one in
            front of it fits the same agents.

    Example:
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
        self._table = {str(agent): module for agent, module in table.items()}
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
        return [agent for agent in agents if self._module_of(str(agent)) is None]

    def __call__(self, agent_id: Any, episode: Any = None, **kwargs: Any) -> str:
        """The module of an agent.

        Args:
            agent_id: The agent.
            episode: Not looked at.
            **kwargs: Not looked at.

        Raises:
            UnknownNameError: no entry fits the agent.
        """
        name = str(agent_id)
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
    """What is wrong with a table, or None."""
    if not isinstance(table, Mapping):
        return f"{type(table).__name__} {table!r}"
    if not table:
        return "an empty table"
    seen: list[str] = []
    for agent, module in table.items():
        if isinstance(agent, bool) or not isinstance(agent, (str, int)) or agent == "":
            return f"the agent {agent!r}, which is neither text nor a number"
        if not isinstance(module, str) or not module:
            return f"the module {module!r} of {agent!r}, which is no text"
        name = str(agent)
        # A pattern behind another may fit what that one does not; a plain name behind a pattern that fits it cannot.
        first = next((entry for entry in seen if entry == name or (not _WILD & set(name) and _fits(entry, name))), None)
        if first is None and "*" in seen:
            first = "*"
        if first is not None:
            return f"{name!r} behind {first!r}, which fits it already: it is never reached"
        seen.append(name)
    return None
