"""An env step of several agents as it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epibatch.core.errors import EpisodeError

from .arguments import as_flag

_NAMES = ("observations", "actions", "rewards", "infos", "terminateds", "truncateds", "outputs")
_DICTS = {dict}
_ALL = "__all__"
COMMON = "__common__"
"""The key of an environment's info that belongs to no agent."""


@dataclass(slots=True)
class EnvStep:
    """The values of one env step, by agent.

    Attributes:
        observations: Newest observations.
        actions: Actions the agents took.
        rewards: Rewards.
        infos: Info dicts.
        terminateds: Flags, and one for all under `__all__`.
        truncateds: The same.
        outputs: The modules' other outputs for the actions.
        ends: The agents that end in this step, with their flags (terminated, truncated).
    """

    observations: Mapping[Any, Any]
    actions: Mapping[Any, Any]
    rewards: Mapping[Any, Any]
    infos: Mapping[Any, Any]
    terminateds: Mapping[Any, Any]
    truncateds: Mapping[Any, Any]
    outputs: Mapping[Any, Any]
    ends: dict[Any, tuple[bool, bool]] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Refuse columns that are not by agent.

        Raises:
            EpisodeError: one is something else than a dict.
        """
        data, flags = (self.observations, self.actions, self.rewards, self.infos), (self.terminateds, self.truncateds)
        columns = (*data, *flags, self.outputs)
        if set(map(type, columns)) == _DICTS:
            return
        for name, found in zip(_NAMES, columns):
            if not isinstance(found, Mapping):
                do = "pass what the multi-agent environment gave, {agent: value}"
                if name == "observations" and isinstance(found, tuple) and len(found) == 2:
                    do = "pass observations and infos apart, as `observations, infos = env.reset()` gives them"
                raise EpisodeError(
                    f"{where}, {name}",
                    expected="a dict by agent",
                    found=f"{type(found).__name__} {found!r}",
                    do=do,
                )

    def others(self) -> list[Any]:
        """Agents that were given something, but no observation."""
        observed, out = self.observations, {}
        for column in (self.actions, self.rewards, self.outputs, self.infos):
            if not column.keys() <= observed.keys():
                out.update(dict.fromkeys(agent for agent in column if agent not in observed))
        out.pop(COMMON, None)
        return list(out)

    def find_ends(self, living: list[Any], id_: Any) -> None:
        """Find out which agents end in this step, and how: each by its own flags and those for all.

        Args:
            living: The agents that were there before.
            id_: Name of the episode.

        Raises:
            EpisodeError: a flag is none.
        """
        flags = self.terminateds, self.truncateds
        every = [as_flag(by_agent.get(_ALL, False), _ALL, id_) for by_agent in flags]
        agents = dict.fromkeys([*living, *self.observations] if any(every) else ())
        agents = {**agents, **dict.fromkeys(self.terminateds), **dict.fromkeys(self.truncateds)}
        agents.pop(_ALL, None)
        for agent in agents:
            terminated = as_flag(flags[0].get(agent, False), f"terminateds[{agent!r}]", id_) or every[0]
            truncated = as_flag(flags[1].get(agent, False), f"truncateds[{agent!r}]", id_) or every[1]
            if terminated or truncated:
                self.ends[agent] = terminated, truncated
