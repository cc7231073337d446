"""Everything an episode of several agents holds and says of itself, of ours and as the slow model says it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.columns import stack
from oracle.slow_episode import SlowEpisode

COLUMNS = {"observations": "obs", "actions": "actions", "rewards": "rewards"}


def content(episode: Any) -> dict[str, Any]:
    """What ours holds."""
    by_agent: dict[str, list[Any]] = {agent: [] for agent in episode.agent_ids}
    for segment in episode.segments:
        by_agent[segment.agent_id].append(_of_segment(segment))
    return {
        "name": episode.id_,
        "env steps": [episode.env_t_started, episode.env_t, episode.lookback, len(episode), episode.env_steps()],
        "ends": [episode.is_terminated, episode.is_truncated, episode.is_done],
        "custom data": episode.custom_data,
        "order": list(episode.agent_ids),
        "lives": by_agent,
        "pending actions": {agent: plain(action) for agent, action in sorted(episode.pending_actions.items())},
        "pending outputs": {agent: plain(row) for agent, row in sorted(episode.pending_extra_model_outputs.items())},
        "pending rewards": {agent: float(r) for agent, r in sorted(episode.pending_rewards.items()) if r},
        "stepped": list(episode.get_agents_that_stepped()),
        "to act": list(episode.get_agents_to_act()),
        "terminateds": episode.get_terminateds(),
        "truncateds": episode.get_truncateds(),
        "returns": [episode.get_return(), episode.get_return(include_hanging_rewards=True)],
        "agent steps": episode.agent_steps(),
        "maps": {agent: [list(row.data), row.lookback] for agent, row in episode.env_t_to_agent_t.items()},
        "t_started": dict(episode.agent_t_started),
        "reset": episode.is_reset,
        "modules": {agent: episode.module_for(agent) for agent in episode.agent_ids},
    }


def _of_segment(segment: Any) -> dict[str, Any]:
    single = segment.episode
    single.validate()
    columns = {name: _rows(getattr(single, name)) for name in COLUMNS}
    kept = single.actions.len_incl_lookback()
    outputs = {key: _rows(column) for key, column in single.extra_model_outputs.items()} if kept else {}
    return {
        "columns": {**columns, **outputs},
        "infos": list(single.infos.data),
        "at": segment.env_steps.tolist(),
        "kept": {column.lookback for column in single._columns()},
        "t_started": single.t_started,
        "ended": segment.ended_at,
        "flags": (single.is_terminated, single.is_truncated),
        "names": [single.agent_id, single.multi_agent_episode_id, single.module_id],
    }


def _rows(column: Any) -> Any:
    return column.data if column.len_incl_lookback() else None


def plain(row: Any) -> Any:
    """A row as Python's own values."""
    if isinstance(row, dict):
        return {key: plain(part) for key, part in row.items()}
    return np.asarray(row).tolist()


def slow_content(slow: SlowEpisode) -> dict[str, Any]:
    """What the slow model says of it."""
    lives = slow.steps_of_agents()
    pending = slow.pending_rewards()
    latest = {agent: held[-1] for agent, held in slow.lives.items()}
    returned = sum(sum(life["rewards"][kept:]) for life, kept in lives)
    return {
        "name": "game",
        "env steps": [slow.start, slow.t, slow.lookback, slow.length, slow.length],
        "ends": [slow.terminated, slow.truncated, slow.done],
        "custom data": slow.custom,
        "order": list(slow.lives),
        "lives": {agent: [_of_life(slow, agent, life) for life in held] for agent, held in slow.lives.items()},
        "pending actions": {agent: plain(taken["action"]) for agent, taken in sorted(slow.open.items())},
        "pending outputs": {agent: plain(taken["outputs"]) for agent, taken in sorted(slow.open.items())},
        "pending rewards": dict(sorted(pending.items())),
        "stepped": slow.stepped(),
        "to act": slow.to_act(),
        "terminateds": {**{a: life["flags"][0] for a, life in latest.items()}, "__all__": slow.terminated},
        "truncateds": {**{a: life["flags"][1] for a, life in latest.items()}, "__all__": slow.truncated},
        "returns": [float(returned), float(returned + sum(pending.values()))],
        "agent steps": sum(len(life["actions"]) - kept for life, kept in lives),
        "maps": {agent: [agent_map(slow, agent), slow.lookback] for agent in slow.lives},
        "t_started": {agent: life["skipped"] + slow.kept(life) for agent, life in latest.items()},
        "reset": True,
        "modules": dict.fromkeys(slow.lives, "default_policy"),
    }


def _of_life(slow: SlowEpisode, agent: str, life: dict[str, Any]) -> dict[str, Any]:
    columns = {name: stack(life[key]) if life[key] else None for name, key in COLUMNS.items()}
    keys = life["outputs"][0] if life["outputs"] else ()
    outputs = {key: stack([row[key] for row in life["outputs"]]) for key in keys}
    return {
        "columns": {**columns, **outputs},
        "infos": life["infos"],
        "at": life["at"],
        "kept": {slow.kept(life)},
        "t_started": life["skipped"] + slow.kept(life),
        "ended": life["ended"],
        "flags": life["flags"],
        "names": [agent, "game", "default_policy"],
    }


def agent_map(slow: SlowEpisode, agent: str, lives: int = 0) -> list[Any]:
    """For each env step, lookback included, the agent's own step, or "S"; of its last so many lives (0: all)."""
    row: list[Any] = ["S"] * (slow.lookback + slow.length + 1)
    for life in slow.lives[agent][-lives:]:
        for i, at in enumerate(life["at"]):
            row[at - slow.start + slow.lookback] = life["skipped"] + i
    return row
