"""All steps of a rollout as flat columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError

from ._parts.agent_segment import AgentSegment
from .multi_agent_episode import MultiAgentEpisode
from .reader import reader_of

_BY = (Columns.AGENT_ID, Columns.MODULE_ID)


def episodes_to_columns(episodes: Sequence[Any], by: str = Columns.AGENT_ID) -> dict[Any, Any]:
    """Join the steps of episodes into one dict of columns, as `sample()` returns them or one after the other.

    Args:
        episodes: Single-agent or multi-agent episodes, or chunks of them; those without a step add no rows.
        by: Of multi-agent episodes: "agent_id" for the columns of each agent, "module_id" for those of each module.

    Returns:
        For one agent `obs`, `new_obs` (the observation after the step), `actions`, `rewards`, `terminateds`,
        `truncateds`, `infos`, `t` (the step of its episode), `eps_id` and the model outputs. They are copies of shape
        [R, ...] in the nesting of their spaces; `infos` is a list. For several agents a dict of such columns for each
        agent or module, with `agent_id` and `env_t` (the env step). There `eps_id` is that of the multi-agent episode,
        and `t` counts the agent's steps. Without any step the dict is empty.

    Raises:
        ColumnError: the episodes' columns differ in shape or nesting.
        ConfigError: another `by`.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="a", observations=[0, 1, 2], actions=[7, 8], rewards=[1.0, 2.0],
        ...                              terminated=True, len_lookback_buffer=0)
        >>> columns = episodes_to_columns([episode, episode])
        >>> columns["obs"].tolist(), columns["new_obs"].tolist(), columns["terminateds"].tolist()
        ([0, 1, 0, 1], [1, 2, 1, 2], [False, True, False, True])
    """
    if by not in _BY:
        raise ConfigError("episodes_to_columns, by", expected=f"one of {_BY}", found=repr(by), do=f"pass {_BY[0]!r}")
    if not any(isinstance(episode, MultiAgentEpisode) for episode in episodes):
        lengths = reader_of(episodes).lengths
        return _columns(episodes if lengths.all() else [episode for episode in episodes if len(episode)])
    groups: dict[Any, list[tuple[MultiAgentEpisode, AgentSegment]]] = {}
    for episode in episodes:
        for segment in episode.segments:
            if len(segment.episode):
                groups.setdefault(getattr(segment.episode, by), []).append((episode, segment))
    return {key: _columns_of_segments(group) for key, group in groups.items()}


def _columns(episodes: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of single-agent episodes, each with a step."""
    if not len(episodes):
        return {}
    reader = reader_of(episodes)
    lengths, flags = reader.lengths, np.zeros((2, reader.lengths.sum()), np.bool_)
    last = np.cumsum(lengths) - 1
    flags[:, last] = reader.ends
    return {
        Columns.OBS: reader.rows(Columns.OBS).joined(),
        Columns.NEXT_OBS: reader.rows(Columns.OBS, 1, lengths + 1).joined(),
        Columns.INFOS: [info for chunk in episodes for info in chunk.get_infos(slice(0, len(chunk)))],
        Columns.ACTIONS: reader.rows(Columns.ACTIONS).joined(),
        Columns.REWARDS: reader.rows(Columns.REWARDS).joined(),
        Columns.TERMINATEDS: flags[0],
        Columns.TRUNCATEDS: flags[1],
        Columns.T: np.arange(len(flags[0])) + np.repeat(reader.starts + lengths - 1 - last, lengths),
        Columns.EPS_ID: _repeated((chunk.id_ for chunk in episodes), lengths),
        **{name: reader.rows(name).joined() for name in reader.outputs},
    }


def _columns_of_segments(group: list[tuple[MultiAgentEpisode, AgentSegment]]) -> dict[str, Any]:
    chunks = [segment.episode for _, segment in group]
    lengths = np.array([len(chunk) for chunk in chunks])
    env_steps = (segment.env_steps[segment.episode.lookback :] for _, segment in group)
    return {
        **_columns(chunks),
        Columns.EPS_ID: _repeated((episode.id_ for episode, _ in group), lengths),
        Columns.AGENT_ID: _repeated((chunk.agent_id for chunk in chunks), lengths),
        "env_t": np.concatenate([steps[:length] for steps, length in zip(env_steps, lengths)]),
    }


def _repeated(values: Iterable[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return a value for each chunk as a column; objects unless all are strings or all are integers."""
    items = list(values)
    if {type(item) for item in items} in ({str}, {int}):
        return np.repeat(np.array(items), lengths)
    objects = np.empty(len(items), object)
    for i, item in enumerate(items):
        objects[i] = item
    return np.repeat(objects, lengths)
