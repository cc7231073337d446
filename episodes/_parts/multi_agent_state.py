"""A multi-agent episode as plain data: dicts, lists, arrays, strings and numbers, and back."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from epibatch.core.errors import CheckpointError
from epibatch.core.structs import map_struct

from .._storage.arrays import owned
from .._storage.buffer_source import NOTHING
from ..single_agent_episode import SingleAgentEpisode
from .agent_segment import AgentRecord, AgentSegment
from .multi_agent_facts import map_to_default

if TYPE_CHECKING:
    from ..multi_agent_episode import MultiAgentEpisode

__all__ = ["episode_from_state", "episode_state"]

E = TypeVar("E", bound="MultiAgentEpisode")

_PLAIN = ("id_", "env_t_started", "env_t", "lookback", "is_terminated", "is_truncated")
_PARTS = (
    *_PLAIN,
    *("is_reset", "observation_space", "action_space", "own_mapping_fn", "modules", "agents", "custom_data"),
    "duration_s",
)


def episode_state(episode: MultiAgentEpisode) -> dict[str, Any]:
    """Copy an episode's content into plain data; what goes by agent is a list, as agent ids may be anything."""
    return {
        **{name: getattr(episode, name) for name in _PLAIN},
        "is_reset": episode.is_reset,
        "observation_space": _spaces_to_list(episode.observation_space),
        "action_space": _spaces_to_list(episode.action_space),
        "own_mapping_fn": episode.agent_to_module_mapping_fn is not map_to_default,
        "modules": [[agent, module] for agent, module in episode._modules.items()],
        "agents": [[agent, _record_state(record)] for agent, record in episode._agents.items()],
        "past": [_segment_state(segment) for segment in episode.past_segments],
        "custom_data": copy.deepcopy(episode.custom_data),
        "duration_s": episode.get_duration_s(),
    }


def _spaces_to_list(spaces: Mapping[Any, Any]) -> list[Any]:
    from epibatch.core.space_dicts import space_to_dict

    return [[agent, space_to_dict(space)] for agent, space in spaces.items() if space is not None]


def _record_state(record: AgentRecord) -> dict[str, Any]:
    return {
        "born": record.born,
        "end": None if record.end is None else list(record.end),
        "action": [] if record.action is NOTHING else [owned(record.action)],
        "extra_model_outputs": {key: owned(row) for key, row in record.extras.items()},
        "reward": record.reward,
        "left_over": record.left_over,
        "infos": copy.deepcopy(record.info),
        "segments": [_segment_state(segment) for segment in record.segments],
    }


def _segment_state(segment: AgentSegment) -> dict[str, Any]:
    return {"episode": segment.episode.get_state(), "env_steps": segment.env_steps, "ended_at": segment.ended_at}


def episode_from_state(cls: type[E], state: Mapping[str, Any], mapping_fn: Callable[..., Any] | None) -> E:
    """Rebuild an episode from `episode_state`.

    Raises:
        CheckpointError: `state` is no multi-agent episode's.
    """
    missing = [name for name in _PARTS if name not in state] if isinstance(state, Mapping) else []
    if missing or not isinstance(state, Mapping):
        raise CheckpointError(
            f"{cls.__name__}.from_state",
            expected="the state of a multi-agent episode",
            found=f"no {', '.join(missing)}" if missing else f"{type(state).__name__} {state!r}",
            do="pass what get_state of a multi-agent episode gave",
        )
    episode = cls(
        state["id_"],
        observation_space=_spaces_from_list(state["observation_space"]),
        action_space=_spaces_from_list(state["action_space"]),
        agent_to_module_mapping_fn=mapping_fn,
    )
    if mapping_fn is None and state["own_mapping_fn"]:
        episode.agent_to_module_mapping_fn = None
    for name in _PLAIN[1:]:
        setattr(episode, name, state[name])
    episode._was_reset = state["is_reset"]
    episode._modules = dict(state["modules"])
    episode._agents = {agent: _record_from_state(record) for agent, record in state["agents"]}
    episode._past = [_segment_from_state(one) for one in state.get("past", ())]
    episode._custom_data = copy.deepcopy(state["custom_data"])
    episode._start_time, episode._last_step_time = 0.0, state["duration_s"]
    return episode


def _spaces_from_list(spaces: list[Any]) -> dict[Any, Any]:
    from epibatch.core.space_dicts import space_from_dict

    return {agent: space_from_dict(space) for agent, space in spaces}


def _segment_from_state(state: Mapping[str, Any]) -> AgentSegment:
    steps = array("q", [int(env_t) for env_t in state["env_steps"]])
    return AgentSegment(SingleAgentEpisode.from_state(state["episode"]), steps, state["ended_at"])


def _record_from_state(state: Mapping[str, Any]) -> AgentRecord:
    record = AgentRecord()
    record.segments = [_segment_from_state(one) for one in state["segments"]]
    record.born = state["born"]
    record.end = None if state["end"] is None else (bool(state["end"][0]), bool(state["end"][1]))
    record.live = record.segments[-1] if record.segments and record.end is None else None
    record.action = map_struct(owned, state["action"][0]) if state["action"] else NOTHING
    record.extras = {key: owned(row) for key, row in state["extra_model_outputs"].items()}
    record.reward, record.left_over = state["reward"], state["left_over"]
    record.info = copy.deepcopy(state["infos"])
    record.settle()
    return record
