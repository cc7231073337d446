"""Episodes with one more step, for plain pieces behind the one that adds bootstrap rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ...episodes._parts.agent_segment import AgentSegment

__all__ = ["lengthened", "with_lengthened_parts"]


def lengthened(episode: Any) -> Any:
    """A copy of an episode with one artificial step at its end, truncated unless it was only terminated.

    Args:
        episode: A single-agent episode of at least one step; it stays as it is.

    Returns:
        The copy: last observation, info, action and model outputs once more, reward 0. It shares
        the episode's `custom_data`.
    """
    out = episode.slice(slice(None))
    out._custom_data = episode.custom_data
    out.is_terminated = out.is_truncated = False
    out._given_observation_space = None  # the newest observation is what pieces made of it
    out.add_env_step(
        out.get_observations(-1),
        out.get_actions(-1),
        0.0,
        out.get_infos(-1),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated or not episode.is_terminated,
        extra_model_outputs={key: out.get_extra_model_outputs(key, -1) for key in out.extra_model_outputs},
    )
    return out


def with_lengthened_parts(episode: Any, parts: Mapping[int, Any]) -> Any:
    """A copy of a multi-agent episode that has other single-agent episodes, each one step longer.

    Args:
        episode: A multi-agent episode; it stays as it is.
        parts: From the identity of a single-agent episode to its lengthened copy. The artificial step of an agent
            ends at the env step behind its newest observation.
    """
    out = copy.copy(episode)
    out._agents = {agent_id: copy.copy(record) for agent_id, record in episode._agents.items()}
    for record in out._agents.values():
        record.segments = [_longer(segment, parts.get(id(segment.episode))) for segment in record.segments]
        if record.live is not None:
            record.live = record.segments[-1]
            record.settle()
    out.env_t += 1
    return out


def _longer(segment: AgentSegment, part: Any) -> AgentSegment:
    if part is None:
        return segment
    steps = segment.steps[:]
    steps.append(steps[-1] + 1)
    return AgentSegment(part, steps, segment.ended_at)
