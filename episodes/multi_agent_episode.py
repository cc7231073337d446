"""What several agents of one environment saw, did and got, from a reset to an end or to the last step taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal

from epibatch.core.errors import EpisodeStateError, NotAvailableError

from ._parts.agent_segment import AgentRecord, AgentSegment
from ._parts.episode_arguments import check_steps
from ._parts.episode_ids import fresh_id
from ._parts.multi_agent_arguments import add_given_steps, check_spaces, flags_by_agent
from ._parts.multi_agent_facts import MultiAgentFacts, map_to_default
from ._parts.multi_agent_parts import cut_episode, join_episode, slice_episode
from ._parts.multi_agent_state import episode_from_state, episode_state
from ._parts.multi_agent_steps import EnvStep, add_first_observations, add_step
from ._storage.arrays import same_value
from ._storage.buffer_source import NOTHING

__all__ = ["MultiAgentEpisode"]

_NONE: dict[Any, Any] = {}
_EQUAL = ("id_", "env_t_started", "env_t", "lookback", "is_reset", "is_terminated", "is_truncated", "custom_data")


class MultiAgentEpisode(MultiAgentFacts):
    """The episode of an environment with several agents, or a chunk of it.

    Each agent has a single-agent episode, and its observations have env steps: an agent need not observe or act in
    every one. A step of an agent's own goes from an observation, which it acts on, to its next one, and all rewards
    between them are its reward. Until then action, model outputs and rewards are pending. An agent that ended comes
    back with a new observation, and has a second single-agent episode then.

    Args:
        id_: Name of the episode; chunks of one episode share it. Default: a random hex string.
        observations: T+1 dicts from agent to observation, one per env step; default: none, as before `add_env_reset`.
        observation_space: A dict (or Dict space) with each agent's observation space.
        infos: T+1 dicts from agent to info dict.
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

    Raises:
        EpisodeError: columns whose lengths do not fit one another, or that no environment could give.
        SpaceError: spaces that are not by agent, or an observation that does not fit its agent's.

    Example:
        >>> episode = MultiAgentEpisode()
        >>> episode.add_env_reset(observations={"a": 0.0, "b": 10.0})
        >>> episode.add_env_step({"a": 1.0}, {"a": 0, "b": 1}, {"a": 0.5, "b": 0.25})
        >>> episode.add_env_step({"b": 12.0}, {"a": 1}, {"b": 0.5}, terminateds={"b": True})
        >>> episode.get_rewards(), episode.pending_actions
        ({'a': array([0.5, 0. ]), 'b': array([0.75])}, {'a': 1})
    """

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
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or map_to_default
        self.observation_space = check_spaces(observation_space, "observation_space", self.id_)
        self.action_space = check_spaces(action_space, "action_space", self.id_)
        self.env_t = self.env_t_started = check_steps(env_t_started or 0, "env_t_started", self.id_)
        self.lookback = 0
        self.is_terminated = self.is_truncated = False
        self._modules: dict[Any, Any] = dict(agent_module_ids or {})
        self._given_ids: dict[Any, str] = dict(agent_episode_ids or {})
        self._agents: dict[Any, AgentRecord] = {}
        self._past: list[AgentSegment] = []
        self._custom_data: dict[str, Any] = {}
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
        flags = flags_by_agent(terminateds), flags_by_agent(truncateds)
        if any(rows is not None for rows in columns.values()) or any(flags):
            add_given_steps(self, columns, flags, len_lookback_buffer, agent_t_started or {})

    # -- growing -------------------------------------------------------------------------------

    def add_env_reset(self, *, observations: Mapping[Any, Any], infos: Mapping[Any, Any] | None = None) -> None:
        """Start the episode.

        Args:
            observations: From agent to reset observation; agents may be missing, and come later.
            infos: From agent to info dict.

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
        add_first_observations(self, observations, infos)
        self._was_reset = True
        self._start_time = perf_counter()

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
            infos: Info dicts; one without an observation goes with the agent's next one.
            terminateds: Which agents the environment ended; `__all__` ends them all.
            truncateds: Which agents were cut off by a limit; one that acted needs an observation then.
            extra_model_outputs: For agents that acted a dict of their modules' other outputs.

        Raises:
            EpisodeStateError: the episode is not running; an agent that has ended gets anything but an observation;
                one acts twice, or without an observation; one observes twice without acting; a reward is missing;
                one is truncated without a last observation.
            EpisodeError: something is not by agent, or a flag or an info is none.
            SpaceError: an observation does not fit its agent's space.
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
        add_step(self, step)

    def _not_steppable(self) -> EpisodeStateError:
        if not self._was_reset:
            expected, found, do = "add_env_reset first", "an episode that was not reset", "add the reset observations"
        else:
            expected, found = "a running episode", f"one that ended at env step {self.env_t}"
            do = "start a new MultiAgentEpisode"
        return EpisodeStateError(f"episode {self.id_}, add_env_step", expected=expected, found=found, do=do)

    def validate(self) -> None:
        """Check that the lengths of each agent's columns fit one another.

        Raises:
            EpisodeError: they do not.
        """
        for segment in self.segments:
            segment.episode.validate()

    def to_numpy(self) -> MultiAgentEpisode:
        """Return the episode itself: its columns are arrays already."""
        return self

    # -- parts and wholes ----------------------------------------------------------------------

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Add the env steps of the chunk that follows this one.

        Args:
            other: A chunk of the same episode that starts at this one's `env_t`, as `cut` or `slice` made it. Its
                lookback is left out; what is pending in it is what is pending afterwards.

        Raises:
            EpisodeStateError: this chunk is done, or `other` does not continue it.
        """
        join_episode(self, other)

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
        return cut_episode(self, len_lookback_buffer, agent_steps)

    def __getitem__(self, item: slice) -> MultiAgentEpisode:
        if not isinstance(item, slice):
            raise NotAvailableError(
                f"episode {self.id_}[...]",
                expected="a slice",
                found=repr(item),
                do="use episode[i:i+1], or a getter such as get_rewards(i)",
            )
        return self.slice(item)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Copy a range of env steps into a chunk of its own: one that was cut at the start and recorded to the stop.

        Args:
            slice_: Env steps of this chunk, by Python's rules, without a step.
            len_lookback_buffer: Earlier env steps to keep, as for `cut`; default: as many as this chunk keeps.

        Returns:
            The chunk, with each agent's steps that ended in it. A step of an agent that was under way at the stop is
            pending there, with its whole reward. The chunk is done if this one is and its last env step is included.

        Raises:
            EpisodeError: a negative lookback.
            NotAvailableError: a step other than 1.
        """
        return slice_episode(self, slice_, len_lookback_buffer)

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that makes the chunk, as plain dicts, lists, arrays and scalars, but for its mapping function."""
        return episode_state(self)

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
        return episode_from_state(MultiAgentEpisode, state, agent_to_module_mapping_fn)

    def equals(self, other: Any) -> bool:
        """Whether another episode holds the same: columns (NaN equals NaN), env steps, flags, names, what is pending.

        `==` compares identity, as sets and dicts of episodes need it.
        """
        if not isinstance(other, MultiAgentEpisode):
            return False
        if not all(same_value(getattr(self, name), getattr(other, name)) for name in _EQUAL):
            return False
        mine, yours = _known(self._agents), _known(other._agents)
        orders = [[agent for agent, record in known.items() if record.born] for known in (mine, yours)]
        same = orders[0] == orders[1] and mine.keys() == yours.keys()
        return same and all(_same_record(mine[agent], yours[agent]) for agent in mine)

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "running"
        where = f"t={self.env_t_started}..{self.env_t}"
        return f"MAEps(len={len(self)}, {where}, {end}, agents={len(self.agent_ids)}, id={self.id_})"


def _known(agents: dict[Any, AgentRecord]) -> dict[Any, AgentRecord]:
    """Agents of which anything is known."""
    return {a: r for a, r in agents.items() if r.born or r.reward is not None or r.info is not None}


def _same_record(mine: AgentRecord, yours: AgentRecord) -> bool:
    if (mine.action is NOTHING) != (yours.action is NOTHING) or len(mine.segments) != len(yours.segments):
        return False
    waiting = [(r.born, r.end, r.extras, r.reward or 0.0, r.info, r.left_over) for r in (mine, yours)]
    if not same_value(*waiting) or not (mine.action is NOTHING or same_value(mine.action, yours.action)):
        return False
    pairs: list[tuple[AgentSegment, AgentSegment]] = list(zip(mine.segments, yours.segments))
    return all(one.equals(other) for one, other in pairs)
