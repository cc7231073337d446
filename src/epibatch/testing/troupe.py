"""Several agents in one environment, each with the recorded steps of an episode of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from epibatch.episodes.multi_agent_episode import MultiAgentEpisode
from epibatch.testing.stage import Recording, Stream

__all__ = ["Ensemble", "Troupe"]


@dataclass(frozen=True)
class Ensemble:
    """The rows of several agents' episodes, step by step, as those of one environment.

    Args:
        troupe: the recordings of the agents.
        name: the episode's name.
        streams: agent -> its steps.
    """

    troupe: Troupe
    name: str
    streams: dict[str, Stream]

    def begun(self) -> Any:
        """Return a new episode, after its reset."""
        spaces, how = self.troupe.spaces, self.troupe.mapping
        episode = MultiAgentEpisode(
            self.name, observation_space=spaces[0], action_space=spaces[1], agent_to_module_mapping_fn=how
        )
        episode.add_env_reset(
            observations={agent: own.row("observations", 0) for agent, own in self.streams.items()},
            infos={agent: {"step": 0} for agent in self.streams},
        )
        return episode

    def step(self, episode: Any, step: int, *, ends: bool = False) -> None:
        """Add one step; agents with ended episodes do not take part.

        Args:
            episode: an episode with all earlier steps.
            step: the number of the step.
            ends: True if agents end with their own episodes.
        """
        playing = {agent: own for agent, own in self.streams.items() if len(own.facts["rewards"]) > step}
        last = {agent: ends and len(own.facts["rewards"]) == step + 1 for agent, own in playing.items()}
        episode.add_env_step(
            {agent: own.row("observations", step + 1) for agent, own in playing.items()},
            {agent: own.row("actions", step) for agent, own in playing.items()},
            {agent: own.row("rewards", step) for agent, own in playing.items()},
            {agent: {"step": step + 1} for agent in playing},
            terminateds={agent: last[agent] and own.facts["terminated"] for agent, own in playing.items()},
            truncateds={agent: last[agent] and not own.facts["terminated"] for agent, own in playing.items()},
            extra_model_outputs={agent: own.outputs(step) for agent, own in playing.items()},
        )


@dataclass(frozen=True)
class Troupe:
    """Recordings of several agents, from which episodes of all of them are made.

    Args:
        recordings: agent -> the recording with its spaces.
        mapping: called with an agent and an episode; returns its module's id.
    """

    recordings: dict[str, Recording]
    mapping: Callable[[Any, Any], Any]

    @property
    def spaces(self) -> tuple[gym.spaces.Dict, gym.spaces.Dict]:
        """The agents' observation and action spaces."""
        own = [{agent: one.spaces[i] for agent, one in self.recordings.items()} for i in (0, 1)]
        return gym.spaces.Dict(own[0]), gym.spaces.Dict(own[1])

    def episodes(self, call: int = 0) -> list[Any]:
        """Return new whole episodes, in which agents end at different steps."""
        streams = {
            agent: [Stream(own, facts) for facts in own.calls[call] if facts["t_started"] == 0]
            for agent, own in self.recordings.items()
        }
        episodes = []
        for ensemble in self._ensembles(streams, f"troupe {call}"):
            episode = ensemble.begun()
            for step in range(max(len(own.facts["rewards"]) for own in ensemble.streams.values())):
                ensemble.step(episode, step, ends=True)
            episodes.append(episode)
        return episodes

    def played(self, first: int = 0) -> list[Ensemble]:
        """Return episodes that are long enough for acting.

        Args:
            first: number of recorded ones to leave out.
        """
        return self._ensembles({agent: own.played(first) for agent, own in self.recordings.items()}, "acting troupe")

    def _ensembles(self, streams: dict[str, list[Stream]], name: str) -> list[Ensemble]:
        """Combine the agents' streams: each agent has an episode of its own in each result."""
        several, most = len(streams), min(map(len, streams.values()))
        return [
            Ensemble(
                self,
                f"{name}, {i}",
                {agent: own[(i * several + k) % len(own)] for k, (agent, own) in enumerate(streams.items())},
            )
            for i in range(max(2, most // several))
        ]
