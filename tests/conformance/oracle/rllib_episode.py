"""RLlib's episode of several agents that holds what the slow model does, as far as it can hold it."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import numpy as np

from oracle.agent_content import agent_map, plain
from oracle.libraries import RLLIB
from oracle.slow_episode import SlowEpisode


def built(slow: SlowEpisode, spaces: dict[str, Any], arrays: bool = False) -> Any:
    """The episode; of an agent that returned it holds the latest life only.

    Args:
        slow: What it is to hold.
        spaces: Each column's space, by its name; {} for none.
        arrays: Whether to call `to_numpy()`.
    """
    by_agent = {name: dict.fromkeys("abcd", space) for name, space in spaces.items()}
    episode = RLLIB.MultiAgentEpisode(
        id_="game", observation_space=by_agent.get("observations"), action_space=by_agent.get("actions")
    )
    episode.env_t_started, episode.env_t = slow.start, slow.t
    episode._len_lookback_buffers = slow.lookback
    episode.is_terminated, episode.is_truncated = slow.terminated, slow.truncated
    episode._custom_data = copy.deepcopy(slow.custom)
    episode.agent_t_started = defaultdict(int)
    for agent, lives in slow.lives.items():
        life = lives[-1]
        episode.agent_episodes[agent] = _single(slow, agent, life, spaces)
        episode.agent_t_started[agent] = life["skipped"] + slow.kept(life)
        row = episode.env_t_to_agent_t[agent]
        row.extend(agent_map(slow, agent, 1))
        row.lookback = slow.lookback
        episode._agent_to_module_mapping[agent] = "default_policy"
    for agent, taken in slow.open.items():
        episode._hanging_actions_end[agent] = copy.deepcopy(taken["action"])
        episode._hanging_extra_model_outputs_end[agent] = copy.deepcopy(taken["outputs"])
        episode._hanging_rewards_end[agent] = 0.0
    for agent, reward in slow.rewards.items():
        known = episode._hanging_rewards_end if agent in slow.lives else episode._hanging_rewards_begin
        known[agent] = reward
    return episode.to_numpy() if arrays else episode


def _single(slow: SlowEpisode, agent: str, life: dict[str, Any], spaces: dict[str, Any]) -> Any:
    keys = life["outputs"][0] if life["outputs"] else ()
    kept = slow.kept(life)
    single = RLLIB.SingleAgentEpisode(
        agent_id=agent,
        module_id="default_policy",
        multi_agent_episode_id="game",
        observations=list(life["obs"]),
        infos=copy.deepcopy(life["infos"]),
        actions=list(life["actions"]),
        rewards=list(life["rewards"]),
        extra_model_outputs={key: [copy.deepcopy(row[key]) for row in life["outputs"]] for key in keys},
        observation_space=spaces.get("observations"),
        action_space=spaces.get("actions"),
        terminated=life["flags"][0],
        truncated=life["flags"][1],
        t_started=life["skipped"] + kept,
        len_lookback_buffer=kept,
    )
    if life["at"][-1] > slow.start or not slow.start:  # the chunk itself has seen it
        single._last_added_observation, single._last_added_infos = life["obs"][-1], life["infos"][-1]
    return single


def holds(episode: Any) -> dict[str, Any]:
    """What RLlib's episode holds."""
    singles = episode.agent_episodes.items()
    return {
        "env steps": [episode.env_t_started, episode.env_t, len(episode)],
        "ends": [episode.is_terminated, episode.is_truncated],
        "custom data": dict(episode.custom_data),
        "agents": {agent: _of_single(single) for agent, single in sorted(singles, key=lambda item: str(item[0]))},
        "maps": {a: [list(row.data), row.lookback] for a, row in sorted(episode.env_t_to_agent_t.items())},
        "pending actions": {agent: plain(row) for agent, row in sorted(episode._hanging_actions_end.items())},
        "pending outputs": {
            agent: plain(row) for agent, row in sorted(episode._hanging_extra_model_outputs_end.items())
        },
        "rewards since": {agent: float(r) for agent, r in sorted(episode._hanging_rewards_end.items()) if r},
        "rewards before": {agent: float(r) for agent, r in sorted(episode._hanging_rewards_begin.items()) if r},
        "modules": {agent: single.module_id for agent, single in sorted(singles)},
    }


def _of_single(single: Any) -> dict[str, Any]:
    columns = {name: getattr(single, name) for name in ("observations", "infos", "actions", "rewards")}
    rows = {name: _rows(column) for name, column in {**columns, **single.extra_model_outputs}.items()}
    return {
        "rows": {name: found for name, found in rows.items() if found or name in columns},
        "kept": [single.observations.lookback, single.actions.lookback, single.rewards.lookback],
        "t_started": single.t_started,
        "flags": [single.is_terminated, single.is_truncated],
    }


def _rows(column: Any) -> Any:
    if isinstance(column.data, list):
        return [plain(row) if not _is_info(row) else row for row in column.data]
    return np.asarray(column.data).tolist()


def _is_info(row: Any) -> bool:
    return isinstance(row, dict) and not any(isinstance(part, np.ndarray) for part in row.values())
