"""An agent's lives in a multi-agent episode, and what waits for its next observation."""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.structs import map_struct

from .._storage.growing_column import NOTHING
from ..arrays import owned, same_value
from ..single_agent_episode import SingleAgentEpisode


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

    def over(self, env_t: int) -> bool:
        """True if it had ended at env step `env_t`."""
        return self.ended_at is not None and self.ended_at <= env_t

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

    def with_artificial_step(self, longer: SingleAgentEpisode) -> AgentSegment:
        """The same with a copy of its episode that has one step more, which ends one env step later."""
        return AgentSegment(longer, self.steps + array("q", [self.steps[-1] + 1]), self.ended_at)

    def extend(self, other: AgentSegment) -> None:
        """Add the steps of the same life in the chunk that follows."""
        single, following = self.episode, other.episode
        single.concat_episode(following)
        single.is_terminated, single.is_truncated = following.is_terminated, following.is_truncated
        self.steps.extend(other.steps[following.lookback + 1 :])
        self.ended_at = other.ended_at

    def get_state(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"episode": self.episode.get_state(), "env_steps": self.env_steps, "ended_at": self.ended_at}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> AgentSegment:
        """Rebuild it from `get_state()`."""
        steps = array("q", [int(env_t) for env_t in state["env_steps"]])
        return AgentSegment(SingleAgentEpisode.from_state(state["episode"]), steps, state["ended_at"])

    def equals(self, other: AgentSegment) -> bool:
        """True if another one holds the same."""
        same = self.steps == other.steps and self.ended_at == other.ended_at
        return same and self.episode.equals(other.episode)


