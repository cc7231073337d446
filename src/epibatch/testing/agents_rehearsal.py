"""Runs of one piece in one pipeline on multi-agent episodes."""

from __future__ import annotations

from typing import Any

from epibatch.testing.comparing import difference
from epibatch.testing.contract import NotApplied
from epibatch.testing.rehearsal import Rehearsal
from epibatch.testing.stage import growing, recorded_in
from epibatch.testing.troupe import Troupe

__all__ = ["AgentsRehearsal", "unlike_single_agents"]

_AGENTS = ("left", "right")


class AgentsRehearsal(Rehearsal):
    """A piece in pipelines for several agents with one module.

    Args:
        factory: makes a new piece.
        side: "env_to_module", "module_to_env" or "learner".
        spaces: Dicts of the agents' observation and action spaces.
        model_config: settings of the default module.
    """

    several = True

    def _recorded(self) -> Any:
        agents = {agent: (own, self.spaces[1][agent]) for agent, own in self.spaces[0].items()}
        return Troupe({agent: recorded_in(own, self.model_config) for agent, own in agents.items()}, all_to_one)

    def _default(self, agents: Any = None, side: str = "") -> list[Any]:
        only = {"rl_module_specs": ["default_policy"], "agent_to_module_mapping_fn": all_to_one}
        return super()._default(agents or only, side)

    def _user_place(self) -> int:
        return super()._user_place() + (self.side == "module_to_env")

    def _module_of(self, observation_space: Any) -> Any:
        from epibatch.core.rl_module.rl_module import MultiRLModuleSpec, default_module_spec

        first = self._to_module() if self.side == "module_to_env" else None
        actions = next(iter(self.spaces[1].values())) if first is None else first.action_space["default_policy"]
        own = default_module_spec(observation_space["default_policy"], actions, self.model_config)
        return MultiRLModuleSpec(rl_module_specs={"default_policy": own}).build()


def all_to_one(agent_id: Any, episode: Any) -> str:
    """Return the id of the one module of all agents."""
    return "default_policy"


def own_module(agent_id: Any, episode: Any) -> Any:
    """Return the agent's name as module id."""
    return agent_id


def unlike_single_agents(rehearsal: Rehearsal) -> str | NotApplied:
    """Return the first difference of an agent's rows to the same steps without other agents; empty if none."""
    if rehearsal.several:
        return NotApplied("it is tried on several agents in every check")
    if rehearsal.with_module:
        return NotApplied("it works on a module's tensors, which are those of one module at a time")
    troupe = Troupe(dict.fromkeys(_AGENTS, rehearsal.recording), own_module)

    def shown() -> Any:
        return growing(troupe.played()) if rehearsal.acting else iter([troupe.episodes()])

    pipeline = rehearsal.pipeline_of_agents(rehearsal.make(), _AGENTS, own_module)
    together = [rehearsal.call(pipeline, episodes) for episodes in shown()]
    for number, agent in enumerate(_AGENTS):
        alone = rehearsal.pipeline(rehearsal.make())
        for step, (batch, episodes) in enumerate(zip(together, shown())):
            own = [episode.agent_episodes[agent] for episode in episodes]
            unlike = difference(rehearsal.call(alone, own), batch.get(agent), near=True)
            if unlike:
                return f"agent {number}, call {step}: {unlike}"
    return ""
