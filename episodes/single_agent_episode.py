"""Episodes of one agent, from a reset to an end or to the last step taken."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import (
    ColumnError,
    EpibatchError,
    EpisodeError,
    EpisodeStateError,
    SpaceError,
    UnknownNameError,
    add_context,
    nearest,
)
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.spaces import check_row, fitting_action, integer_limits
from epibatch.core.structs import flatten, flatten_like, form_of, form_text

from ._parts.arguments import as_flag, as_info, as_reward, as_rewards, check_space, check_state, check_steps, fresh_id
from ._parts.episode import Episode
from ._storage.growing_column import NOTHING, RowPlan
from ._storage.infos_buffer import EMPTY, InfosBuffer, mark_placeholders
from .arrays import as_value, leaves_like, same_value, shielded
from .indexing import WATCH, Indices, check_newest
from .infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["SingleAgentEpisode", "no_column"]

_ARRAY = np.ndarray
_IDENTITY = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
_PLAIN = (*_IDENTITY, "t_started", "is_terminated", "is_truncated")
_EQUAL = (*_PLAIN, "observations", "infos", "actions", "rewards", "extra_model_outputs", "custom_data")
_STATE = (
    *_PLAIN,
    *("observation_space", "action_space", "given_observation_space", "lookback", "observations", "raw_observation"),
    *("provisional", "infos", "actions", "rewards", "extra_model_outputs", "custom_data", "duration_s"),
)


class SingleAgentEpisode(Episode):
    """The columns of one agent's episode, or of a chunk of it.

    `observations[0]` is the reset observation; `actions[t]`, `rewards[t]` and the model outputs of
    step t follow `observations[t]`. A chunk of length T therefore has T+1 observations and infos
    and T of everything else. Each column is growable arrays from its first row on. The newest
    observation is provisional: a value of any shape and type can replace it at index -1 before the
    next step.

    Every getter takes an int (one row), a slice or a list of ints (stacked rows), or None (all rows
    after the lookback). Non-negative indices count from the chunk's start, negative ones from the
    end, or from the chunk's start backwards with `neg_index_as_lookback`. With `fill`, rows that do
    not exist are filled with that value; without it ints raise and slices are shortened.

    Rows of numbers that are not filled are views. Writing to them writes to the episode, as code for RLlib's episodes
    does it: after `rewards = episode.get_rewards()`, `rewards -= rewards.mean()` changes the episode, and
    `rewards = rewards - rewards.mean()` does not.

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

    Attributes:
        given_observation_space: Space of the environment's observations. New ones are checked against it; None: not.

    Raises:
        EpisodeError: columns whose lengths do not fit one another, or a negative lookback.

    Examples:
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
        self.given_observation_space = check_space(observation_space, "observation_space", self.id_)
        rewards_column = _column(as_rewards(rewards), 0, None)
        lookback = rewards_column.len_incl_lookback()
        if len_lookback_buffer != "auto":
            lookback = min(check_steps(len_lookback_buffer, "len_lookback_buffer", self.id_), lookback)
        rewards_column.lookback = lookback
        self.observations = _column(observations, lookback, observation_space)
        self.observations.provisional = True
        self.actions = _column(actions, lookback, check_space(action_space, "action_space", self.id_))
        self.actions.limits = integer_limits(action_space)
        self.rewards = rewards_column
        if infos is None:
            infos = [{} for _ in range(self.observations.len_incl_lookback())]
        self.infos: Any = InfosBuffer(getattr(infos, "data", infos), lookback)
        self.extra_model_outputs: dict[str, InfiniteLookbackBuffer] = {
            key: _column(rows, lookback, None) for key, rows in (extra_model_outputs or {}).items()
        }
        self.t_started = check_steps(t_started or 0, "t_started", self.id_)
        self.validate()

    @classmethod
    def over(
        cls,
        columns: Mapping[str, Any],
        id_: str,
        t_started: int,
        *,
        terminated: bool = False,
        truncated: bool = False,
        custom_data: Mapping[str, Any] | None = None,
        return_before: float = math.nan,
    ) -> SingleAgentEpisode:
        """Return an episode that shows these columns: buffers by the names of its attributes."""
        episode = cls.__new__(cls)
        episode._set_identity(id_, None, None, None)
        episode._custom_data.update(custom_data or {})
        episode.is_terminated, episode.is_truncated = terminated, truncated
        episode.given_observation_space, episode._return_before = None, return_before
        for name, column in columns.items():
            setattr(episode, name, column)
        episode.t_started = t_started
        return episode

    def _set_identity(self, id_: str, agent_id: Any, module_id: Any, multi_agent_episode_id: Any) -> None:
        self.id_ = id_
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self._custom_data: dict[str, Any] = {}
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self._return_before = math.nan

    # -- facts ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.rewards)

    agent_steps = Episode.env_steps

    @property
    def t(self) -> int:
        """Step in the whole episode at which this chunk ends; it follows from the columns.

        Setting it changes nothing. Code for RLlib's episodes counts it up or down when it adds rows to the columns or
        takes rows away; here the rows alone do that.
        """
        return self._t_started + len(self)

    @t.setter
    def t(self, value: int) -> None:
        pass

    @property
    def t_started(self) -> int:
        """Step in the whole episode at which this chunk starts."""
        return self._t_started

    @t_started.setter
    def t_started(self, value: int) -> None:
        self._t_started = value
        for column in self._columns():
            column.t_started = value

    def _columns(self) -> list[Any]:
        return [self.observations, self.infos, self.actions, self.rewards, *self.extra_model_outputs.values()]

    @property
    def lookback(self) -> int:
        """Number of steps kept from before the chunk's start."""
        return self.rewards.lookback

    @property
    def is_reset(self) -> bool:
        """True if the episode has its reset observation."""
        return self.observations.len_incl_lookback() > 0

    @property
    def lacks_final_obs(self) -> bool:
        """True if the last observation is a placeholder, as the last info has the key `missing_final_obs`.

        The environment gave no terminal observation. Batches have the observation before it in its place. In a loop of
        your own, add such an end with any observation and `infos={"missing_final_obs": True}`.
        """
        return mark_placeholders([self.infos])[0]

    @property
    def observation_space(self) -> gym.Space[Any] | None:
        """Space of the observations as stored (a piece that rewrites them sets it)."""
        return self.observations.space

    @observation_space.setter
    def observation_space(self, space: gym.Space[Any] | None) -> None:
        self.observations.space = space

    @property
    def action_space(self) -> gym.Space[Any] | None:
        """Space of the actions as stored."""
        return self.actions.space

    @action_space.setter
    def action_space(self, space: gym.Space[Any] | None) -> None:
        self.actions.space, self.actions.limits = space, integer_limits(space)

    def get_return(self) -> float:
        """Sum of the rewards of this chunk, lookback excluded."""
        return float(np.sum(self.rewards.get())) if len(self) else 0.0

    @property
    def return_before(self) -> float:
        """Sum of the episode's rewards before this chunk, which cut chunks know; NaN if it is not known.

        A chunk that was made of data in the middle of an episode knows it if its lookback goes back to the start.
        What a learner piece makes of rewards of earlier chunks does not count.
        """
        if self._t_started == 0:
            return 0.0
        if math.isnan(self._return_before) and self.rewards.lookback >= self._t_started:
            return self._sum(-self._t_started, 0)
        return self._return_before

    def _sum(self, start: int, stop: int) -> float:
        """Sum of the rewards of a range of steps, negative ones of the lookback; NaN if one is not known."""
        if stop <= start:
            return 0.0
        try:
            return float(np.sum(self.rewards.rows(start, stop)[0]))
        except ColumnError:  # the caller gave no reward
            return math.nan

    def get_data_dict(self) -> dict[str, Any]:
        """The chunk's steps as a dict of columns, each with `len(self)` rows."""
        flags = np.zeros((2, len(self)), np.bool_)
        if len(self):
            flags[:, -1] = self.is_terminated, self.is_truncated
        return {
            Columns.OBS: self.get_observations(slice(0, len(self))),
            Columns.INFOS: self.get_infos(slice(0, len(self))),
            Columns.ACTIONS: self.get_actions(),
            Columns.REWARDS: self.get_rewards(),
            Columns.TERMINATEDS: flags[0],
            Columns.TRUNCATEDS: flags[1],
            Columns.T: np.arange(self.t_started, self.t),
            Columns.EPS_ID: np.full(len(self), self.id_),
            **{key: column.get() for key, column in self.extra_model_outputs.items()},
        }

    # -- reading -------------------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Observations; row 0 is the chunk's first, and there is one more than steps.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place.
        """
        return self.observations.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Info dicts, one per observation; several come as a list."""
        return self.infos.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Actions, as the module gave them.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place.
        """
        return self.actions.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Rewards.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place. For pieces
        of acting pipelines they are read-only, as `set_rewards` says.
        """
        rows = self.rewards.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)
        watch = WATCH.get()
        return shielded(rows) if watch is not None and watch.acting else rows

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Rows of one of the module's other outputs.

        The rows are views: writing to them writes to the episode. Call `.copy()` first to compute in place.
        """
        return self._extra(key).get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    # -- writing -------------------------------------------------------------------------------

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations; None addresses all rows after the lookback."""
        self._set(self.observations, "obs", new_data, at_indices, neg_index_as_lookback)

    def set_infos(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite info dicts."""
        self._set(self.infos, "infos", new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite actions."""
        self._set(self.actions, "actions", new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite rewards.

        Raises:
            EpisodeStateError: a piece of an acting pipeline addresses more than the newest step. Such a piece sees
                the same episode again after every step, so that a change would pile up.
        """
        self._set(self.rewards, "rewards", new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite rows of one of the module's other outputs; the key must exist."""
        self._set(self._extra(key), key, new_data, at_indices, neg_index_as_lookback)

    def _set(self, buffer: Any, name: str, new_data: Any, at_indices: Indices, neg_index_as_lookback: bool) -> None:
        try:
            watch = WATCH.get()
            if watch is not None and watch.acting and name == Columns.REWARDS:
                check_newest(at_indices, buffer.lookback, buffer.len_incl_lookback(), neg_index_as_lookback)
            buffer.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)
        except EpibatchError as error:
            add_context(error, f"episode {self.id_!r}, column {name!r}:")
            raise

    def _extra(self, key: str) -> InfiniteLookbackBuffer:
        if key not in self.extra_model_outputs:
            raise UnknownNameError(
                f"episode {self.id_}",
                expected="the key of an extra model output",
                found=repr(key),
                do=nearest(key, self.extra_model_outputs),
            )
        return self.extra_model_outputs[key]

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
        self._check_first_observation(observation)
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
            SpaceError: the observation does not fit `observation_space`, or the action has integers outside of
                `action_space`. Numbers outside of a Box are taken, because they are clipped later.
            EpisodeError: a model output appears late or goes missing, or a flag or an info is none.
            ColumnError: the reward is no number; an observation lacks keys of the reset observation, or the one before
                is nested differently than those before it; or an action, reward or model output is. After any of these
                the episode is as it was.
        """
        if self.is_terminated or self.is_truncated:
            raise self._not_steppable()
        if terminated is not False or truncated is not False:
            terminated = as_flag(terminated, "terminated", self.id_)
            truncated = as_flag(truncated, "truncated", self.id_)
        empty = infos is None or (type(infos) is dict and not infos)
        info = EMPTY if empty else as_info(infos, self.id_)
        outputs = extra_model_outputs or {}
        if not self.put_step(observation, action, reward, outputs, info):
            self._add_step(observation, action, reward, outputs)
            self.infos.append(info)
            self._last_step_time = perf_counter()
        if terminated or truncated:
            self.is_terminated, self.is_truncated = terminated, truncated

    def put_step(
        self, observation: Any, action: Any, reward: Any, extras: Mapping[str, Any], info: Any = EMPTY
    ) -> bool:
        """Add a step to a running episode if the array of every column takes its row as it is.

        Rows are written after those in use, and counted only when all were taken.

        Returns:
            Whether it was added; if not, the episode is as it was, and `add_env_step` adds it or says what is wrong.
        """
        observations, actions, rewards = self.observations, self.actions, self.rewards
        outputs = self.extra_model_outputs
        steps = rewards.stop
        rows = steps + 1
        level = observations.stop == rows and actions.stop == steps and len(extras) == len(outputs)
        if not level or observations.checked_for is not self.given_observation_space:
            return False
        try:
            if type(reward) in rewards.accepts:
                rewards.flat[steps] = reward  # type: ignore[index]
            elif not rewards.lay(steps, reward):
                return False
            if type(action) in actions.accepts:
                actions.flat[steps] = action  # type: ignore[index]
            elif not actions.lay(steps, action):
                return False
            if actions.limits:
                first, stop = actions.limits
                if not (first <= action < stop if type(first) is int else ((first <= action) & (action < stop)).all()):
                    return False
            for key, output in outputs.items():
                row = extras[key]
                if output.stop != steps:
                    return False
                if type(row) in output.accepts:
                    output.flat[steps] = row  # type: ignore[index]
                elif type(row) is _ARRAY and (cells := output.cells) is not None:
                    cells[steps * output.width : rows * output.width] = row
                elif not output.lay(steps, row):
                    return False
            if type(observation) is _ARRAY and (cells := observations.cells) is not None:
                cells[rows * observations.width : (rows + 1) * observations.width] = observation
            elif not observations.lay(rows, observation):
                return False
        except (IndexError, ValueError):  # a full array, or an array that is no row of it
            full = [column.make_room(rows) for column in (actions, rewards, *outputs.values())]
            return any((observations.make_room(rows + 1), *full)) and self.put_step(
                observation, action, reward, extras, info
            )
        except (KeyError, OverflowError):
            return False
        for output in outputs.values():
            output.stop = rows
        actions.stop = rewards.stop = rows
        observations.stop = rows + 1
        self.infos.append(info)
        self._last_step_time = perf_counter()
        return True

    def _add_step(self, observation: Any, action: Any, reward: Any, extras: Mapping[str, Any]) -> None:
        """Add a step with rows of any type. If a row is refused, the columns stay as they were."""
        if self.rewards.source is not None:
            self.own_columns()
        observations, outputs = self.observations, self.extra_model_outputs
        if self._given_form is NOTHING and not self.is_reset:
            raise self._not_steppable()
        if extras.keys() != outputs.keys():
            outputs = self._set_extra_keys(extras)
        self._check_observation(observation)
        action = self.checked_action(action)
        rows = [("actions", self.actions, action), ("rewards", self.rewards, as_reward(reward))]
        rows += [(key, outputs[key], row) for key, row in extras.items()]
        plans = [(column, self._plan(key, column, row)) for key, column, row in rows]
        self._stage_observation(observation)
        for column, plan in plans:
            column.add(plan)
        observations.note_checked(self.given_observation_space, observation)

    def _set_extra_keys(self, extras: Mapping[str, Any]) -> dict[str, InfiniteLookbackBuffer]:
        outputs = self.extra_model_outputs
        if self.rewards.len_incl_lookback():
            late, gone = sorted(set(extras) - set(outputs)), sorted(set(outputs) - set(extras))
            raise EpisodeError(
                f"episode {self.id_}, extra model outputs at t={self.t}",
                expected=f"the keys of its first step: {sorted(outputs)}",
                found=", ".join([f"late key {key!r}" for key in late] + [f"no {key!r}" for key in gone]),
                do="give every step of an episode the same extra_model_outputs",
            )
        self.extra_model_outputs = {key: InfiniteLookbackBuffer() for key in extras}
        self.t_started = self._t_started
        return self.extra_model_outputs

    def _plan(self, name: str, column: InfiniteLookbackBuffer, row: Any) -> RowPlan | None:
        try:
            return column.plan(row)
        except ColumnError as error:
            add_context(error, f"{self._at(name)}:")
            raise

    def _stage_observation(self, observation: Any) -> None:
        """Add the newest observation; the check of its nesting is for those alone that the column cannot take as it is.

        Pieces can make observations alike that are longer or shorter than others, or have more keys; when the next one
        comes, they have to be alike. Pieces may rewrite observations, so the nesting to compare with is that of the
        reset observation, not the column's.
        """
        column = self.observations
        try:
            column.stage(observation)
        except ColumnError as error:  # the observation before this one, which no piece has rewritten
            add_context(error, f"{self._at('obs', before=1)}:")
            raise
        expected, space = self._given_form, self.given_observation_space
        if column.raw_row() is NOTHING or expected is NOTHING or leaves_like(column.form, observation) is not None:
            return
        found = form_of(observation)
        whole_step = expected is None and isinstance(observation, tuple)
        if not (whole_step or _lacks_keys(expected, found)) or (space is not None and space.contains(observation)):
            return
        column.drop_last()
        raise ColumnError(
            self._at("obs"),
            expected=f"an observation nested as the reset observation: {form_text(expected)}",
            found=form_text(found),
            do="return observations with the same keys from reset() and every step()",
        )

    def _at(self, column: str, before: int = 0) -> str:
        """Return the place of a row that is to be added, or so many rows before it."""
        t = self._t_started + len(self.observations) - (column != "obs") - before
        return f"episode {self.id_}, column {column!r} at t={t}"

    def _not_steppable(self) -> EpisodeStateError:
        """Return the error of a step that is added before the reset or after the end."""
        if not self.is_reset:
            expected, found, do = "add_env_reset first", "an episode without observation", "add the reset observation"
        else:
            expected, found = "a running episode", f"one that ended at t={self.t}"
            do = "start a new SingleAgentEpisode"
        return EpisodeStateError(f"episode {self.id_}, add_env_step", expected=expected, found=found, do=do)

    def checked_action(self, action: Any) -> Any:
        """Return an action as the action space has it, see `fitting_action`."""
        space = self.action_space
        if space is None or self.actions.limits is None:
            return action
        return fitting_action(space, action, self._at("actions"))

    def _check_observation(self, observation: Any) -> None:
        space = self.given_observation_space
        if space is None or (type(observation) is _ARRAY and observation.shape == space.shape):
            return
        check_row(space, observation, self._at("obs"))

    def _check_first_observation(self, observation: Any) -> None:
        """Check a reset observation; what `env.reset()` returns, observation and infos together, is none.

        A tuple of two with a dict as second part may still be an observation, if the space says so. It may be one in
        an environment with several agents too, because resets have another form there.
        """
        space = self.given_observation_space
        pair = type(observation) is tuple and len(observation) == 2 and isinstance(observation[1], dict)
        of_agent = space is None and self.multi_agent_episode_id is not None
        if not pair or isinstance(space, gym.spaces.Tuple) or of_agent:
            self._check_observation(observation)
            return
        do = "" if space is not None else "; an episode whose observations are such tuples needs its observation_space="
        kind = SpaceError if space is not None else EpisodeError
        raise kind(
            f"episode {self.id_}, add_env_reset",
            expected=f"an observation of {space}" if space is not None else "the reset observation",
            found="a tuple of two whose second part is a dict, as env.reset() returns it",
            do=f"pass the observation and the infos apart: add_env_reset(*env.reset()){do}",
        )

    def take_back_step(self) -> None:
        """Remove the newest step of an episode that owns its columns, and let the episode run on."""
        first = self.rewards.len_incl_lookback() == 1
        self.infos.drop_last()
        self.observations.drop_last()
        self.is_terminated = self.is_truncated = False
        if first:
            self.actions = InfiniteLookbackBuffer(None, 0, self.action_space)
            self.rewards, self.extra_model_outputs = InfiniteLookbackBuffer(), {}
            self.t_started = self._t_started
            return
        for column in (self.actions, self.rewards, *self.extra_model_outputs.values()):
            column.drop_last()

    def validate(self) -> None:
        """Check that the columns' lengths fit one another.

        Raises:
            EpisodeError: they do not, or something else was put in the place of a column.
        """
        columns = [("obs", self.observations), ("infos", self.infos), ("actions", self.actions)]
        columns += self.extra_model_outputs.items()
        try:
            steps = self.rewards.len_incl_lookback()
            rows = [column.len_incl_lookback() for _, column in columns]
        except AttributeError:
            columns.append(("rewards", self.rewards))
            raise next(no_column(self, *own) for own in columns if not hasattr(own[1], "len_incl_lookback")) from None
        expected = [steps + 1, steps + 1, *[steps] * (len(rows) - 2)]
        if rows != expected and any([steps, *rows]):
            faults = [
                (key, needed, count) for (key, _), needed, count in zip(columns, expected, rows) if needed != count
            ]
            raise EpisodeError(
                f"episode {self.id_} with {steps} rewards",
                expected=", ".join(f"{needed} rows of {key!r}" for key, needed, _ in faults),
                found=", ".join(f"{count} of {key!r}" for key, _, count in faults),
                do="give T+1 observations and infos and T of every other column",
            )

    def own_columns(self) -> None:
        """Copy the columns out of the block they may live in."""
        for column in self._columns():
            column.own()

    # -- parts and wholes ----------------------------------------------------------------------

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Add the steps of the chunk that follows this one.

        Args:
            other: A chunk of the same episode that starts at this one's `t`, with the observation
                this one ends with. Its lookback is left out.

        Raises:
            EpisodeStateError: this chunk is done, or `other` does not continue it.
        """
        if not hasattr(other, "get_observations"):
            raise EpisodeError(
                f"episode {self.id_}, concat_episode",
                expected="the chunk that follows",
                found=f"{type(other).__name__} {other!r}",
                do="pass a SingleAgentEpisode",
            )
        self.check_continues(other)
        self.own_columns()
        self.infos.drop_last()
        self.infos.concat(other.infos)
        if len(other):
            self._concat_columns(other)
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._custom_data.update(other.custom_data)
        self._last_step_time = other._last_step_time or self._last_step_time
        self.validate()

    def _concat_columns(self, other: SingleAgentEpisode) -> None:
        if not self.rewards.len_incl_lookback():
            self.extra_model_outputs = {key: InfiniteLookbackBuffer() for key in other.extra_model_outputs}
            self.t_started = self._t_started
        self.observations.drop_last()
        self.observations.concat(other.observations)
        self.actions.concat(other.actions)
        self.rewards.concat(other.rewards)
        for key, column in other.extra_model_outputs.items():
            self.extra_model_outputs[key].concat(column)

    def check_continues(self, other: SingleAgentEpisode) -> None:
        """Check that a chunk can be concatenated to this one.

        Raises:
            EpisodeStateError: it does not go on where this one stops.
            ColumnError: its rows are nested differently.
        """
        tests = (
            (not self.is_done, "a running episode", f"one that ended at t={self.t}"),
            (self.id_ == other.id_, f"a chunk of episode {self.id_}", f"one of {other.id_}"),
            (self.t == other.t_started, f"a chunk that starts at t={self.t}", f"t={other.t_started}"),
            (self.is_reset and other.is_reset, "chunks with observations", "one without"),
        )
        failed = next(((expected, found) for ok, expected, found in tests if not ok), None)
        if failed is None and not _equal(self.get_observations(-1), other.get_observations(0)):
            failed = "the observation this chunk ends with", "another first observation"
        keys, other_keys = sorted(self.extra_model_outputs), sorted(other.extra_model_outputs)
        if failed is None and len(other) and self.rewards.len_incl_lookback() and keys != other_keys:
            failed = f"model outputs {keys}", str(other_keys)
        if failed is not None:
            raise EpisodeStateError(
                f"episode {self.id_}, concat_episode",
                expected=failed[0],
                found=failed[1],
                do="concatenate chunks in order, as cut() made them",
            )
        if len(other):
            self._check_nesting(other)

    def _check_nesting(self, other: SingleAgentEpisode) -> None:
        outputs = other.extra_model_outputs
        pairs = [(self.actions, other.actions), (self.rewards, other.rewards)]
        pairs += [(column, outputs[key]) for key, column in self.extra_model_outputs.items() if key in outputs]
        if self.observations.len_incl_lookback() > 1:
            pairs.append((self.observations, other.observations))
        for column, other_column in pairs:
            if column.len_incl_lookback():
                flatten_like(column.form, other_column.get(slice(0, 1)))

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
        if self.is_done or not self.is_reset:
            raise self._not_cuttable(f"t={self.t}")
        total = self.rewards.len_incl_lookback()
        keep = min(check_steps(len_lookback_buffer, "len_lookback_buffer", self.id_), total)
        return self._part(range(total - keep, total), total, keep, len(self))

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
        length, lookback = len(self), self.lookback
        start, stop, step = slice_.indices(length)
        if step > 0:
            stop = max(start, stop)
        else:
            start = stop = max(start, 0)  # before the first step where there is none
            step = 1
        keep = lookback
        if len_lookback_buffer is not None:
            keep = check_steps(len_lookback_buffer, "len_lookback_buffer", self.id_)
        begin, end = lookback + start, lookback + stop
        keep = min(keep, begin)
        steps: range | list[int] = range(begin - keep, end)
        if step > 1:
            steps = [*range(begin - keep, begin), *range(begin, end, step)]
        part = self._part(steps, end, keep, start)
        if stop == length:
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part

    def _part(self, steps: range | list[int], end: int, keep: int, start: int) -> SingleAgentEpisode:
        """Return the chunk from step `start` on: absolute steps, `keep` of them lookback, and observation `end`."""
        rows: range | list[int] = [*steps, end]
        if isinstance(steps, range):
            rows = range(steps.start, end + 1 if self.infos.len_incl_lookback() else steps.start)
        columns = {
            "observations": self.observations.copy_rows(rows, keep),
            "infos": self.infos.copy_rows(rows, keep),
            "actions": self.actions.copy_rows(steps, keep),
            "rewards": self.rewards.copy_rows(steps, keep),
            "extra_model_outputs": {key: c.copy_rows(steps, keep) for key, c in self.extra_model_outputs.items()},
        }
        custom_data = copy.deepcopy(self._custom_data) if self._custom_data else None
        return_before = self.return_before + self._sum(0, start)
        part = type(self).over(
            columns, self.id_, self._t_started + start, custom_data=custom_data, return_before=return_before
        )
        part.agent_id, part.module_id = self.agent_id, self.module_id
        part.multi_agent_episode_id = self.multi_agent_episode_id
        part.given_observation_space, part._given_form = self.given_observation_space, self._given_form
        part._start_time, part._last_step_time = self._start_time, self._last_step_time
        return part

    def with_artificial_step(self) -> SingleAgentEpisode:
        """Copy the chunk, which has to have a step, and add one at its end.

        Returns:
            The copy: last observation, info, action and model outputs once more, reward 0; truncated unless this one
            was only terminated. It shares the `custom_data`, and its newest observation may be in any shape. The
            observation before takes the place of a terminal one that is missing.

        Raises:
            ColumnError: the last observation does not fit those before it.
        """
        out = copy.copy(self)
        try:
            out.observations = self.observations.with_newest_again()
        except ColumnError as error:
            add_context(error, f"{self._at('obs', before=1)}:")
            raise
        out.infos, out.actions = self.infos.with_newest_again(), self.actions.with_newest_again()
        out.rewards = self.rewards.with_newest_again()
        out.extra_model_outputs = {k: column.with_newest_again() for k, column in self.extra_model_outputs.items()}
        out.rewards.drop_last()
        out.rewards.append(0.0)
        out.given_observation_space = None
        if self.lacks_final_obs:
            for index in (-2, -1):
                out.observations.set(self.observations.get(-2), at_indices=index)
        out.is_truncated = self.is_truncated or not self.is_terminated
        return out

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything that makes the chunk, as plain dicts, arrays and scalars; spaces become dicts."""
        observations, actions = self.observations.get_state(), self.actions.get_state()
        space, outputs = self.given_observation_space, self.extra_model_outputs
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "observation_space": observations["space"],
            "action_space": actions["space"],
            "given_observation_space": None if space is None else space_to_dict(space),
            "lookback": self.lookback,
            "observations": observations["data"],
            "raw_observation": observations["raw_row"],
            "provisional": True,
            "infos": self.infos.copies(),
            "actions": actions["data"],
            "rewards": self.rewards.get_state()["data"],
            "extra_model_outputs": {key: column.get_state()["data"] for key, column in outputs.items()},
            "custom_data": copy.deepcopy(self.custom_data),
            "duration_s": self.get_duration_s(),
            "return_before": self.return_before,
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> SingleAgentEpisode:
        """Rebuild a chunk from `get_state()`.

        Raises:
            CheckpointError: `state` is no episode's.
        """
        do = "pass what get_state of an episode gave; RLlib's have another, and are converted as episodes "
        do += "(epibatch.interop.rllib.from_rllib)"
        check_state(state, _STATE, "SingleAgentEpisode.from_state", "an episode", do)
        given_space, action_space = (
            None if state[name] is None else space_from_dict(state[name])
            for name in ("given_observation_space", "action_space")
        )
        names = {"data": "observations", "raw_row": "raw_observation", "space": "observation_space"}
        observations = {key: state[name] for key, name in names.items()}
        episode = SingleAgentEpisode(
            observations=InfiniteLookbackBuffer.from_state({**observations, "provisional": True, "lookback": 0}),
            infos=InfosBuffer(state["infos"]).copies(),
            action_space=action_space,
            terminated=state["is_terminated"],
            truncated=state["is_truncated"],
            len_lookback_buffer=state["lookback"],
            **{name: state[name] for name in (*_IDENTITY, "t_started", "actions", "rewards", "extra_model_outputs")},
        )
        episode.given_observation_space, episode._return_before = given_space, state.get("return_before", math.nan)
        episode.custom_data.update(copy.deepcopy(state["custom_data"]))
        episode._start_time, episode._last_step_time = 0.0, state["duration_s"]
        return episode

    def equals(self, other: Any) -> bool:
        """True if another episode holds the same: columns (NaN equals NaN), flags, names, infos, custom data.

        `==` compares identity, as sets and dicts of episodes need it.
        """
        if not isinstance(other, SingleAgentEpisode):
            return False
        return all(same_value(getattr(self, name), getattr(other, name)) for name in _EQUAL)

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "running"
        return f"SAEps(len={len(self)}, t={self._t_started}..{self.t}, {end}, id={self.id_})"


def no_column(episode: Any, name: str, found: Any) -> EpisodeError:
    """The error about something that was put in the place of an episode's column.

    Args:
        episode: The episode.
        name: `obs`, `actions`, `rewards` or the key of a model output.
        found: What is there.
    """
    names = {"obs": "observations", "infos": "infos", "actions": "actions", "rewards": "rewards"}
    setter = f"set_{names[name]}(" if name in names else f"set_extra_model_outputs(key={name!r}, "
    return EpisodeError(
        f"episode {episode.id_!r}, column {name!r}",
        expected="the InfiniteLookbackBuffer that holds its rows",
        found=f"{type(found).__name__} in its place",
        do=f"overwrite the rows: episode.{setter}new_data=...)",
    )


def _lacks_keys(expected: Any, found: Any) -> bool:
    """Return True if a dict of the first form, at any depth, has keys that the second lacks."""
    if expected is None or expected[0] != "dict":
        return False
    forms = dict(zip(found[1], found[2])) if found is not None else {}
    return any(key not in forms or _lacks_keys(form, forms[key]) for key, form in zip(expected[1], expected[2]))


def _equal(a: Any, b: Any) -> bool:
    """Return True if two observations are equal; NaN equals NaN."""
    (left, form), (right, other_form) = flatten(a), flatten(b)
    return form == other_form and all(map(_equal_leaves, map(as_value, left), map(as_value, right)))


def _equal_leaves(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    if object in (left.dtype, right.dtype):
        return same_value(left, right)
    return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())


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