class AgentRecord:
    """The record of one agent of a multi-agent episode.

    An agent's step is open from the observation that it acts on until its next observation. The action, model
    outputs, rewards and info that arrive in between are pending and stored here.

    Attributes:
        segments: Its segments in this chunk, one for each time it appeared.
        live: The last of them, if the agent has not ended.
        ready: The same, if nothing is pending.
        end: Its flags (terminated, truncated); None before it ends.
        action: The action of the open step, or NOTHING.
        extras: The model outputs that came with it.
        reward: Sum of the rewards since the newest observation; None if there were none.
        info: Info dict for the next observation, or None.
        orphan_reward: Sum of the rewards that came after the end of a segment, too late for any of its steps.
    """

    __slots__ = ("action", "end", "extras", "info", "live", "orphan_reward", "ready", "reward", "segments")

    def __init__(self) -> None:
        self.segments: list[AgentSegment] = []
        self.live: AgentSegment | None = None
        self.ready: AgentSegment | None = None
        self.end: tuple[bool, bool] | None = None
        self.action: Any = NOTHING
        self.extras: dict[str, Any] = {}
        self.reward: Any = None
        self.info: dict[str, Any] | None = None
        self.orphan_reward: Any = 0.0

    @property
    def has_appeared(self) -> bool:
        """True if the agent had an observation in this chunk or in an earlier one."""
        return bool(self.segments) or self.end is not None

    @property
    def pending_reward(self) -> Any:
        """All rewards that are in no step; None if there are none."""
        if not np.any(self.orphan_reward):
            return self.reward
        return self.orphan_reward if self.reward is None else self.reward + self.orphan_reward

    @property
    def no_reward(self) -> Any:
        """The reward of a step for which there came none: 0.0, or zeros if the agent's rewards are vectors."""
        rewards = None if self.live is None else self.live.episode.rewards
        last = rewards.last() if rewards is not None and rewards.len_incl_lookback() else 0.0
        return np.zeros_like(last) if np.ndim(last) else 0.0

    @property
    def output_keys(self) -> dict[str, None]:
        """The model outputs there are, those of the open step last."""
        keys = dict.fromkeys(key for segment in self.segments for key in segment.episode.extra_model_outputs)
        return {**keys, **dict.fromkeys(self.extras)}

    def fault(self, values: Mapping[str, Any]) -> tuple[str, str, str] | None:
        """Return the error of values that the agent cannot take now: expected, found, do; None if there is none.

        Args:
            values: Its observation, action, reward, info and (model) outputs of an env step, each or None.
        """
        observed, acted = values["observation"] is not None, values["action"] is not None
        if self.end is not None and not observed:
            late = ", ".join(name for name, value in values.items() if value is not None)
            expected = "nothing for an agent that has ended, unless a new observation lets it return"
            return (expected, late, "leave it out of what the environment returns after its end") if late else None
        if acted and self.live is None:
            return "an observation to act on", "an action without one", "let agents act that have an observation"
        if acted and self.action is not NOTHING:
            do = "let only agents act that get_agents_to_act() names"
            return "an observation after the action before", "a second action", do
        if acted and observed and values["reward"] is None:
            return "a reward for an agent that acted and observed", "none", "return one, 0.0 for nothing"
        if values["outputs"] and not acted:
            return "model outputs with the action they belong to", "outputs without an action", "pass them with it"
        if observed and not acted and self.live is not None and self.action is NOTHING:
            found = "a second observation for an agent that has not acted on the one before"
            return "an action after each observation", found, "return observations for the agents that act next"
        return None

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

    def pop_open_step(self) -> tuple[Any, dict[str, Any], Any]:
        """Action, model outputs and summed reward of the open step, which wait no longer."""
        step = self.action, self.extras, self.no_reward if self.reward is None else self.reward
        self.action, self.extras, self.reward = NOTHING, {}, None
        return step

    def take_info(self, info: dict[str, Any] | None) -> dict[str, Any] | None:
        """The info dict for an observation that came with `info`."""
        waiting, self.info = self.info, None
        return info if waiting is None else {**waiting, **(info or {})}

    def begin(self, segment: AgentSegment) -> None:
        """Let the agent live (again)."""
        self.segments.append(segment)
        self.live, self.end = segment, None

    def finish(self, terminated: bool, truncated: bool, env_t: int) -> None:
        """Let the agent end at env step `env_t`; rewards that are left are in none of its steps."""
        segment = self.live
        if segment is not None:
            segment.episode.is_terminated, segment.episode.is_truncated = terminated, truncated
            segment.ended_at = env_t
        self.live, self.end = None, (terminated, truncated)
        if self.reward is not None:
            self.orphan_reward, self.reward = self.orphan_reward + self.reward, None

    def snapshot(self) -> tuple[Any, ...]:
        """Return the values that `restore` takes."""
        rows = len(self.live.steps) if self.live else 0
        waiting = self.action, self.extras, self.reward, self.info, self.orphan_reward
        return len(self.segments), self.live, rows, self.end, waiting

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Be again as when the snapshot was taken, at most one env step ago."""
        count, self.live, rows, self.end, waiting = snapshot
        self.action, self.extras, self.reward, self.info, self.orphan_reward = waiting
        del self.segments[count:]
        if self.live is not None:
            if len(self.live.steps) > rows:
                self.live.steps.pop()
                self.live.episode.take_back_step()
            self.live.ended_at, self.live.repeats = None, False
            self.live.episode.is_terminated = self.live.episode.is_truncated = False
        self.settle()

    def sliced(self, begin: int, end: int, low: int, *, newest: bool) -> AgentRecord:
        """A copy of what is known of the agent at env step `end`, with its lives since `begin`.

        Args:
            begin: Env step at which the copy starts.
            end: Env step at which it stops.
            low: Steps that began here or later, and ended by `begin`, become lookback.
            newest: Whether `end` is the newest env step, so that all that waits here waits there.
        """
        out = AgentRecord()
        out.end = self.end if not self.segments else None
        for segment in self.segments:
            if segment.steps[0] > end:
                break
            out.end = None
            if not segment.over(begin):
                out.segments.append(segment.sliced(begin, end, low))
            if segment.over(end):
                out.end = segment.episode.is_terminated, segment.episode.is_truncated
            out.live = None if out.end is not None else out.segments[-1]
        if newest:
            out.copy_pending(self)
        elif out.live is not None:
            out.copy_pending(self._open_at(end))
        return out

    def _open_at(self, env_t: int) -> AgentRecord:
        """A record in which the step waits that was under way at env step `env_t`, with all that is known of it."""
        out = AgentRecord()
        segment = next(segment for segment in self.segments if segment.steps[0] <= env_t and not segment.over(env_t))
        row, single = segment.row_at(env_t), segment.episode
        if segment.steps[row] == env_t:
            return out
        if row < single.actions.len_incl_lookback():
            at = row - single.lookback
            out.action = single.actions.get(at, neg_index_as_lookback=True)
            out.reward = single.rewards.get(at, neg_index_as_lookback=True)
            outputs = single.extra_model_outputs.items()
            out.extras = {key: column.get(at, neg_index_as_lookback=True) for key, column in outputs}
        elif segment is self.live:
            out.action, out.extras, out.reward = self.action, self.extras, self.reward
        return out

    def with_artificial_steps(self, longer: Mapping[int, SingleAgentEpisode]) -> AgentRecord:
        """A copy with longer copies of some of the episodes, by the `id()` of those that they are of."""
        out = copy.copy(self)
        longer_of = [(segment, longer.get(id(segment.episode))) for segment in self.segments]
        out.segments = [old if new is None else old.with_artificial_step(new) for old, new in longer_of]
        if self.live is not None:
            out.live = out.segments[-1]
            out.settle()
        return out

    def extend(self, other: AgentRecord) -> None:
        """Add the agent's lives in the chunk that follows, and let wait what waits there."""
        for segment in other.segments:
            if self.live is not None and self.live.episode.id_ == segment.episode.id_:
                self.live.extend(segment)
            else:
                self.segments.append(segment.copied())
            self.live = None if segment.ended_at is not None else self.segments[-1]
        self.end = other.end
        self.copy_pending(other)

    def copy_pending(self, other: AgentRecord) -> None:
        """Let wait here what waits there."""
        self.action = other.action if other.action is NOTHING else owned(other.action)
        self.extras = {key: owned(row) for key, row in other.extras.items()}
        self.reward, self.orphan_reward = other.reward, other.orphan_reward
        self.info = copy.deepcopy(other.info)
        self.settle()

    def get_state(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "born": self.has_appeared,
            "end": None if self.end is None else list(self.end),
            "action": [] if self.action is NOTHING else [owned(self.action)],
            "extra_model_outputs": {key: owned(row) for key, row in self.extras.items()},
            "reward": self.reward,
            "left_over": self.orphan_reward,
            "infos": copy.deepcopy(self.info),
            "segments": [segment.get_state() for segment in self.segments],
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> AgentRecord:
        """Rebuild it from `get_state()`."""
        record = AgentRecord()
        record.segments = [AgentSegment.from_state(segment) for segment in state["segments"]]
        record.end = None if state["end"] is None else (bool(state["end"][0]), bool(state["end"][1]))
        record.live = record.segments[-1] if record.segments and record.end is None else None
        record.action = map_struct(owned, state["action"][0]) if state["action"] else NOTHING
        record.extras = {key: owned(row) for key, row in state["extra_model_outputs"].items()}
        record.reward, record.orphan_reward = state["reward"], state["left_over"]
        record.info = copy.deepcopy(state["infos"])
        record.settle()
        return record

    def equals(self, other: AgentRecord) -> bool:
        """True if another one holds the same."""
        if len(self.segments) != len(other.segments):
            return False
        waiting = [
            (r.end, r.action, r.extras, 0.0 if r.reward is None else r.reward, r.info, r.orphan_reward)
            for r in (self, other)
        ]
        return same_value(*waiting) and all(left.equals(right) for left, right in zip(self.segments, other.segments))
