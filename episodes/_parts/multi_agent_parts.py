"""Parts of multi-agent episodes and how they are joined: cutting, slicing, concatenating."""

from __future__ import annotations

import copy
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from epibatch.core.errors import EpisodeError, EpisodeStateError, NotAvailableError, add_context

from .._storage.buffer_source import NOTHING
from .agent_segment import AgentRecord, AgentSegment
from .episode_arguments import check_steps
from .episode_parts import check_continues

if TYPE_CHECKING:
    from ..multi_agent_episode import MultiAgentEpisode

__all__ = ["cut_episode", "join_episode", "slice_episode"]


def cut_episode(episode: MultiAgentEpisode, len_lookback_buffer: int, agent_steps: int = 0) -> MultiAgentEpisode:
    """The chunk that goes on where `episode` stops (see `MultiAgentEpisode.cut`)."""
    if episode.is_done or not episode.is_reset:
        raise EpisodeStateError(
            f"episode {episode.id_}, cut",
            expected="a running episode",
            found=f"one that ended at env step {episode.env_t}" if episode.is_done else "one that was not reset",
            do="cut only episodes that go on",
        )
    wanted = check_steps(len_lookback_buffer, "len_lookback_buffer", episode.id_)
    own = check_steps(agent_steps, "agent_steps", episode.id_)
    living = [record.live for record in episode._agents.values() if record.live is not None]
    if wanted:
        acted = [record.action is not NOTHING for record in episode._agents.values() if record.live is not None]
        waiting = [segment for segment, waits in zip(living, acted) if waits]
        wanted = max([wanted, *(_reach_of_open_step(segment, episode.env_t, wanted) for segment in waiting)])
    chunk = _part(episode, episode.env_t, _reach(episode, episode.env_t, wanted, living, own))
    low = chunk.env_t_started - chunk.lookback
    for agent, record in episode._agents.items():
        successor = record.successor()
        if record.live is not None:
            successor.segments = [record.live.cut(low)]
            successor.live = successor.segments[0]
        successor.settle()
        chunk._agents[agent] = successor
    chunk.env_t = episode.env_t
    chunk._past = _past(episode, episode.env_t, low)
    return chunk


def _reach_of_open_step(segment: AgentSegment, at: int, wanted: int) -> int:
    """Env steps from `at` back to the newest observation that is `wanted` - 1 env steps old or older; 0 if none is.

    RLlib reaches as far back for an agent that acted and waits for its next observation.
    """
    row = bisect_right(segment.steps, at - wanted + 1) - 1
    return at - segment.steps[row] if row >= 0 else 0


def _past(episode: MultiAgentEpisode, at: int, low: int) -> list[AgentSegment]:
    """Copies of what lives that were over at env step `at` hold from env step `low` on."""
    lives = [s for s in (*episode._past, *episode.segments) if _over(s, at) and s.steps[-1] >= low]
    return [segment.sliced(at, at, low) for segment in lives]


def _reach(episode: MultiAgentEpisode, at: int, wanted: int, living: list[AgentSegment], own: int = 0) -> int:
    """The lookback at env step `at`: no more than there is, and back to the newest observation of each living agent.

    Args:
        episode: what is cut.
        at: env step of the cut.
        wanted: env steps to keep.
        living: the agents that go on.
        own: steps of its own that each of them keeps, as far as there are; and what happened to the others as many
            env steps before its newest observation.
    """
    rows = [segment.row_at(at) for segment in living]
    newest = [at - segment.steps[max(row - own, 0)] for row, segment in zip(rows, living)]
    others = [at - segment.steps[row] + own for row, segment in zip(rows, living)] if own else []
    held = episode.lookback + at - episode.env_t_started
    return max([min(max([wanted, *others]), held), *newest])


def _part(episode: MultiAgentEpisode, env_t_started: int, lookback: int) -> MultiAgentEpisode:
    """An episode of the same name without agents, which starts at an env step."""
    part = type(episode)(
        episode.id_,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )
    part.agent_to_module_mapping_fn = episode.agent_to_module_mapping_fn  # a restored one may have none
    part._modules = dict(episode._modules)
    part._custom_data = copy.deepcopy(episode._custom_data)
    part._was_reset = episode._was_reset
    part._start_time, part._last_step_time = episode._start_time, episode._last_step_time
    part.env_t = part.env_t_started = env_t_started
    part.lookback = lookback
    return part


def slice_episode(episode: MultiAgentEpisode, slice_: slice, len_lookback_buffer: int | None) -> MultiAgentEpisode:
    """Copies of a range of env steps (see `MultiAgentEpisode.slice`)."""
    if slice_.step not in (None, 1):
        raise NotAvailableError(
            f"episode {episode.id_}, slice",
            expected="step 1: agents act at different env steps, so there is no every k-th step",
            found=repr(slice_),
            do="slice the agents' single-agent episodes, or ask a getter for every k-th env step",
        )
    start, stop, _ = slice_.indices(len(episode))
    stop = max(start, stop)
    begin, end = episode.env_t_started + start, episode.env_t_started + stop
    wanted = episode.lookback
    if len_lookback_buffer is not None:
        wanted = check_steps(len_lookback_buffer, "len_lookback_buffer", episode.id_)
    living = [s for s in episode.segments if s.steps[0] <= begin and not _over(s, begin)]
    part = _part(episode, begin, _reach(episode, begin, wanted, living))
    part.env_t = end
    part._past = _past(episode, begin, begin - part.lookback)
    at_end = stop == len(episode)
    for agent, record in episode._agents.items():
        sliced = _slice_record(record, begin, end, begin - part.lookback)
        if at_end:
            sliced.take_over(record)
        elif sliced.live is not None:
            _open_step(record, sliced, end)
        sliced.settle()
        part._agents[agent] = sliced
    if at_end:
        part.is_terminated, part.is_truncated = episode.is_terminated, episode.is_truncated
    return part


