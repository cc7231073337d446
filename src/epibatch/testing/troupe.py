"""Several agents in one environment, each with the recorded steps of an episode of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from epibatch.testing.comparing import difference
from epibatch.testing.contract import NotApplied
from epibatch.testing.rehearsal import Rehearsal
from epibatch.testing.stage import PLAYED, Recording, Stream

__all__ = ["unlike_single_agents"]

_AGENTS = ("left", "right")


def unlike_single_agents(rehearsal: Rehearsal) -> str | NotApplied:
    """Where an agent's rows differ from those of the same steps without other agents; empty if nowhere."""
    if rehearsal.with_module:
        return NotApplied("it works on a module's tensors, which are those of one module at a time")
    pipeline = rehearsal.pipeline_of_agents(rehearsal.make(), _AGENTS)
    together = [rehearsal.call(pipeline, episodes) for episodes in _fresh(rehearsal)]
    for number, agent in enumerate(_AGENTS):
        alone = rehearsal.pipeline(rehearsal.make())
        for step, (batch, episodes) in enumerate(zip(together, _fresh(rehearsal))):
            own = [episode.agent_episodes[agent] for episode in episodes]
            unlike = difference(rehearsal.call(alone, own), batch.get(agent), near=True)
            if unlike:
                return f"agent {number}, call {step}: {unlike}"
    return ""


def _fresh(rehearsal: Rehearsal) -> Iterator[list[Any]]:
    if rehearsal.acting:
        return _acted(rehearsal.recording)
    return iter([_trained(rehearsal.recording)])


def _begun(recording: Recording, id_: str) -> Any:
    from epibatch.episodes import MultiAgentEpisode

    spaces = [gym.spaces.Dict(dict.fromkeys(_AGENTS, space)) for space in recording.spaces]
    how: dict[str, Any] = {
        "observation_space": spaces[0],
        "action_space": spaces[1],
        "agent_to_module_mapping_fn": _own_module,
    }
    return MultiAgentEpisode(id_, **how)


def _own_module(agent_id: str, episode: Any) -> str:
    return agent_id


def _step(episode: Any, streams: dict[str, Stream], step: int, *, ends: bool) -> None:
    """Add one step; agents whose own episodes are over take no part."""
    playing = {agent: own for agent, own in streams.items() if len(own.facts["rewards"]) > step}
    last = {agent: ends and len(own.facts["rewards"]) == step + 1 for agent, own in playing.items()}
    episode.add_env_step(
        {agent: own.row("observations", step + 1) for agent, own in playing.items()},
        {agent: own.row("actions", step) for agent, own in playing.items()},
        {agent: own.row("rewards", step) for agent, own in playing.items()},
        terminateds={agent: last[agent] and own.facts["terminated"] for agent, own in playing.items()},
        truncateds={agent: last[agent] and not own.facts["terminated"] for agent, own in playing.items()},
        extra_model_outputs={agent: own.outputs(step) for agent, own in playing.items()},
    )


def _trained(recording: Recording) -> list[Any]:
    """Whole episodes, in which one agent ends before the other."""
    chunks = [Stream(recording, own) for own in recording.calls[0] if own["t_started"] == 0]
    episodes = []
    for number, pair in enumerate(zip(chunks[::2], chunks[1::2])):
        streams = dict(zip(_AGENTS, pair))
        episode = _begun(recording, f"troupe {number}")
        episode.add_env_reset(observations={agent: own.row("observations", 0) for agent, own in streams.items()})
        for step in range(max(len(own.facts["rewards"]) for own in pair)):
            _step(episode, streams, step, ends=True)
        episodes.append(episode)
    return episodes


def _acted(recording: Recording) -> Iterator[list[Any]]:
    """Episodes that grow by a step each time, with all agents in them."""
    played = recording.played()
    pairs = [dict(zip(_AGENTS, played[i : i + 2])) for i in range(0, len(played) - 1, 2)]
    episodes = [_begun(recording, f"troupe {number}") for number in range(len(pairs))]
    for episode, streams in zip(episodes, pairs):
        episode.add_env_reset(observations={agent: own.row("observations", 0) for agent, own in streams.items()})
    yield episodes
    for step in range(PLAYED):
        for episode, streams in zip(episodes, pairs):
            _step(episode, streams, step, ends=False)
        yield episodes
