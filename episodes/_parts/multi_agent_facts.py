"""What a multi-agent episode says about itself: agents, lengths, flags, what is pending, totals."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping
from types import MappingProxyType
from typing import Any

from epibatch.core.errors import EpisodeStateError, add_context

from .._storage.buffer_source import NOTHING
from .._storage.infos_buffer import InfosBuffer
from ..single_agent_episode import SingleAgentEpisode
from .agent_segment import AgentSegment
from .multi_agent_getters import MultiAgentGetters

__all__ = ["MultiAgentFacts", "map_to_default"]

_ALL = "__all__"


def map_to_default(agent_id: Any, episode: Any, **_: Any) -> str:
    """Map every agent to the module "default_policy"."""
    return "default_policy"


class MultiAgentFacts(MultiAgentGetters):
    """The read-only side of a multi-agent episode, derived from its agents' records.

    Whatever goes by agent is in the order in which the agents first had an observation.
    """

    SKIP_ENV_TS_TAG = "S"

    is_terminated: bool
    is_truncated: bool
    env_t: int
    agent_to_module_mapping_fn: Callable[..., Any] | None
    _modules: dict[Any, Any]
    _past: list[AgentSegment]
    _custom_data: dict[str, Any]
    _was_reset: bool
    _start_time: float | None
    _last_step_time: float | None

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def env_steps(self) -> int:
        """Number of env steps in this chunk, lookback excluded."""
        return len(self)

    def agent_steps(self) -> int:
        """Number of all agents' steps that ended in this chunk."""
        return sum(len(segment.episode) for segment in self.segments)

    @property
    def is_reset(self) -> bool:
        """Whether the episode was reset, be it without any agent."""
        return self._was_reset

    @property
    def is_done(self) -> bool:
        """Whether the episode ended for all agents."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Always True: columns are arrays from their first row on."""
        return True

    @property
    def custom_data(self) -> dict[str, Any]:
        """Anything a user wants to keep with the episode."""
        return self._custom_data

    # -- agents --------------------------------------------------------------------------------

    @property
    def segments(self) -> list[AgentSegment]:
        """All lives of all agents in this chunk: each a single-agent episode and the env steps of its observations."""
        return [segment for record in self._agents.values() for segment in record.segments]

    @property
    def past_segments(self) -> list[AgentSegment]:
        """Lives that ended before this chunk, as far as its lookback reaches: what their agents saw beside the others.

        They count in nothing else: their agents are none of this chunk's.
        """
        return list(self._past)

    @property
    def agent_episodes(self) -> Mapping[Any, SingleAgentEpisode]:
        """The latest single-agent episode of each agent in this chunk."""
        agents = self._agents.items()
        return MappingProxyType({a: record.segments[-1].episode for a, record in agents if record.segments})

    @property
    def agent_ids(self) -> KeysView[Any]:
        """The agents that have observations in this chunk."""
        return dict.fromkeys(agent for agent, record in self._agents.items() if record.segments).keys()

    @property
    def agent_episode_ids(self) -> dict[Any, str]:
        """The ids of the agents' latest single-agent episodes."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[Any, int]:
        """The steps of their own at which the agents' latest single-agent episodes start."""
        return {agent: episode.t_started for agent, episode in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[Any, InfosBuffer]:
        """For each agent and env step, lookback included, the agent's own step, or "S" if it had no observation."""
        base = self.env_t_started - self.lookback
        out = {}
        for agent, record in self._agents.items():
            row: list[Any] = [self.SKIP_ENV_TS_TAG] * (self.env_t - base + 1)
            for segment in record.segments:
                first = segment.episode.t_started - segment.episode.lookback
                for i, env_t in enumerate(segment.steps):
                    row[env_t - base] = first + i
            if record.segments:
                out[agent] = InfosBuffer(row, self.lookback)
        return out

    def module_for(self, agent_id: Any) -> Any:
        """The module that acts for an agent; the mapping function is asked once per agent and episode.

        Args:
            agent_id: The agent; it need not have appeared yet.

        Raises:
            EpisodeStateError: the episode was restored without its mapping function, and the agent is new.
        """
        if agent_id not in self._modules:
            if self.agent_to_module_mapping_fn is None:
                raise EpisodeStateError(
                    f"episode {self.id_}, module_for({agent_id!r})",
                    expected="a mapping function: the one of the episode is no data, so its state has none",
                    found="a restored episode without one",
                    do="pass agent_to_module_mapping_fn= to from_state",
                )
            try:
                self._modules[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
            except Exception as error:
                add_context(error, f"in the mapping function, asked for agent {agent_id!r} of episode {self.id_}:")
                raise
        return self._modules[agent_id]

    def get_agents_that_stepped(self) -> KeysView[Any]:
        """The agents with an observation at the newest env step, those that have just ended included."""
        agents = self._agents.items()
        stepped = (a for a, record in agents if record.segments and record.segments[-1].steps[-1] == self.env_t)
        return dict.fromkeys(stepped).keys()

    def get_agents_that_observed(self) -> KeysView[Any]:
        """The agents that were given an observation at the newest env step; one may have ended without any."""
        stepped = self.get_agents_that_stepped()
        return dict.fromkeys(agent for agent in stepped if not self._agents[agent].segments[-1].repeats).keys()

    def get_agents_to_act(self) -> KeysView[Any]:
        """The agents with an observation at the newest env step that have not ended."""
        live = ((agent, record.live) for agent, record in self._agents.items())
        return dict.fromkeys(agent for agent, segment in live if segment and segment.steps[-1] == self.env_t).keys()

    def get_agents_without_action(self) -> KeysView[Any]:
        """The agents that have not ended and have not acted on their newest observation, however old it is."""
        agents = self._agents.items()
        return dict.fromkeys(agent for agent, record in agents if record.live and record.action is NOTHING).keys()

    def get_terminateds(self) -> dict[Any, bool]:
        """Whether each agent of this chunk terminated, and under `__all__` whether the episode did."""
        flags = {agent: episode.is_terminated for agent, episode in self.agent_episodes.items()}
        return {**flags, _ALL: self.is_terminated}

    def get_truncateds(self) -> dict[Any, bool]:
        """Whether each agent of this chunk was truncated, and under `__all__` whether the episode was."""
        flags = {agent: episode.is_truncated for agent, episode in self.agent_episodes.items()}
        return {**flags, _ALL: self.is_truncated}

    # -- what waits ----------------------------------------------------------------------------

    @property
    def pending_actions(self) -> dict[Any, Any]:
        """The actions of agents that have had no observation since."""
        agents = self._agents.items()
        return {agent: record.action for agent, record in agents if record.action is not NOTHING}

    @property
    def pending_rewards(self) -> dict[Any, Any]:
        """The rewards that are in no step, summed: they count for the agent's step that ends next.

        Those of agents that never appear, and those that came after an agent's last step, stay here.
        """
        pending = ((agent, record.pending_reward) for agent, record in self._agents.items())
        return {agent: reward for agent, reward in pending if reward is not None}

    @property
    def pending_extra_model_outputs(self) -> dict[Any, dict[str, Any]]:
        """The model outputs that came with the pending actions."""
        agents = self._agents.items()
        return {agent: dict(record.extras) for agent, record in agents if record.action is not NOTHING}

    # -- totals --------------------------------------------------------------------------------

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Sum of all agents' rewards in this chunk, lookback excluded.

        Args:
            include_hanging_rewards: Whether `pending_rewards` count too. A chunk after a cut takes over those of the
                chunk before.
        """
        total = sum(segment.episode.get_return() for segment in self.segments)
        if include_hanging_rewards:
            total += sum(float(reward) for reward in self.pending_rewards.values())
        return float(total)

    def get_duration_s(self) -> float:
        """Seconds between the reset and the newest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def print(self) -> None:
        """Print a table of env steps (lookback negative) with an x where an agent had an observation."""
        width = max([2, *(len(str(agent)) for agent in self.agent_ids)])
        numbers = [str(t) for t in range(-self.lookback, len(self) + 1)]
        lines = ["ts".ljust(width) + "".join(f"  {number:>3}" for number in numbers)]
        for agent, row in self.env_t_to_agent_t.items():
            marks = ("" if step == self.SKIP_ENV_TS_TAG else "x" for step in row.data)
            lines.append((str(agent).ljust(width) + "".join(f"  {mark:>3}" for mark in marks)).rstrip())
        print("\n".join(lines))