def _over(segment: AgentSegment, env_t: int) -> bool:
    return segment.ended_at is not None and segment.ended_at <= env_t


def _slice_record(record: AgentRecord, begin: int, end: int, low: int) -> AgentRecord:
    """What is known of an agent at env step `end` of its lives since `begin`."""
    out = AgentRecord()
    out.end = record.end if not record.segments else None
    out.born = out.end is not None
    for segment in record.segments:
        if segment.steps[0] > end:
            break
        out.born = True
        if not _over(segment, begin):
            out.segments.append(segment.sliced(begin, end, low))
        out.end = _end_of(segment) if _over(segment, end) else None
        out.live = None if out.end is not None else out.segments[-1]
    return out


def _end_of(segment: AgentSegment) -> tuple[bool, bool]:
    return segment.episode.is_terminated, segment.episode.is_truncated


def _open_step(record: AgentRecord, sliced: AgentRecord, end: int) -> None:
    """Let the step wait that was under way at env step `end`, with all that is known of it."""
    segment = next(one for one in record.segments if one.steps[0] <= end and not _over(one, end))
    row = segment.row_at(end)
    if segment.steps[row] == end:
        return
    single, waiting = segment.episode, AgentRecord()
    if row < single.actions.len_incl_lookback():
        at = row - single.lookback
        waiting.action = single.actions.get(at, neg_index_as_lookback=True)
        waiting.reward = single.rewards.get(at, neg_index_as_lookback=True)
        outputs = single.extra_model_outputs.items()
        waiting.extras = {key: column.get(at, neg_index_as_lookback=True) for key, column in outputs}
    elif segment is record.live:
        waiting.action, waiting.extras, waiting.reward = record.action, record.extras, record.reward
    sliced.take_over(waiting)


def join_episode(episode: MultiAgentEpisode, other: Any) -> None:
    """Add the chunk that follows (see `MultiAgentEpisode.concat_episode`)."""
    _check_continues(episode, other)
    for agent, record in other._agents.items():
        mine = episode._agents.setdefault(agent, AgentRecord())
        for segment in record.segments:
            live = mine.live
            if live is not None and live.episode.id_ == segment.episode.id_:
                single = live.episode
                single.concat_episode(segment.episode)
                single.is_terminated, single.is_truncated = segment.episode.is_terminated, segment.episode.is_truncated
                live.steps.extend(segment.steps[segment.episode.lookback + 1 :])
                live.ended_at = segment.ended_at
            else:
                mine.segments.append(segment.copied())
            mine.live = None if segment.ended_at is not None else mine.segments[-1]
        if record.born and not mine.born:
            episode._agents[agent] = episode._agents.pop(agent)  # in the order of their appearance
        mine.born, mine.end = mine.born or record.born, record.end
        mine.take_over(record)
    episode._modules = {**other._modules, **episode._modules}
    episode.env_t = other.env_t
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._custom_data.update(other.custom_data)
    episode._last_step_time = other._last_step_time or episode._last_step_time


def _check_continues(episode: MultiAgentEpisode, other: Any) -> None:
    where = f"episode {episode.id_}, concat_episode"
    if not isinstance(other, type(episode)):
        found = f"{type(other).__name__} {other!r}"
        do = "pass a MultiAgentEpisode"
        raise EpisodeError(where, expected="the chunk that follows", found=found, do=do)
    lives = {record.live.episode.id_: agent for agent, record in episode._agents.items() if record.live is not None}
    taken = {s.episode.id_ for s in other.segments if s.steps[0] <= other.env_t_started}
    lost = [agent for id_, agent in lives.items() if id_ not in taken]
    tests = (
        (not episode.is_done, "a running episode", f"one that ended at env step {episode.env_t}"),
        (episode.id_ == other.id_, f"a chunk of episode {episode.id_}", f"one of {other.id_}"),
        (
            episode.env_t == other.env_t_started,
            f"a chunk that starts at env step {episode.env_t}",
            f"env step {other.env_t_started}",
        ),
        (not lost, f"a chunk in which agents {lost} go on", "one without them"),
    )
    for ok, expected, found in tests:
        if not ok:
            do = "concatenate chunks in order, as cut() made them"
            raise EpisodeStateError(where, expected=expected, found=found, do=do)
    for agent, record in other._agents.items():
        mine = episode._agents.get(agent)
        if mine is not None and mine.live is not None and record.segments:
            try:
                check_continues(mine.live.episode, record.segments[0].episode)
            except EpisodeError as error:
                add_context(error, f"{where}, agent {agent!r}:")
                raise
