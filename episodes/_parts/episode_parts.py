"""Parts of episodes and how they are joined: cutting, slicing, concatenating."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import EpisodeError, EpisodeStateError
from epibatch.core.structs import flatten, flatten_like

from .._storage.infos_buffer import InfosBuffer
from ..infinite_lookback_buffer import InfiniteLookbackBuffer
from .episode_arguments import check_steps

if TYPE_CHECKING:
    from ..single_agent_episode import SingleAgentEpisode

__all__ = ["check_continues", "cut_episode", "join_episode", "slice_episode"]


def cut_episode(episode: SingleAgentEpisode, len_lookback_buffer: int) -> SingleAgentEpisode:
    """The chunk that goes on where `episode` stops (see `SingleAgentEpisode.cut`)."""
    where = f"episode {episode.id_}, cut"
    if episode.is_done or not episode.is_reset:
        raise EpisodeStateError(
            where,
            expected="a running episode",
            found=f"one that ended at t={episode.t}" if episode.is_done else "one that was not reset",
            do="cut only episodes that go on",
        )
    total = episode.rewards.len_incl_lookback()
    keep = min(check_steps(len_lookback_buffer, "len_lookback_buffer", episode.id_), total)
    chunk = _part(episode, range(total - keep, total), total, keep)
    chunk.t_started = episode.t
    chunk._return_before = episode.return_before + episode._sum(0, len(episode))
    return chunk


def slice_episode(episode: SingleAgentEpisode, slice_: slice, len_lookback_buffer: int | None) -> SingleAgentEpisode:
    """Copies of a range of steps (see `SingleAgentEpisode.slice`)."""
    length, lookback = len(episode), episode.lookback
    start, stop, step = slice_.indices(length)
    if step > 0:
        stop = max(start, stop)
    else:
        start = stop = max(start, 0)  # before the first step where there is none
        step = 1
    wanted = lookback
    if len_lookback_buffer is not None:
        wanted = check_steps(len_lookback_buffer, "len_lookback_buffer", episode.id_)
    begin, end = lookback + start, lookback + stop
    keep = min(wanted, begin)
    rows: range | list[int] = range(begin - keep, end)
    if step > 1:
        rows = [*range(begin - keep, begin), *range(begin, end, step)]
    part = _part(episode, rows, end, keep)
    part.t_started = episode.t_started + start
    part._return_before = episode.return_before + episode._sum(0, start)
    if stop == length:
        part.is_terminated, part.is_truncated = episode.is_terminated, episode.is_truncated
    return part


def _part(episode: SingleAgentEpisode, steps: range | list[int], end: int, keep: int) -> SingleAgentEpisode:
    """Copies of absolute steps and of the observation `end` after them, the first `keep` as lookback."""
    part = type(episode).__new__(type(episode))
    part._set_identity(episode.id_, episode.agent_id, episode.module_id, episode.multi_agent_episode_id)
    part._custom_data = copy.deepcopy(episode._custom_data) if episode._custom_data else {}
    part.is_terminated = part.is_truncated = False
    part._given_observation_space, part._given_form = episode._given_observation_space, episode._given_form
    part._start_time, part._last_step_time = episode._start_time, episode._last_step_time
    held = episode.infos.len_incl_lookback()
    rows: range | list[int] = range(0)
    if isinstance(steps, range):
        rows = range(steps.start, end + 1 if held else steps.start)
    else:
        rows = [*steps, end]
    part.observations = episode.observations.copy_rows(rows, keep)
    part.infos = InfosBuffer(_infos(episode, rows), keep)
    part.actions = episode.actions.copy_rows(steps, keep)
    part.rewards = episode.rewards.copy_rows(steps, keep)
    part.extra_model_outputs = {
        key: column.copy_rows(steps, keep) for key, column in episode.extra_model_outputs.items()
    }
    return part


def _infos(episode: SingleAgentEpisode, rows: range | list[int]) -> list[Any]:
    infos = episode.infos
    return infos.for_copy(rows) if type(infos) is InfosBuffer else infos._rows(rows)


def join_episode(episode: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    """Add the steps of the chunk that follows (see `SingleAgentEpisode.concat_episode`)."""
    if not hasattr(other, "get_observations"):
        raise EpisodeError(
            f"episode {episode.id_}, concat_episode",
            expected="the chunk that follows",
            found=f"{type(other).__name__} {other!r}",
            do="pass a SingleAgentEpisode",
        )
    check_continues(episode, other)
    if type(episode.infos) is not InfosBuffer:
        episode.own_columns()
    episode.infos.pop()
    episode.infos.extend(_infos(other, range(other.infos.lookback, other.infos.len_incl_lookback())))
    if len(other):
        _join_columns(episode, other)
    episode.is_terminated = other.is_terminated
    episode.is_truncated = other.is_truncated and not other.is_terminated
    episode._custom_data.update(other.custom_data)
    episode._last_step_time = other._last_step_time or episode._last_step_time
    episode.validate()


def _join_columns(episode: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    if not episode.rewards.len_incl_lookback():
        episode.extra_model_outputs = {key: InfiniteLookbackBuffer() for key in other.extra_model_outputs}
        episode.t_started = episode.t_started
    episode.observations.drop_last()
    episode.observations.concat(other.observations)
    episode.actions.concat(other.actions)
    episode.rewards.concat(other.rewards)
    for key, column in other.extra_model_outputs.items():
        episode.extra_model_outputs[key].concat(column)


def check_continues(episode: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    """Check that a chunk can be joined to another one.

    Raises:
        EpisodeStateError: it does not go on where the other one stops.
        ColumnError: its rows are nested differently.
    """
    tests = (
        (not episode.is_done, "a running episode", f"one that ended at t={episode.t}"),
        (episode.id_ == other.id_, f"a chunk of episode {episode.id_}", f"one of {other.id_}"),
        (episode.t == other.t_started, f"a chunk that starts at t={episode.t}", f"t={other.t_started}"),
        (episode.is_reset and other.is_reset, "chunks with observations", "one without"),
    )
    failed = next(((expected, found) for ok, expected, found in tests if not ok), None)
    if failed is None and not _equal(episode.get_observations(-1), other.get_observations(0)):
        failed = "the observation this chunk ends with", "another first observation"
    if failed is None and len(other) and episode.rewards.len_incl_lookback():
        mine, yours = sorted(episode.extra_model_outputs), sorted(other.extra_model_outputs)
        if mine != yours:
            failed = f"model outputs {mine}", str(yours)
    if failed is not None:
        raise EpisodeStateError(
            f"episode {episode.id_}, concat_episode",
            expected=failed[0],
            found=failed[1],
            do="concatenate chunks in order, as cut() made them",
        )
    if len(other):
        _check_nesting(episode, other)


def _check_nesting(episode: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    pairs = [(episode.actions, other.actions), (episode.rewards, other.rewards)]
    theirs = other.extra_model_outputs
    pairs += [(column, theirs[key]) for key, column in episode.extra_model_outputs.items() if key in theirs]
    if episode.observations.len_incl_lookback() > 1:
        pairs.append((episode.observations, other.observations))
    for mine, yours in pairs:
        if mine.len_incl_lookback():
            flatten_like(mine.form, yours.get(slice(0, 1)))


def _equal(a: Any, b: Any) -> bool:
    (mine, form), (yours, other) = flatten(a), flatten(b)
    return form == other and all(np.array_equal(x, y) for x, y in zip(mine, yours))
