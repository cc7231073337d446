"""An agent's lives in a multi-agent episode, and what waits for its next observation."""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from .._storage.arrays import owned
from .._storage.buffer_source import NOTHING
from ..single_agent_episode import SingleAgentEpisode
from .episode_steps import take_back_step

__all__ = ["AgentRecord", "AgentSegment"]


class AgentSegment:
    """One life of an agent: a single-agent episode, and the env step of each of its observations.

    Args:
        episode: What the agent saw, did and got.
        steps: Env steps of its observations, lookback included, in ascending order.

    Attributes:
        ended_at: The env step at which the agent ended; None while it lives.
        repeats: Whether its newest observation is the one before again, as it ended without one.
    """

    __slots__ = ("ended_at", "episode", "repeats", "steps")

    def __init__(self, episode: SingleAgentEpisode, steps: array[int], ended_at: int | None = None) -> None:
        self.episode = episode
        self.steps = steps
        self.ended_at = ended_at
        self.repeats = False

    @property
    def agent_id(self) -> Any:
        """The agent."""
        return self.episode.agent_id

    @property
    def env_steps(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Env steps of the observations, lookback included: int64, shape [rows]; action i follows observation i."""
        return np.array(self.steps, np.int64)

    def row_at(self, env_t: int) -> int:
        """The newest row observed at env step `env_t` or before; -1 if there is none."""
        return bisect_right(self.steps, env_t) - 1

    def cut(self, low: int) -> AgentSegment:
        """What goes on behind a cut, with the steps that began at env step `low` or later as lookback."""
        newest = len(self.steps) - 1
        first = min(bisect_left(self.steps, low), newest)
        return AgentSegment(self.episode.cut(newest - first), self.steps[first:])

    def sliced(self, begin: int, end: int, low: int) -> AgentSegment:
        """A copy of the steps that ended after env step `begin` and until `end`.

        Args:
            begin: Env step at which the copy starts.
            end: Env step at which it stops; the agent was there by then.
            low: Steps that began here or later, and ended by `begin`, become lookback.
        """
        start = max(self.row_at(begin), 0)
        stop = self.row_at(end)
        first = min(bisect_left(self.steps, low), start)
        offset = self.episode.lookback
        part = self.episode.slice(slice(start - offset, stop - offset), len_lookback_buffer=start - first)
        ended_at = self.ended_at
        if ended_at is None or ended_at > end:
            ended_at, part.is_terminated, part.is_truncated = None, False, False
        return AgentSegment(part, self.steps[first : stop + 1], ended_at)

    def copied(self) -> AgentSegment:
        """The same in arrays of its own."""
        part = self.episode.slice(slice(None), len_lookback_buffer=self.episode.lookback)
        return AgentSegment(part, self.steps[:], self.ended_at)

    def equals(self, other: AgentSegment) -> bool:
        """Whether another one holds the same."""
        same = self.steps == other.steps and self.ended_at == other.ended_at
        return same and self.episode.equals(other.episode)


class AgentRecord:
    """What a multi-agent episode knows about one agent.

    An agent's step is open from the observation on that it acts on until the next one. What comes in the meantime
    (action, model outputs, rewards, info) waits here.

    Attributes:
        segments: Its lives in this chunk.
        live: The last of them, if the agent has not ended.
        ready: The same, if nothing waits.
        born: Whether the agent had an observation in this chunk or in an earlier one.
        end: How it ended, (terminated, truncated); None while it lives and before it is born.
        action: The action of the open step, or NOTHING.
        extras: The model outputs that came with it.
        reward: Sum of the rewards since the newest observation; None if there were none.
        info: Info dict for the next observation, or None.
        left_over: Sum of the rewards that came too late for any step of a life that is over.
    """

    __slots__ = ("action", "born", "end", "extras", "info", "left_over", "live", "ready", "reward", "segments")

    def __init__(self) -> None:
        self.segments: list[AgentSegment] = []
        self.live: AgentSegment | None = None
        self.ready: AgentSegment | None = None
        self.born = False
        self.end: tuple[bool, bool] | None = None
        self.action: Any = NOTHING
        self.extras: dict[str, Any] = {}
        self.reward: Any = None
        self.info: dict[str, Any] | None = None
        self.left_over: Any = 0.0

    @property
    def pending_reward(self) -> Any:
        """All rewards that are in no step; None if there are none."""
        if self.reward is None:
            return self.left_over or None
        return self.reward + self.left_over if self.left_over else self.reward

    def settle(self) -> None:
        """Note whether anything waits."""
        waits = self.action is not NOTHING or self.reward is not None or self.info is not None
        self.ready = None if waits else self.live

    def add_reward(self, reward: Any) -> None:
        """Let a reward wait for the end of the open step, or of the next one."""
        self.reward = reward if self.reward is None else self.reward + reward

    def add_info(self, info: dict[str, Any]) -> None:
        """Let an info dict wait for the next observation; newer entries replace older ones."""
        self.info = {**(self.info or {}), **info}

    def take_open(self) -> tuple[Any, dict[str, Any], Any]:
        """Action, model outputs and summed reward of the open step, which wait no longer."""
        taken = self.action, self.extras, 0.0 if self.reward is None else self.reward
        self.action, self.extras, self.reward = NOTHING, {}, None
        return taken

    def take_info(self, info: dict[str, Any] | None) -> dict[str, Any] | None:
        """The info dict for an observation that came with `info`."""
        waiting, self.info = self.info, None
        return info if waiting is None else {**waiting, **(info or {})}

    def begin(self, segment: AgentSegment) -> None:
        """Let the agent live (again)."""
        self.segments.append(segment)
        self.live, self.born, self.end = segment, True, None

    def finish(self, terminated: bool, truncated: bool, env_t: int) -> None:
        """Let the agent end at env step `env_t`; rewards that are left are in none of its steps."""
        segment = self.live
        if segment is not None:
            segment.episode.is_terminated, segment.episode.is_truncated = terminated, truncated
            segment.ended_at = env_t
        self.live, self.end = None, (terminated, truncated)
        if self.reward is not None:
            self.left_over, self.reward = self.left_over + self.reward, None

    def snapshot(self) -> tuple[Any, ...]:
        """What `restore` needs."""
        rows = len(self.live.steps) if self.live else 0
        waiting = self.action, self.extras, self.reward, self.info, self.left_over
        return len(self.segments), self.live, rows, self.born, self.end, waiting

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Be again as when the snapshot was taken, at most one env step ago."""
        count, self.live, rows, self.born, self.end, waiting = snapshot
        self.action, self.extras, self.reward, self.info, self.left_over = waiting
        del self.segments[count:]
        if self.live is not None:
            if len(self.live.steps) > rows:
                self.live.steps.pop()
                take_back_step(self.live.episode)
            self.live.ended_at, self.live.repeats = None, False
            self.live.episode.is_terminated = self.live.episode.is_truncated = False
        self.settle()

    def successor(self) -> AgentRecord:
        """What waits, and whether the agent lived, without its lives."""
        record = AgentRecord()
        record.born, record.end = self.born, self.end
        record.take_over(self)
        return record

    def take_over(self, other: AgentRecord) -> None:
        """Let wait here what waits there."""
        self.action = other.action if other.action is NOTHING else owned(other.action)
        self.extras = {key: owned(row) for key, row in other.extras.items()}
        self.reward, self.left_over = other.reward, other.left_over
        self.info = copy.deepcopy(other.info)
        self.settle()
