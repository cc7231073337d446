"""Episodes of several agents in one environment, from a reset to an end or to the last step taken."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from epibatch.core.errors import (
    EpibatchError,
    EpisodeError,
    EpisodeIndexError,
    EpisodeStateError,
    NotAvailableError,
    SpaceError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.space_dicts import space_from_dict, space_to_dict

from ._parts.agent_column import OF_OBSERVATIONS, AgentColumn, RowRequest
from ._parts.agent_segment import AgentRecord, AgentSegment
from ._parts.arguments import as_info, as_reward, check_space, check_state, check_steps, fresh_id
from ._parts.common_infos import CommonInfos, common_info_of, common_rows_to_write, read_common
from ._parts.env_step import COMMON, EnvStep
from ._parts.episode import Episode
from ._storage.growing_column import NOTHING
from ._storage.infos_buffer import InfosBuffer
from .arrays import make_writable, owned, same_value
from .indexing import Indices, note_history
from .single_agent_episode import SingleAgentEpisode

__all__ = ["MultiAgentEpisode"]

_ALL = "__all__"
_NONE: dict[Any, Any] = {}
_PLAIN = ("id_", "env_t_started", "env_t", "lookback", "is_terminated", "is_truncated")
_EQUAL = (*_PLAIN, "is_reset", "custom_data", "_common_infos")
_STATE = (
    *(*_PLAIN, "is_reset", "observation_space", "action_space", "own_mapping_fn", "modules", "agents", "custom_data"),
    "duration_s",
)


def map_to_default(agent_id: Any, episode: Any, **_: Any) -> str:
    """Map every agent to the module "default_policy"."""
    return "default_policy"


class MultiAgentEpisode(Episode):
    """The episode of an environment with several agents, or a chunk of it.

    Each agent has a single-agent episode, and its observations have env steps: an agent need not observe or act in
    every one. A step of an agent's own goes from an observation, which it acts on, to its next one, and all rewards
    between them are its reward. Until then action, model outputs and rewards are pending. An agent that ended comes
    back with a new observation, and has a second single-agent episode then. All dicts by agent are in the order in
    which the agents first had an observation.

    Every getter takes an int (one row), a slice or a list of ints (stacked rows), or None (the whole chunk), and gives
    a dict from agent to rows. Agents without a row there are not in it. Non-negative indices count from the chunk's
    start, negative ones from the end, or from the chunk's start backwards with `neg_index_as_lookback`. An action, its
    reward and its model outputs are at the env step of the observation they follow; those of an open step come last.

    With `env_steps=False` indices are those of each agent's latest single-agent episode. With `fill`, agents have a
    row of that value where they have none. With `return_list`, there is a dict of single rows for each env step.
    Setters take what the getter with the same indices gives.

    Args:
        id_: Name of the episode; chunks of one episode share it. Default: a random hex string.
        observations: T+1 dicts from agent to observation, one per env step; default: none, as before `add_env_reset`.
        observation_space: A dict (or Dict space) with each agent's observation space.
        infos: T+1 dicts from agent to info dict, and from `__common__` to one that belongs to no agent.
        actions: T dicts from agent to action.
        action_space: A dict (or Dict space) with each agent's action space.
        rewards: T dicts from agent to reward.
        terminateds: Which agents the environment has ended; a bool, or the key `__all__`, is for all of them.
        truncateds: Which agents were cut off by a limit, in the same way.
        extra_model_outputs: T dicts from agent to a dict of its module's other outputs.
        env_t_started: Env step of the whole episode at which this chunk starts. Default: 0.
        agent_t_started: For each agent the step of its own at which this chunk starts. Default: 0.
        len_lookback_buffer: How many of the given env steps are lookback, clamped to those there are; "auto" takes all
            of them, so that the chunk itself starts empty (RLlib's default).
        agent_episode_ids: Names of the agents' single-agent episodes. Default: random ones.
        agent_module_ids: Modules of agents that are mapped already.
        agent_to_module_mapping_fn: Called with an agent and this episode when the agent appears; gives its module's
            id. Default: "default_policy" for all.

    Attributes:
        records: The record of each agent, in the order of appearance: its segments and pending values.

    Raises:
        EpisodeError: columns whose lengths do not fit one another, or that no environment could give.
        SpaceError: spaces that are not by agent, or an observation that does not fit its agent's.

    Examples:
        >>> episode = MultiAgentEpisode()
        >>> episode.add_env_reset(observations={"a": 0.0, "b": 10.0})
        >>> episode.add_env_step({"a": 1.0}, {"a": 0, "b": 1}, {"a": 0.5, "b": 0.25})
        >>> episode.add_env_step({"b": 12.0}, {"a": 1}, {"b": 0.5}, terminateds={"b": True})
        >>> episode.get_rewards(), episode.pending_actions
        ({'a': array([0.5, 0. ]), 'b': array([0.75])}, {'a': 1})
    """

    SKIP_ENV_TS_TAG = "S"

    checks_actions = True
    """False where actions come through pieces, which may store others than their space has."""

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[Mapping[Any, Any]] | None = None,
        observation_space: Any = None,
        infos: Sequence[Mapping[Any, Any]] | None = None,
        actions: Sequence[Mapping[Any, Any]] | None = None,
        action_space: Any = None,
        rewards: Sequence[Mapping[Any, Any]] | None = None,
        terminateds: Mapping[Any, bool] | bool = False,
        truncateds: Mapping[Any, bool] | bool = False,
        extra_model_outputs: Sequence[Mapping[Any, Any]] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[Any, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_episode_ids: Mapping[Any, str] | None = None,
        agent_module_ids: Mapping[Any, Any] | None = None,
        agent_to_module_mapping_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.id_ = id_ or fresh_id()
        self.agent_to_module_mapping_fn: Callable[..., Any] | None = agent_to_module_mapping_fn or map_to_default
        self.observation_space = _spaces(observation_space, "observation_space", self.id_)
        self.action_space = _spaces(action_space, "action_space", self.id_)
        self.env_t = self.env_t_started = check_steps(env_t_started or 0, "env_t_started", self.id_)
        self.lookback = 0
        self.is_terminated = self.is_truncated = False
        self._modules: dict[Any, Any] = dict(agent_module_ids or {})
        self._given_ids: dict[Any, str] = dict(agent_episode_ids or {})
        self.records: dict[Any, AgentRecord] = {}
        self._past: list[AgentSegment] = []
        self._custom_data: dict[str, Any] = {}
        self._common_infos: CommonInfos = {}
        self._was_reset = False
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        columns = {
            "observations": observations,
            "infos": infos,
            "actions": actions,
            "rewards": rewards,
            "extra_model_outputs": extra_model_outputs,
        }
        flags = [f if isinstance(f, Mapping) else {_ALL: f} if f else {} for f in (terminateds, truncateds)]
        if any(rows is not None for rows in columns.values()) or any(flags):
            self._add_given(columns, len_lookback_buffer, agent_t_started or {})
        if any(flags):
            self._end_given(*flags)

    def _add_given(
        self, columns: dict[str, Sequence[Any] | None], lookback: Any, agent_t_started: Mapping[Any, int]
    ) -> None:
        """Add the steps that the constructor was given, the first `lookback` of them before the chunk's start."""
        lists = {name: list(rows or ()) for name, rows in columns.items()}
        steps = len(lists["rewards"])
        self._check_lengths(lists)
        lookback = steps if lookback == "auto" else check_steps(lookback, "len_lookback_buffer", self.id_)
        self.lookback = min(lookback, steps)
        self.env_t = self.env_t_started - self.lookback
        if columns["observations"] is not None:
            observations, infos = lists["observations"], lists["infos"] or [{}] * len(lists["observations"])
            self._add_first_observations(observations[0], infos[0])
            self._was_reset = True
            for t in range(steps):
                observed, info = (observations[t + 1], infos[t + 1]) if t + 1 < len(observations) else ({}, {})
                outputs = lists["extra_model_outputs"][t] if lists["extra_model_outputs"] else {}
                self._add_step(EnvStep(observed, lists["actions"][t], lists["rewards"][t], info or {}, {}, {}, outputs))
        for segment in self.segments:
            single, keep = segment.episode, max(segment.row_at(self.env_t_started), 0)
            outputs = single.extra_model_outputs.values()
            for column in (single.observations, single.infos, single.actions, single.rewards, *outputs):
                column.lookback = keep
            if segment.steps[0] <= self.env_t_started:
                single.t_started = check_steps(agent_t_started.get(segment.agent_id, 0), "agent_t_started", self.id_)

    def _check_lengths(self, lists: dict[str, list[Any]]) -> None:
        count, steps = len(lists["observations"]), len(lists["rewards"])
        found = {name: len(rows) for name, rows in lists.items()}
        fits = (
            (count in (steps + 1, steps) if steps else count <= 1)
            and found["actions"] == steps
            and found["extra_model_outputs"] in (0, steps)
            and found["infos"] in (0, count)
        )
        if not fits:
            raise EpisodeError(
                f"episode {self.id_} with {steps} rewards",
                expected=f"{steps} dicts of actions (and model outputs), {steps + 1} of observations (and infos)",
                found=", ".join(f"{rows} of {name}" for name, rows in found.items()),
                do="give lists with a dict by agent for each env step",
            )

    def _end_given(self, terminateds: Mapping[Any, Any], truncateds: Mapping[Any, Any]) -> None:
        """Let agents end with what they were given last."""
        step = EnvStep({}, {}, {}, {}, terminateds, truncateds, {})
        step.check(f"episode {self.id_}")
        step.find_ends(self._live_agents(), self.id_)
        self.env_t -= 1
        for agent, end in step.ends.items():
            record = self._record(agent)
            segment = record.live
            if segment is not None:
                self._end(agent, record, end)
                segment.ended_at = segment.steps[-1]
            record.settle()
        self.env_t += 1
        self._note_end(step)

    # -- growing -------------------------------------------------------------------------------

    def add_env_reset(self, *, observations: Mapping[Any, Any], infos: Mapping[Any, Any] | None = None) -> None:
        """Start the episode.

        Args:
            observations: From agent to reset observation; agents may be missing, and come later.
            infos: From agent to info dict, and from `__common__` to one that belongs to no agent.

        Raises:
            EpisodeStateError: the episode was reset before.
            SpaceError: an observation does not fit its agent's space.
        """
        if self.is_reset or self.env_t:
            raise EpisodeStateError(
                f"episode {self.id_}, add_env_reset",
                expected="a new episode",
                found=f"one that was reset already (env_t={self.env_t})",
                do="make a new MultiAgentEpisode for each reset",
            )
        self._add_first_observations(observations, infos)
        self._was_reset = True
        self._start_time = perf_counter()

    def _add_first_observations(self, observations: Any, infos: Any) -> None:
        """Let the agents begin that are there at env step `env_t`."""
        step = EnvStep(observations, {}, {}, infos or {}, {}, {}, {})
        step.check(f"episode {self.id_}, add_env_reset")
        common = common_info_of(step.infos, self.env_t, self.id_)
        try:
            for agent, observation in observations.items():
                info = as_info(step.infos.get(agent), f"{self.id_}, agent {agent!r}")
                record = self._record(agent)
                self._begin(agent, record, observation, info, self.env_t)
                record.settle()
            for agent in step.others():
                record = self._record(agent)
                record.add_info(as_info(step.infos[agent], f"{self.id_}, agent {agent!r}"))
                record.settle()
        except Exception:
            self.records.clear()
            raise
        self._common_infos.update(common)

    def add_env_step(
        self,
        observations: Mapping[Any, Any],
        actions: Mapping[Any, Any],
        rewards: Mapping[Any, Any],
        infos: Mapping[Any, Any] | None = None,
        *,
        terminateds: Mapping[Any, Any] | None = None,
        truncateds: Mapping[Any, Any] | None = None,
        extra_model_outputs: Mapping[Any, Mapping[str, Any]] | None = None,
    ) -> None:
        """Add what one env step took and brought, each by agent.

        Args:
            observations: Observations after the step, of the agents that act next or ended.
            actions: Actions of the agents that acted, as their modules gave them.
            rewards: Rewards; an agent that acted and observed needs one.
            infos: Info dicts; one without an observation goes with the agent's next one. That of `__common__` belongs
                to no agent.
            terminateds: Which agents the environment ended; `__all__` ends them all.
            truncateds: Which agents were cut off by a limit; one that acted needs an observation then.
            extra_model_outputs: For agents that acted a dict of their modules' other outputs.

        Raises:
            EpisodeStateError: the episode is not running; an agent that has ended gets anything but an observation;
                one acts twice, or without an observation; one observes twice without acting; a reward is missing;
                one is truncated without a last observation.
            EpisodeError: something is not by agent, or a flag or an info is none.
            SpaceError: an observation does not fit its agent's space, or an action has integers outside of it.
            ColumnError: an action, reward or model output is nested differently than those before.
                After any of these the episode is as it was.
        """
        if self.is_terminated or self.is_truncated or not self._was_reset:
            raise self._not_steppable()
        step = EnvStep(
            observations,
            actions,
            rewards,
            infos or _NONE,
            terminateds or _NONE,
            truncateds or _NONE,
            extra_model_outputs or _NONE,
        )
        step.check(f"episode {self.id_}, add_env_step")
        self._add_step(step)

    def truncate(self, info: Mapping[str, Any] | None = None, *, agents: Collection[Any] | None = None) -> None:
        """End a running episode or some of its agents after its last env step, for a reason outside of its environment.

        Every agent that has not ended ends with its last observation. An action that waits for the observation after it
        is dropped, and the rewards after that action count for the episode's return only.

        Args:
            info: Added to the info of each of these agents' last observations.
            agents: End these agents only; the episode goes on, and they may come back. None: all.

        Raises:
            EpisodeStateError: the episode has ended, or was not reset.
        """
        if self.is_done or not self._was_reset:
            raise self._not_steppable()
        for agent, record in self.records.items():
            if record.live is None or (agents is not None and agent not in agents):
                continue
            if info:
                single = record.live.episode
                single.set_infos(new_data={**single.get_infos(-1), **info}, at_indices=-1)
            record.action, record.extras, record.info = NOTHING, {}, None
            record.finish(False, True, self.env_t)
            record.settle()
        self.is_truncated = agents is None

    def _not_steppable(self) -> EpisodeStateError:
        if not self._was_reset:
            expected, found, do = "add_env_reset first", "an episode that was not reset", "add the reset observations"
        else:
            expected, found = "a running episode", f"one that ended at env step {self.env_t}"
            do = "start a new MultiAgentEpisode"
        return EpisodeStateError(f"episode {self.id_}, add_env_step", expected=expected, found=found, do=do)

    def _add_step(self, step: EnvStep) -> None:
        flagged = any(step.terminateds.values()) or any(step.truncateds.values())
        common = common_info_of(step.infos, self.env_t + 1, self.id_)
        put: list[AgentSegment] = []
        before: list[tuple[AgentRecord, tuple[Any, ...]]] = []
        try:
            agents: Iterable[Any] = self._put_steps(step, put) if not flagged else step.observations
            complete = not agents and len(put) == len(step.actions) == len(step.rewards)
            if not complete or step.infos or not step.outputs.keys() <= step.observations.keys():
                agents = [*agents, *step.others()]
            if flagged:
                step.find_ends(self._live_agents(), self.id_)
                agents = dict.fromkeys([*agents, *step.ends])
            for agent in agents:
                record = self._record(agent)
                before.append((record, record.snapshot()))
                self._add_agent(agent, record, step)
        except Exception:
            for record, snapshot in reversed(before):
                record.restore(snapshot)
            for segment in put:
                segment.steps.pop()
                segment.episode.take_back_step()
            raise
        self.env_t += 1
        if common:
            self._common_infos.update(common)
        if flagged:
            self._note_end(step)
        self._last_step_time = perf_counter()

    def _put_steps(self, step: EnvStep, put: list[AgentSegment]) -> list[Any]:
        """Add the steps of agents that acted and observed and for which nothing waits; returns the other agents."""
        agents, actions, rewards, outputs, infos = self.records, step.actions, step.rewards, step.outputs, step.infos
        rest, env_t = [], self.env_t + 1
        for agent, observation in step.observations.items():
            record, action, reward = agents.get(agent), actions.get(agent), rewards.get(agent)
            segment = None if record is None else record.ready
            lacks = observation is None or action is None or reward is None
            if segment is None or lacks or (infos and infos.get(agent)):
                rest.append(agent)
                continue
            if not segment.episode.put_step(observation, action, reward, outputs.get(agent) or _NONE):
                rest.append(agent)
                continue
            segment.steps.append(env_t)
            put.append(segment)
        return rest

    def _record(self, agent: Any) -> AgentRecord:
        record = self.records.get(agent)
        if record is None:
            record = self.records[agent] = AgentRecord()
        return record

    def _live_agents(self) -> list[Any]:
        return [agent for agent, record in self.records.items() if record.live]

    def _note_end(self, step: EnvStep) -> None:
        """The episode ends with the flags for all, or when every agent there ever was has ended."""
        self.is_terminated = bool(step.terminateds.get(_ALL, False))
        self.is_truncated = bool(step.truncateds.get(_ALL, False))
        if self.is_done:
            return
        ends = [record.end for record in self.records.values() if record.has_appeared]
        if ends and None not in ends:
            self.is_terminated = any(end[0] for end in ends if end is not None)
            self.is_truncated = not self.is_terminated

    def _add_agent(self, agent: Any, record: AgentRecord, step: EnvStep) -> None:
        """Add what one agent was given."""
        observation, action, reward = step.observations.get(agent), step.actions.get(agent), step.rewards.get(agent)
        info, outputs, end = step.infos.get(agent), step.outputs.get(agent), step.ends.get(agent)
        info = None if info is None else as_info(info, f"{self.id_}, agent {agent!r}")
        values = {"observation": observation, "action": action, "reward": reward, "info": info, "outputs": outputs}
        fault = record.fault(values)
        if fault is not None:
            expected, found, do = fault
            raise EpisodeStateError(self._at(agent), expected=expected, found=found, do=do)
        if record.end is not None and observation is None:
            return  # no more than its flags again
        try:
            if reward is not None:
                record.add_reward(as_reward(reward))
            if action is not None:
                if observation is None and record.live is not None:  # else it is checked as it is added
                    action = record.live.episode.checked_action(action)
                record.action, record.extras = owned(action), dict(outputs or {})
            if observation is None and info:
                record.add_info(info)
            if observation is not None:
                self._observe(agent, record, observation, info)
            if end is not None:
                self._end(agent, record, end)
            record.settle()
        except EpibatchError as error:
            add_context(error, f"{self._at(agent)}:")
            raise

    def _at(self, agent: Any) -> str:
        return f"episode {self.id_}, agent {agent!r} at env step {self.env_t + 1}"

    def _observe(self, agent: Any, record: AgentRecord, observation: Any, info: dict[str, Any] | None) -> None:
        """End the agent's open step with an observation, or let its life begin with it."""
        info, segment, env_t = record.take_info(info), record.live, self.env_t + 1
        if segment is None:
            self._begin(agent, record, observation, info, env_t)
            return
        action, extras, reward = record.pop_open_step()
        segment.episode.add_env_step(observation, action, reward, info, extra_model_outputs=extras)
        segment.steps.append(env_t)

    def _begin(
        self, agent: Any, record: AgentRecord, observation: Any, info: dict[str, Any] | None, env_t: int
    ) -> None:
        single = SingleAgentEpisode(
            self._given_ids.pop(agent, None),
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self.observation_space.get(agent),
            action_space=self.action_space.get(agent),
        )
        if not self.checks_actions:
            single.actions.limits = None
        single.add_env_reset(observation, info)
        if (
            not record.has_appeared
        ):  # rewards that came earlier made the record: agents are in the order of their appearance
            self.records[agent] = self.records.pop(agent)
        record.begin(AgentSegment(single, array("q", [env_t])))

    def _end(self, agent: Any, record: AgentRecord, end: tuple[bool, bool]) -> None:
        """End the agent; an action that waits for its observation gets the last one again if the agent terminated."""
        segment = record.live
        if segment is None:
            return  # it was never there
        if record.action is not NOTHING:
            if not end[0]:
                raise EpisodeStateError(
                    "truncated",
                    expected="its last observation, from which the value of what would follow is estimated",
                    found="none since its action",
                    do="return an observation together with the truncated flag (terminated agents need none)",
                )
            single, info = segment.episode, record.info
            if info is None:
                info = single.infos.get(-1)
            space = single.given_observation_space
            single.given_observation_space = None  # pieces may have rewritten the observation
            try:
                self._observe(agent, record, owned(single.observations.last()), info)
            finally:
                single.given_observation_space = space
            segment.repeats = True
        record.finish(*end, self.env_t + 1)

    def validate(self) -> None:
        """Check that the lengths of each agent's columns fit one another.

        Raises:
            EpisodeError: they do not.
        """
        for segment in self.segments:
            segment.episode.validate()

    # -- facts ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def agent_steps(self) -> int:
        """Number of all agents' steps that ended in this chunk."""
        return sum(len(segment.episode) for segment in self.segments)

    @property
    def is_reset(self) -> bool:
        """True if the episode was reset, even without any agent."""
        return self._was_reset

    # -- agents --------------------------------------------------------------------------------

    @property
    def segments(self) -> list[AgentSegment]:
        """All lives of all agents in this chunk: each a single-agent episode and the env steps of its observations."""
        return [segment for record in self.records.values() for segment in record.segments]

    @property
    def past_segments(self) -> list[AgentSegment]:
        """Lives that ended before this chunk, as far as its lookback reaches: what their agents saw beside the others.

        They count in nothing else: their agents are none of this chunk's.
        """
        return list(self._past)

    @property
    def agent_episodes(self) -> Mapping[Any, SingleAgentEpisode]:
        """The latest single-agent episode of each agent in this chunk."""
        agents = self.records.items()
        return MappingProxyType({a: record.segments[-1].episode for a, record in agents if record.segments})

    @property
    def agent_ids(self) -> KeysView[Any]:
        """The agents that have observations in this chunk."""
        return dict.fromkeys(agent for agent, record in self.records.items() if record.segments).keys()

    @property
    def agent_episode_ids(self) -> dict[Any, str]:
        """The ids of the agents' latest single-agent episodes."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[Any, int]:
        """The steps of their own at which the agents' latest single-agent episodes start."""
        return {agent: episode.t_started for agent, episode in self.agent_episodes.items()}

    @property
    def env_t_to_agent_t(self) -> dict[Any, InfosBuffer]:
        """For each agent and env step, lookback included, the agent's own step, or "S" if it had no observation."""
        base = self.env_t_started - self.lookback
        out = {}
        for agent, record in self.records.items():
            row: list[Any] = [self.SKIP_ENV_TS_TAG] * (self.env_t - base + 1)
            for segment in record.segments:
                first = segment.episode.t_started - segment.episode.lookback
                for i, env_t in enumerate(segment.steps):
                    row[env_t - base] = first + i
            if record.segments:
                out[agent] = InfosBuffer(row, self.lookback)
        return out

    def module_for(self, agent_id: Any) -> Any:
        """The module that acts for an agent; the mapping function is asked once per agent and episode.

        Args:
            agent_id: The agent; it need not have appeared yet.

        Raises:
            EpisodeStateError: the episode was restored without its mapping function, and the agent is new.
        """
        if agent_id not in self._modules:
            if self.agent_to_module_mapping_fn is None:
                raise EpisodeStateError(
                    f"episode {self.id_}, module_for({agent_id!r})",
                    expected="a mapping function: the one of the episode is no data, so its state has none",
                    found="a restored episode without one",
                    do="pass agent_to_module_mapping_fn= to from_state",
                )
            try:
                self._modules[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
            except Exception as error:
                add_context(error, f"in the mapping function, asked for agent {agent_id!r} of episode {self.id_}:")
                raise
        return self._modules[agent_id]

    def get_agents_that_stepped(self) -> KeysView[Any]:
        """The agents with an observation at the newest env step, those that have just ended included."""
        agents = self.records.items()
        stepped = (a for a, record in agents if record.segments and record.segments[-1].steps[-1] == self.env_t)
        return dict.fromkeys(stepped).keys()

    def get_agents_that_observed(self) -> KeysView[Any]:
        """The agents that were given an observation at the newest env step; one may have ended without any."""
        stepped = self.get_agents_that_stepped()
        return dict.fromkeys(agent for agent in stepped if not self.records[agent].segments[-1].repeats).keys()

    def get_agents_to_act(self) -> KeysView[Any]:
        """The agents with an observation at the newest env step that have not ended."""
        live = ((agent, record.live) for agent, record in self.records.items())
        return dict.fromkeys(agent for agent, segment in live if segment and segment.steps[-1] == self.env_t).keys()

    def get_agents_without_action(self) -> KeysView[Any]:
        """The agents that have not ended and have not acted on their newest observation, however old it is."""
        agents = self.records.items()
        return dict.fromkeys(agent for agent, record in agents if record.live and record.action is NOTHING).keys()

    def get_terminateds(self) -> dict[Any, bool]:
        """Return whether each agent of this chunk terminated, and under `__all__` whether the episode did."""
        flags = {agent: episode.is_terminated for agent, episode in self.agent_episodes.items()}
        return {**flags, _ALL: self.is_terminated}

    def get_truncateds(self) -> dict[Any, bool]:
        """Return whether each agent of this chunk was truncated, and under `__all__` whether the episode was."""
        flags = {agent: episode.is_truncated for agent, episode in self.agent_episodes.items()}
        return {**flags, _ALL: self.is_truncated}

    # -- what waits ----------------------------------------------------------------------------

    @property
    def pending_actions(self) -> dict[Any, Any]:
        """The actions of agents that have had no observation since."""
        agents = self.records.items()
        return {agent: record.action for agent, record in agents if record.action is not NOTHING}

    @property
    def pending_rewards(self) -> dict[Any, Any]:
        """The rewards that are in no step, summed: they count for the agent's step that ends next.

        Those of agents that never appear, and those that came after an agent's last step, stay here.
        """
        pending = ((agent, record.pending_reward) for agent, record in self.records.items())
        return {agent: reward for agent, reward in pending if reward is not None}

    @property
    def pending_extra_model_outputs(self) -> dict[Any, dict[str, Any]]:
        """The model outputs that came with the pending actions."""
        agents = self.records.items()
        return {agent: dict(record.extras) for agent, record in agents if record.action is not NOTHING}

    # -- totals --------------------------------------------------------------------------------

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Sum of all agents' rewards in this chunk, lookback excluded.

        Args:
            include_hanging_rewards: Whether `pending_rewards` count too. A chunk after a cut takes over those of the
                chunk before.
        """
        total = sum(segment.episode.get_return() for segment in self.segments)
        if include_hanging_rewards:
            total += sum(float(np.sum(reward)) for reward in self.pending_rewards.values())
        return float(total)

    def print(self) -> None:
        """Print a table of env steps (lookback negative) with an x where an agent had an observation."""
        width = max([2, *(len(str(agent)) for agent in self.agent_ids)])
        numbers = [str(t) for t in range(-self.lookback, len(self) + 1)]
        lines = ["ts".ljust(width) + "".join(f"  {number:>3}" for number in numbers)]
        for agent, row in self.env_t_to_agent_t.items():
            marks = ("" if step == self.SKIP_ENV_TS_TAG else "x" for step in row.data)
            lines.append((str(agent).ljust(width) + "".join(f"  {mark:>3}" for mark in marks)).rstrip())
        print("\n".join(lines))

    # -- reading and writing -------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Observations by agent; index 0 is the env step at which the chunk starts, -1 the newest one."""
        options = (neg_index_as_lookback, env_steps, fill, one_hot_discrete, return_list)
        return self._read(agent_ids, RowRequest("observations", indices, *options))

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Info dicts by agent, one per observation; several come as a list.

        Under `__common__` are those of the environment that belong to no agent, if it gave any. An env step may have
        none; by agents' own steps (`env_steps=False`) there are none.
        """
        options = (neg_index_as_lookback, env_steps, fill, False, return_list)
        return self._read(agent_ids, RowRequest("infos", indices, *options))

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Actions by agent, as the modules gave them."""
        options = (neg_index_as_lookback, env_steps, fill, one_hot_discrete, return_list)
        return self._read(agent_ids, RowRequest("actions", indices, *options))

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Rewards by agent: the sums between an agent's observations."""
        options = (neg_index_as_lookback, env_steps, fill, False, return_list)
        return self._read(agent_ids, RowRequest("rewards", indices, *options))

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Any = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """One of the modules' other outputs by agent; without a key a dict of all of them for each agent."""
        options = (neg_index_as_lookback, env_steps, fill, False, return_list)
        return self._read(agent_ids, RowRequest("extra_model_outputs", indices, *options, key))

    def set_observations(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite observations of some agents.

        Args:
            new_data: Rows by agent, as `get_observations` gives them for the same indices.
            at_indices: Which rows; None addresses all after the lookback.
            neg_index_as_lookback: Count negative indices backwards from the chunk's start.
            env_steps: Whether indices are env steps; otherwise each agent's own.

        Raises:
            UnknownNameError: an agent without observations in this chunk.
            EpisodeIndexError: rows that do not exist, or another number of them.
        """
        self._write(new_data, RowRequest("observations", at_indices, neg_index_as_lookback, env_steps))

    def set_infos(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite info dicts of some agents (arguments as for `set_observations`)."""
        self._write(new_data, RowRequest("infos", at_indices, neg_index_as_lookback, env_steps))

    def set_actions(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite actions of some agents, open steps included (arguments as for `set_observations`)."""
        self._write(new_data, RowRequest("actions", at_indices, neg_index_as_lookback, env_steps))

    def set_rewards(
        self,
        *,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite rewards of some agents, open steps included (arguments as for `set_observations`)."""
        self._write(new_data, RowRequest("rewards", at_indices, neg_index_as_lookback, env_steps))

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: dict[Any, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
        env_steps: bool = True,
    ) -> None:
        """Overwrite one of the other outputs of some agents' modules (other arguments as for `set_observations`)."""
        self._write(new_data, RowRequest("extra_model_outputs", at_indices, neg_index_as_lookback, env_steps, key=key))

    def _read(self, agent_ids: Any, request: RowRequest) -> Any:
        if request.key is not None:
            self._check_key(request.key)
        records = self._records_of(agent_ids)
        if request.env_steps:
            steps = self._env_steps(request)
            common = request.name == "infos" and self._common_infos and COMMON in self._agents_asked(agent_ids)
            if not request.return_list:
                return self._rows_at(request, records, steps, common)
            every = steps if request.several else [steps]
            return [self._rows_at(request, records, int(env_t), common) for env_t in every]
        if request.return_list:
            raise EpisodeError(
                f"episode {self.id_}, get_{request.name}",
                expected="env_steps=True for return_list=True: a dict for each env step",
                found="env_steps=False",
                do="leave one of them out",
            )
        return request.read(records)

    def _rows_at(self, request: RowRequest, records: dict[Any, AgentRecord], steps: Any, common: Any) -> dict[Any, Any]:
        """Rows by agent at one env step, or several, and infos that belong to no agent if `common`."""
        rows = request.read(records, steps)
        infos = read_common(self._common_infos, request, steps) if common else NOTHING
        return rows if infos is NOTHING else {**rows, COMMON: infos}

    def _agents_asked(self, agent_ids: Any = None) -> Collection[Any]:
        if agent_ids is None:
            return [*self.records, COMMON]
        is_id = not isinstance(agent_ids, (list, tuple, set, frozenset, Mapping, KeysView))
        return [agent_ids] if is_id or (isinstance(agent_ids, tuple) and agent_ids in self.records) else agent_ids

    def _records_of(self, agent_ids: Any = None) -> dict[Any, AgentRecord]:
        """Agents with observations in this chunk, in their order; all, or those asked for."""
        agents = self.records if agent_ids is None else self._agents_asked(agent_ids)
        return {agent: record for agent, record in self.records.items() if record.segments and agent in agents}

    def _check_key(self, key: str) -> None:
        records = self._records_of().values()
        names = {name for record in records for name in record.output_keys}
        acted = any(r.action is not NOTHING or any(len(s.steps) > 1 for s in r.segments) for r in records)
        if key not in names and (names or acted):
            raise UnknownNameError(
                f"episode {self.id_}",
                expected="the key of an extra model output of some agent",
                found=repr(key),
                do=nearest(key, names),
            )

    def _env_steps(self, request: RowRequest) -> Any:
        """Env steps asked for: an int, a range or an array; those outside the chunk too if filled or listed."""
        lookback, total = self.lookback, self.lookback + len(self) + (request.name in OF_OBSERVATIONS)
        beyond = request.fill is not None or (request.return_list and request.several)
        rows = request.positions(lookback, total, beyond)
        first, last = rows, rows
        if request.several:
            first, last = int(min(rows, default=lookback)), int(max(rows, default=-1))
        note_history(first, lookback, self.env_t_started)
        if not beyond and (first < 0 or last >= total):
            raise EpisodeIndexError(
                f"episode {self.id_}, {request.name} by env step",
                expected=f"indices within {total} env steps ({lookback} of them lookback)",
                found=repr(request.indices),
                do="ask for env steps that exist, or pass `fill=`",
            )
        base = self.env_t_started - lookback
        if isinstance(rows, range):
            return range(base + rows.start, base + rows.stop, rows.step)
        return base + rows if request.several else int(base + rows)

    def _write(self, new_data: Any, request: RowRequest) -> None:
        where = f"episode {self.id_}, set_{request.name}"
        if not isinstance(new_data, Mapping):
            found = f"{type(new_data).__name__} {new_data!r}"
            raise EpisodeError(where, expected="new data by agent", found=found, do="pass {agent: rows}")
        if request.key is not None:
            self._check_key(request.key)
        records, latest = self._records_of(), not request.env_steps
        common: CommonInfos = {}
        if request.name == "infos" and request.env_steps and self._common_infos and COMMON in new_data:
            infos, steps = new_data[COMMON], self._env_steps(request)
            common = common_rows_to_write(self._common_infos, infos, request, steps, where)
            new_data = {agent: rows for agent, rows in new_data.items() if agent != COMMON}
        for agent in new_data:
            if agent not in records:
                raise UnknownNameError(
                    f"episode {self.id_}",
                    expected="an agent with observations in this chunk",
                    found=repr(agent),
                    do=nearest(str(agent), map(str, records)),
                )
        columns = {agent: AgentColumn(records[agent], request.name, request.key, latest=latest) for agent in new_data}
        rows = {
            agent: self._rows_to_write(column, request, f"{where}, agent {agent!r}")
            for agent, column in columns.items()
        }
        for agent, column in columns.items():
            column.write(rows[agent], new_data[agent], f"{where}, agent {agent!r}")
        self._common_infos.update(common)

    def _rows_to_write(self, column: AgentColumn, request: RowRequest, where: str) -> Any:
        """Absolute rows of a column: an int, or several."""
        rows: Any
        if request.env_steps:
            steps = self._env_steps(request)
            rows = column.find(steps if request.several else [steps])
            rows = rows[rows >= 0]
            exist = request.several or len(rows) > 0
        else:
            rows = request.positions(column.lookback, column.count)
            rows = rows if request.several else [rows]
            exist = not len(rows) or (min(rows) >= 0 and max(rows) < column.count)
        if not exist:
            raise EpisodeIndexError(
                where,
                expected=f"{'env' if request.env_steps else 'agent'} steps at which the agent has a row",
                found=repr(request.indices),
                do="ask the getter with the same indices which agents have rows there",
            )
        return rows if request.several else int(rows[0])

    # -- parts and wholes ----------------------------------------------------------------------

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Add the env steps of the chunk that follows this one.

        Args:
            other: A chunk of the same episode that starts at this one's `env_t`, as `cut` or `slice` made it. Its
                lookback is left out; what is pending in it is what is pending afterwards.

        Raises:
            EpisodeStateError: this chunk is done, or `other` does not continue it.
        """
        self._check_continues(other)
        for agent, record in other.records.items():
            target = self._record(agent)
            if record.has_appeared and not target.has_appeared:
                self.records[agent] = self.records.pop(agent)  # in the order of their appearance
            target.extend(record)
        self._modules = {**other._modules, **self._modules}
        self._common_infos.update((t, info) for t, info in other._common_infos.items() if t > self.env_t)
        self.env_t = other.env_t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._custom_data.update(other.custom_data)
        self._last_step_time = other._last_step_time or self._last_step_time

    def _check_continues(self, other: Any) -> None:
        where, do = f"episode {self.id_}, concat_episode", "concatenate chunks in order, as cut() made them"
        if not isinstance(other, type(self)):
            found = f"{type(other).__name__} {other!r}"
            raise EpisodeError(where, expected="the chunk that follows", found=found, do="pass a MultiAgentEpisode")
        living = {agent: r.live.episode for agent, r in self.records.items() if r.live is not None}
        begin, end = other.env_t_started, self.env_t
        following = {s.agent_id: s.episode for s in reversed(other.segments) if s.steps[0] <= begin}
        missing = [a for a, single in living.items() if a not in following or following[a].id_ != single.id_]
        tests = (
            (not self.is_done, "a running episode", f"one that ended at env step {end}"),
            (self.id_ == other.id_, f"a chunk of episode {self.id_}", f"one of {other.id_}"),
            (end == begin, f"a chunk that starts at env step {end}", f"env step {begin}"),
            (not missing, f"a chunk in which agents {missing} go on", "one without them"),
        )
        for ok, expected, found in tests:
            if not ok:
                raise EpisodeStateError(where, expected=expected, found=found, do=do)
        for agent, single in living.items():
            try:
                single.check_continues(following[agent])
            except EpisodeError as error:
                add_context(error, f"{where}, agent {agent!r}:")
                raise

    def cut(self, len_lookback_buffer: int = 0, *, agent_steps: int = 0) -> MultiAgentEpisode:
        """Start the next chunk of this running episode.

        Args:
            len_lookback_buffer: How many earlier env steps the new chunk keeps: no more than there are, and at least
                as many as lead back to the newest observation of each agent that has not ended. With k > 0, an agent
                that acted and waits for its next observation keeps its steps back to the last observation that is at
                least k - 1 env steps old, as in RLlib.
            agent_steps: How many earlier steps of its own each of these agents keeps at least, as far as there are: an
                agent that acts every third env step needs three times the env steps for a stack of its frames.

        Returns:
            A chunk of length 0 with the newest observation of each agent that has not ended, and with what is pending.

        Raises:
            EpisodeStateError: the episode is done or was never reset.
            EpisodeError: a negative lookback.
        """
        if self.is_done or not self.is_reset:
            raise self._not_cuttable(f"env step {self.env_t}")
        at, lookback = self.env_t, check_steps(len_lookback_buffer, "len_lookback_buffer", self.id_)
        agent_steps = check_steps(agent_steps, "agent_steps", self.id_)
        living = {segment: record.action for record in self.records.values() if (segment := record.live) is not None}
        if lookback:
            waiting = [segment for segment, action in living.items() if action is not NOTHING]
            rows = [(segment, segment.row_at(at - lookback + 1)) for segment in waiting]
            lookback = max([lookback, *(at - segment.steps[row] for segment, row in rows if row >= 0)])
        return self._part(at, at, self._reach(at, lookback, living, agent_steps))

    def _reach(self, at: int, lookback: int, living: Iterable[AgentSegment], agent_steps: int = 0) -> int:
        """The lookback at env step `at`: what there is of it, and back to the newest observation of each living agent.

        Args:
            at: Env step of the cut.
            lookback: Env steps to keep.
            living: The agents that go on.
            agent_steps: Steps of its own that each of them keeps, as far as there are; and what happened to the others
                as many env steps before its newest observation, or before the cut if no agent goes on.
        """
        rows = [(segment.steps, segment.row_at(at)) for segment in living]
        newest = [at - steps[max(row - agent_steps, 0)] for steps, row in rows]
        others = [agent_steps, *(at - steps[row] + agent_steps for steps, row in rows)]
        available = self.lookback + at - self.env_t_started
        return max([min(max([lookback, *others]), available), *newest])

    def _part(self, begin: int, end: int, lookback: int) -> MultiAgentEpisode:
        """Return the chunk from one env step to another, with so many before it and with what waits at its end."""
        part = type(self)(self.id_, observation_space=self.observation_space, action_space=self.action_space)
        part.checks_actions = self.checks_actions
        part.agent_to_module_mapping_fn = self.agent_to_module_mapping_fn
        part._modules, part._custom_data = dict(self._modules), copy.deepcopy(self._custom_data)
        part._was_reset = self._was_reset
        part._start_time, part._last_step_time = self._start_time, self._last_step_time
        part.env_t_started, part.env_t, part.lookback = begin, end, lookback
        low, newest = begin - lookback, end == self.env_t
        part._common_infos = {t: info for t, info in self._common_infos.items() if low <= t <= end}
        over = (s for s in (*self._past, *self.segments) if s.over(begin) and s.steps[-1] >= low)
        part._past = [segment.sliced(begin, begin, low) for segment in over]
        part.records = {a: record.sliced(begin, end, low, newest=newest) for a, record in self.records.items()}
        if newest:
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Copy a range of env steps into a chunk of its own: one that was cut at the start and recorded to the stop.

        Args:
            slice_: Env steps of this chunk, by Python's rules, without a step.
            len_lookback_buffer: Earlier env steps to keep, as for `cut`, though agents that wait at the start add none;
                default: as many as this chunk keeps.

        Returns:
            The chunk, with each agent's steps that ended in it. A step of an agent that was under way at the stop is
            pending there, with its whole reward. The chunk is done if this one is and its last env step is included.

        Raises:
            EpisodeError: a negative lookback.
            NotAvailableError: a step other than 1.
        """
        if slice_.step not in (None, 1):
            raise NotAvailableError(
                f"episode {self.id_}, slice",
                expected="step 1: agents act at different env steps, so there is no every k-th step",
                found=repr(slice_),
                do="slice the agents' single-agent episodes, or ask a getter for every k-th env step",
            )
        start, stop, _ = slice_.indices(len(self))
        begin, end = self.env_t_started + start, self.env_t_started + max(start, stop)
        lookback = self.lookback
        if len_lookback_buffer is not None:
            lookback = check_steps(len_lookback_buffer, "len_lookback_buffer", self.id_)
        living = [s for s in self.segments if s.steps[0] <= begin and not s.over(begin)]
        return self._part(begin, end, self._reach(begin, lookback, living))

    def with_artificial_steps(self, longer: Mapping[int, SingleAgentEpisode]) -> MultiAgentEpisode:
        """Copy the chunk, with other single-agent episodes in place of some.

        Args:
            longer: From the `id()` of a single-agent episode to the copy that `with_artificial_step` gave of it. The
                artificial step of an agent ends at the env step after its newest observation.

        Returns:
            The copy, one env step longer. It shares everything else with this chunk.
        """
        out = copy.copy(self)
        out.records = {agent: record.with_artificial_steps(longer) for agent, record in self.records.items()}
        out.env_t += 1
        return out

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that makes the chunk, as plain dicts, lists, arrays and scalars, but for its mapping function."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "is_reset": self.is_reset,
            "observation_space": _spaces_to_list(self.observation_space),
            "action_space": _spaces_to_list(self.action_space),
            "own_mapping_fn": self.agent_to_module_mapping_fn is not map_to_default,
            "modules": [[agent, module] for agent, module in self._modules.items()],
            "agents": [[agent, record.get_state()] for agent, record in self.records.items()],
            "past": [segment.get_state() for segment in self._past],
            "common_infos": [[t, copy.deepcopy(info)] for t, info in self._common_infos.items()],
            "custom_data": copy.deepcopy(self.custom_data),
            "duration_s": self.get_duration_s(),
        }

    @staticmethod
    def from_state(
        state: dict[str, Any], *, agent_to_module_mapping_fn: Callable[..., Any] | None = None
    ) -> MultiAgentEpisode:
        """Rebuild a chunk from `get_state()`.

        Args:
            state: The state.
            agent_to_module_mapping_fn: For agents that appear later on; a function is no data, so the state has none.

        Raises:
            CheckpointError: `state` is no multi-agent episode's.
        """
        do = "pass what get_state of a multi-agent episode gave"
        check_state(state, _STATE, "MultiAgentEpisode.from_state", "a multi-agent episode", do)
        episode = MultiAgentEpisode(
            state["id_"],
            observation_space=_spaces_from_list(state["observation_space"]),
            action_space=_spaces_from_list(state["action_space"]),
            agent_to_module_mapping_fn=agent_to_module_mapping_fn,
        )
        if agent_to_module_mapping_fn is None and state["own_mapping_fn"]:
            episode.agent_to_module_mapping_fn = None
        for name in _PLAIN[1:]:
            setattr(episode, name, state[name])
        episode._was_reset = state["is_reset"]
        episode._modules = dict(state["modules"])
        episode.records = {agent: AgentRecord.from_state(record) for agent, record in state["agents"]}
        episode._past = [AgentSegment.from_state(segment) for segment in state.get("past", ())]
        episode._custom_data = copy.deepcopy(state["custom_data"])
        episode._common_infos = dict(copy.deepcopy(state.get("common_infos", [])))
        episode._start_time, episode._last_step_time = 0.0, state["duration_s"]
        return episode

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        vars(self).setdefault("_common_infos", {})  # a pickle of an earlier version has none
        make_writable([self._common_infos, *(record.info for record in self.records.values())])

    def equals(self, other: Any) -> bool:
        """True if another episode holds the same: columns (NaN equals NaN), env steps, flags, names, pending values.

        `==` compares identity, as sets and dicts of episodes need it.
        """
        if not isinstance(other, MultiAgentEpisode):
            return False
        if not all(same_value(getattr(self, name), getattr(other, name)) for name in _EQUAL):
            return False
        left, right = (
            {a: r for a, r in episode.records.items() if r.has_appeared or r.reward is not None or r.info is not None}
            for episode in (self, other)
        )
        orders = [[agent for agent, record in records.items() if record.has_appeared] for records in (left, right)]
        same = orders[0] == orders[1] and left.keys() == right.keys()
        return same and all(left[agent].equals(right[agent]) for agent in left)

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "running"
        where = f"t={self.env_t_started}..{self.env_t}"
        return f"MAEps(len={len(self)}, {where}, {end}, agents={len(self.agent_ids)}, id={self.id_})"


def _spaces(spaces: Any, name: str, id_: Any) -> Mapping[Any, Any]:
    """Spaces by agent; {} for None."""
    if spaces is None:
        return {}
    if not isinstance(spaces, Mapping):
        raise SpaceError(
            f"episode {id_}, {name}",
            expected="a dict, or a Dict space, with a space for each agent",
            found=f"{type(spaces).__name__} {spaces!r}",
            do="pass {agent: space}",
        )
    for agent, space in spaces.items():
        check_space(space, f"{name}[{agent!r}]", id_)
    return spaces


def _spaces_to_list(spaces: Mapping[Any, Any]) -> list[Any]:
    return [[agent, space_to_dict(space)] for agent, space in spaces.items() if space is not None]


def _spaces_from_list(spaces: list[Any]) -> dict[Any, Any]:
    return {agent: space_from_dict(space) for agent, space in spaces}
