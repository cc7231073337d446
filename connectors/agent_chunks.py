"""The single-agent chunks of episodes of several agents, each with its key and its module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .chunk_keys import chunk_keys

__all__ = ["AgentChunk", "acting_chunks", "chunks_of_rows", "rows_by_module", "training_chunks"]


class AgentChunk(NamedTuple):
    """One agent's part of an episode.

    Args:
        owner: Position of the episode in its call.
        key: Of the chunk in per-episode columns: episode, agent, module.
        episode: The part, a single-agent episode.
    """

    owner: int
    key: tuple[Any, Any, Any]
    episode: Any


def training_chunks(episodes: Sequence[Any]) -> list[AgentChunk]:
    """Every agent's part that has steps, in the order in which agents appeared.

    Args:
        episodes: Multi-agent episodes; an agent that ended and came back has several parts.
    """
    chunks = []
    for owner, (episode, (episode_key,)) in enumerate(zip(episodes, chunk_keys(episodes))):
        parts = [segment.episode for segment in episode.segments if len(segment.episode)]
        names = _numbered([part.agent_id for part in parts])
        chunks += [AgentChunk(owner, (episode_key, name, part.module_id), part) for name, part in zip(names, parts)]
    return chunks


def _numbered(names: list[Any]) -> list[Any]:
    """Names of an episode's parts; those that occur more than once get their position behind them."""
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}_{i}" for i, name in enumerate(names)]


def acting_chunks(episodes: Sequence[Any]) -> list[AgentChunk]:
    """The newest part of every agent that has a new observation, those that ended with it included."""
    chunks = []
    for owner, (episode, (episode_key,)) in enumerate(zip(episodes, chunk_keys(episodes))):
        for agent_id in episode.get_agents_that_observed():
            part = episode.agent_episodes[agent_id]
            chunks.append(AgentChunk(owner, (episode_key, agent_id, part.module_id), part))
    return chunks


def chunks_of_rows(
    episodes: Sequence[Any], rows: Mapping[Any, Sequence[tuple[Any, Any]]]
) -> Iterator[tuple[Any, list[AgentChunk | None]]]:
    """Whose row each one of a module's outputs is.

    Args:
        episodes: Multi-agent episodes.
        rows: module id -> (episode key, agent) of each row, as the mapping to modules left them.

    Yields:
        Module ids with one chunk per row; None for agents that are not to act any more.
    """
    owners = {key[0]: owner for owner, key in enumerate(chunk_keys(episodes))}
    to_act = [set(episode.get_agents_to_act()) for episode in episodes]
    for module_id, own in rows.items():
        chunks: list[AgentChunk | None] = []
        for episode_key, agent_id in own:
            owner = owners.get(episode_key)
            if owner is None or agent_id not in to_act[owner]:
                chunks.append(None)
                continue
            part = episodes[owner].agent_episodes[agent_id]
            chunks.append(AgentChunk(owner, (episode_key, agent_id, module_id), part))
        yield module_id, chunks


def rows_by_module(chunks: Sequence[AgentChunk]) -> dict[Any, list[tuple[Any, Any]]]:
    """Module id -> (episode key, agent) of each of its rows, for whoever has to put outputs back to agents."""
    rows: dict[Any, list[tuple[Any, Any]]] = {}
    for chunk in chunks:
        episode_key, agent_id, module_id = chunk.key
        rows.setdefault(module_id, []).append((episode_key, agent_id))
    return rows
