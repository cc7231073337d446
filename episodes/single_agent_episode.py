"""What one agent saw, did and got, from a reset to an end or to the last step taken."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeError, EpisodeStateError, NotAvailableError
from epibatch.core.structs import flatten, form_of

from ._parts.episode_arguments import as_flag, as_info, as_rewards, check_space, check_steps
from ._parts.episode_facts import EpisodeFacts, no_column
from ._parts.episode_ids import fresh_id
from ._parts.episode_parts import cut_episode, join_episode, slice_episode
from ._parts.episode_state import episode_from_state, episode_state
from ._parts.episode_steps import add_step, check_first_observation, not_steppable, put_step
from ._storage.arrays import same_value
from ._storage.infos_buffer import EMPTY, InfosBuffer
from .infinite_lookback_buffer import NOTHING, InfiniteLookbackBuffer

__all__ = ["SingleAgentEpisode"]

_EQUAL = (
    *("id_", "agent_id", "module_id", "multi_agent_episode_id", "t_started", "is_terminated", "is_truncated"),
    *("observations", "infos", "actions", "rewards", "extra_model_outputs", "custom_data"),
)


class SingleAgentEpisode(EpisodeFacts):
    """The columns of one agent's episode, or of a chunk of it.

    `observations[0]` is the reset observation; `actions[t]`, `rewards[t]` and the model outputs of
    step t follow `observations[t]`. A chunk of length T therefore has T+1 observations and infos
    and T of everything else. Each column is growable arrays from its first row on. The newest
    observation is provisional: what is written to index -1 before the next step is what the column
    gets, in whatever shape and type.

    Args:
        id_: Name of the episode; chunks of one episode share it. Default: a random hex string.
        observations: T+1 rows (a list, or stacked arrays of shape [T+1, ...]), lookback included.
        observation_space: Space of one observation; new observations are checked against its shape.
        infos: T+1 dicts; default: empty ones.
        actions: T rows.
        action_space: Space of one action.
        rewards: T rows.
        terminated: Whether the environment ended the episode by itself.
        truncated: Whether the episode was cut off by a limit.
        extra_model_outputs: For each key T rows.
        t_started: Step in the whole episode at which this chunk starts. Default: 0.
        len_lookback_buffer: How many of the given steps are lookback, clamped to the steps there
            are; "auto" takes all of them, so that the chunk itself starts empty (RLlib's default).
        agent_id: Agent in a multi-agent episode.
        module_id: Module that acts for the agent.
        multi_agent_episode_id: The multi-agent episode this one belongs to.

    Raises:
        EpisodeError: columns whose lengths do not fit one another, or a negative lookback.

    Example:
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(np.zeros(2, np.float32))
        >>> episode.add_env_step(np.ones(2, np.float32), action=1, reward=0.5, terminated=True)
        >>> len(episode), episode.get_rewards().tolist(), episode.is_done
        (1, [0.5], True)
    """

    _given_form: Any = NOTHING  # nesting of the reset observation as given, if it is known

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Any = None,
        observation_space: gym.Space[Any] | None = None,
        infos: list[dict[str, Any]] | None = None,
        actions: Any = None,
        action_space: gym.Space[Any] | None = None,
        rewards: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_id: Any = None,
        module_id: Any = None,
        multi_agent_episode_id: Any = None,
    ) -> None:
        self._set_identity(id_ or fresh_id(), agent_id, module_id, multi_agent_episode_id)
        self.is_terminated = as_flag(terminated, "terminated", self.id_)
        self.is_truncated = as_flag(truncated, "truncated", self.id_)
        self._given_observation_space = check_space(observation_space, "observation_space", self.id_)
        rewards_column = _column(as_rewards(rewards), 0, None)
        lookback = rewards_column.len_incl_lookback()
        if len_lookback_buffer != "auto":
            lookback = min(check_steps(len_lookback_buffer, "len_lookback_buffer", self.id_), lookback)
        rewards_column.lookback = lookback
        self.observations = _column(observations, lookback, observation_space)
        if not isinstance(observations, InfiniteLookbackBuffer):
            self.observations.provisional = self.observations.len_incl_lookback() > 0
        self.actions = _column(actions, lookback, check_space(action_space, "action_space", self.id_))
        self.rewards = rewards_column
        if infos is None:
            infos = [{} for _ in range(self.observations.len_incl_lookback())]
        self.infos: Any = InfosBuffer(getattr(infos, "data", infos), lookback)
        self.extra_model_outputs: dict[str, InfiniteLookbackBuffer] = {
            key: _column(rows, lookback, None) for key, rows in (extra_model_outputs or {}).items()
        }
        self.t_started = check_steps(t_started or 0, "t_started", self.id_)
        self.validate()

    def _set_identity(self, id_: str, agent_id: Any, module_id: Any, multi_agent_episode_id: Any) -> None:
        self.id_ = id_
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self._custom_data: dict[str, Any] = {}
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self._return_before = math.nan

    # -- growing -------------------------------------------------------------------------------

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Start the episode.

        Args:
            observation: The reset observation.
            infos: Its info dict.

        Raises:
            EpisodeStateError: the episode was reset before.
            SpaceError: the observation does not fit `observation_space`.
            EpisodeError: the observation is what `env.reset()` returns, a tuple of observation and infos.
        """
        if self.is_reset or self.t:
            raise EpisodeStateError(
                f"episode {self.id_}, add_env_reset",
                expected="a new episode",
                found=f"one that was reset already (t={self.t})",
                do="make a new SingleAgentEpisode for each reset",
            )
        check_first_observation(self, observation)
        info = as_info(infos, self.id_) or EMPTY
        self.observations.stage(observation)
        self._given_form = form_of(observation)
        self.infos.append(info)
        self._start_time = perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Any] | None = None,
    ) -> None:
        """Add what one step took and brought.

        Args:
            observation: The observation after the step.
            action: The action, as the module gave it.
            reward: The step's reward, a number; of an array with one entry the entry is taken. An array of several is a
                vector of rewards, for `LineariseRewards`.
            infos: The info dict that came with the observation.
            terminated: Whether the environment ended the episode by itself.
            truncated: Whether the episode was cut off by a limit.
            extra_model_outputs: Other outputs of the module for this step; the same keys every step.

        Raises:
            EpisodeStateError: before the reset, or after the end.
            SpaceError: the observation does not fit `observation_space`.
            EpisodeError: a model output appears late or goes missing, or a flag or an info is none.
            ColumnError: the reward is no number; an observation lacks keys of the reset observation, or the one before
                is nested differently than those before it; or an action, reward or model output is. After any of these
                the episode is as it was.
        """
        if self.is_terminated or self.is_truncated:
            raise not_steppable(self)
        if type(self.infos) is not InfosBuffer:
            self.own_columns()
        if terminated is not False or truncated is not False:
            terminated = as_flag(terminated, "terminated", self.id_)
            truncated = as_flag(truncated, "truncated", self.id_)
        empty = infos is None or (type(infos) is dict and not infos)
        info = EMPTY if empty else as_info(infos, self.id_)
        outputs = extra_model_outputs or {}
        if not put_step(self, observation, action, reward, outputs):
            add_step(self, observation, action, reward, outputs)
        self.infos._data.append(info)
        if terminated or truncated:
            self.is_terminated, self.is_truncated = terminated, truncated
        self._last_step_time = perf_counter()

    def validate(self) -> None:
        """Check that the columns' lengths fit one another.

        Raises:
            EpisodeError: they do not, or something else was put in the place of a column.
        """
        try:
            self._check_lengths()
        except AttributeError:
            columns = {"obs": self.observations, "actions": self.actions, "rewards": self.rewards}
            for name, column in (columns | self.extra_model_outputs).items():
                if not isinstance(column, InfiniteLookbackBuffer):
                    raise no_column(self, name, column) from None
            raise

    def _check_lengths(self) -> None:
        steps = self.rewards.len_incl_lookback()
        expected = {"obs": steps + 1, "infos": steps + 1, "actions": steps}
        found = {
            "obs": self.observations.len_incl_lookback(),
            "infos": self.infos.len_incl_lookback(),
            "actions": self.actions.len_incl_lookback(),
        }
        for key, column in self.extra_model_outputs.items():
            expected[key], found[key] = steps, column.len_incl_lookback()
        if found != expected and any([steps, *found.values()]):
            wrong = [key for key in expected if found[key] != expected[key]]
            raise EpisodeError(
                f"episode {self.id_} with {steps} rewards",
                expected=", ".join(f"{expected[key]} rows of {key!r}" for key in wrong),
                found=", ".join(f"{found[key]} of {key!r}" for key in wrong),
                do="give T+1 observations and infos and T of every other column",
            )

    def to_numpy(self) -> SingleAgentEpisode:
        """Return the episode itself: its columns are arrays already."""
        return self

    # -- parts and wholes ----------------------------------------------------------------------

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Add the steps of the chunk that follows this one.

        Args:
            other: A chunk of the same episode that starts at this one's `t`, with the observation
                this one ends with. Its lookback is left out.

        Raises:
            EpisodeStateError: this chunk is done, or `other` does not continue it.
        """
        join_episode(self, other)

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Start the next chunk of this running episode.

        Args:
            len_lookback_buffer: How many earlier steps the new chunk keeps, clamped to those there are.

        Returns:
            A chunk of length 0 that holds this one's last observation.

        Raises:
            EpisodeStateError: the episode is done or was never reset.
            EpisodeError: a negative lookback.
        """
        return cut_episode(self, len_lookback_buffer)

    def __getitem__(self, item: slice) -> SingleAgentEpisode:
        if not isinstance(item, slice):
            raise NotAvailableError(
                f"episode {self.id_}[...]",
                expected="a slice",
                found=repr(item),
                do="use episode[i:i+1], or a getter such as get_rewards(i)",
            )
        return self.slice(item)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Copy a range of steps into a chunk of its own.

        Args:
            slice_: Steps of this chunk, by Python's rules; a step above 1 keeps every k-th step and
                the last observation.
            len_lookback_buffer: Earlier steps to keep, clamped to those there are; default: as many
                as this chunk keeps.

        Returns:
            The chunk; it is done if this one is and its last step is included.

        Raises:
            EpisodeError: a negative lookback.
        """
        return slice_episode(self, slice_, len_lookback_buffer)

    def own_columns(self) -> None:
        """Copy the columns out of the block they may live in."""
        for column in (self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()):
            column.own()
        self.infos = InfosBuffer(self.infos.data, self.infos.lookback)

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that makes the chunk, as plain dicts, arrays and scalars."""
        return episode_state(self)

    @staticmethod
    def from_state(state: dict[str, Any]) -> SingleAgentEpisode:
        """Rebuild a chunk from `get_state()`."""
        return episode_from_state(SingleAgentEpisode, state)

    def __setstate__(self, state: Any) -> None:
        # One by one: attributes that come as a whole dict lie in more places of memory, which whoever reads many
        # episodes pays for.
        attributes, slots = state if isinstance(state, tuple) else (state, None)  # slots: of a subclass
        for own in (attributes, slots):
            for name, value in (own or {}).items():
                setattr(self, name, value)

    def equals(self, other: Any) -> bool:
        """Whether another episode holds the same: columns (NaN equals NaN), flags, names, infos, custom data.

        `==` compares identity, as sets and dicts of episodes need it.
        """
        if not isinstance(other, SingleAgentEpisode):
            return False
        return all(same_value(getattr(self, name), getattr(other, name)) for name in _EQUAL)

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "running"
        return f"SAEps(len={len(self)}, t={self._t_started}..{self.t}, {end}, id={self.id_})"


def _column(rows: Any, lookback: int, space: gym.Space[Any] | None) -> InfiniteLookbackBuffer:
    if rows is None:
        return InfiniteLookbackBuffer(None, 0, space)
    if isinstance(rows, InfiniteLookbackBuffer):
        column = rows.copy_rows(range(rows.len_incl_lookback()), 0)
        column.space = column.space if space is None else space
    else:
        if isinstance(rows, (tuple, np.ndarray, dict)) and not flatten(rows)[0]:
            rows = None
        column = InfiniteLookbackBuffer(rows, 0, space)
    column.lookback = min(lookback, column.len_incl_lookback())
    return column
