"""What an episode says about itself: lengths, times, flags, spaces, totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeError

from .episode_getters import EpisodeGetters

__all__ = ["EpisodeFacts", "count_steps", "no_column"]


def no_column(episode: Any, name: str, found: Any) -> EpisodeError:
    """The error about something that was put in the place of an episode's column.

    Args:
        episode: The episode.
        name: `obs`, `actions`, `rewards` or the key of a model output.
        found: What is there.
    """
    setters = {"obs": "set_observations(", "actions": "set_actions(", "rewards": "set_rewards("}
    setter = setters.get(name, f"set_extra_model_outputs(key={name!r}, ")
    return EpisodeError(
        f"episode {episode.id_!r}, column {name!r}",
        expected="the InfiniteLookbackBuffer that holds its rows",
        found=f"{type(found).__name__} in its place",
        do=f"overwrite the rows: episode.{setter}new_data=...)",
    )


def count_steps(episodes: Sequence[Any]) -> int:
    """Steps of all chunks together, lookback excluded.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> columns = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [0.0, 0.0]}
        >>> count_steps([SingleAgentEpisode(**columns, len_lookback_buffer=0)] * 3)
        6
    """
    lengths = getattr(episodes, "lengths", None)
    return int(lengths().sum()) if lengths is not None else sum(len(episode) for episode in episodes)


class EpisodeFacts(EpisodeGetters):
    """The read-only side of an episode, derived from its columns and flags."""

    is_terminated: bool
    is_truncated: bool
    _t_started: int
    _custom_data: dict[str, Any]
    _return_before: float
    _start_time: float | None
    _last_step_time: float | None

    def __len__(self) -> int:
        return len(self.rewards)

    def env_steps(self) -> int:
        """Number of steps in this chunk, lookback excluded."""
        return len(self)

    agent_steps = env_steps

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
        """Whether the episode has its reset observation."""
        return self.observations.len_incl_lookback() > 0

    @property
    def is_done(self) -> bool:
        """Whether the episode ended, by termination or truncation."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Always True: columns are arrays from their first row on."""
        return True

    @property
    def custom_data(self) -> dict[str, Any]:
        """Anything a user wants to keep with the episode."""
        return self._custom_data

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
        self.actions.space = space

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
        except ColumnError:  # whoever acts did not say
            return math.nan

    def get_duration_s(self) -> float:
        """Seconds between the reset and the newest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

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
