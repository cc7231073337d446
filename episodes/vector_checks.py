"""Checks of what a vector environment brings, cheap where it is right."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, EpisodeError, SpaceError
from epibatch.core.spaces import agents_axis_advice, exact_fill_value, get_base_struct_from_space
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, paths_of, unflatten

from .arrays import as_value, owned

_BOOL = np.dtype(np.bool_)
_PLACEHOLDERS = {"nan": float("nan"), "zero": 0.0}


class VectorChecks:
    """The shapes that vector steps of N environments must have.

    Args:
        num_envs: N.
        observation_space: Space of one environment's observation; None: any observations.
        reward_shape: Shape of a reward.
    """

    def __init__(
        self, num_envs: int, observation_space: gym.Space[Any] | None = None, reward_shape: tuple[int, ...] = ()
    ) -> None:
        self._num_envs, self._flat = num_envs, (num_envs,)
        self._rewards = (num_envs, *reward_shape)
        self._form: Form = None
        self._spaces: list[Any] | None = None
        self._whole: tuple[int, ...] | None = None
        self._dtype: np.dtype[Any] | None = None
        if observation_space is not None:
            self._spaces, self._form = flatten(get_base_struct_from_space(observation_space))
            first, self._paths = self._spaces[0], paths_of(self._form)
            if self._form is None and first.shape is not None:
                self._whole, self._dtype = (num_envs, *first.shape), first.dtype

    def observations(self, observations: Any) -> Any:
        """A vector step's observations, in the types of the space.

        Raises:
            ColumnError: not one row per environment.
            SpaceError: another nesting or shape than the space, or a type that does not fit its type.
        """
        if type(observations) is np.ndarray and (
            observations.shape == self._whole and observations.dtype == self._dtype
            if self._spaces
            else observations.ndim and len(observations) == self._num_envs
        ):
            return observations
        self.check_rows("obs", observations)
        return self._typed(observations, 1)

    def terminal_observation(self, observation: Any) -> Any:
        """One environment's last observation, in the types of the space; errors as above."""
        return self._typed(observation, 0)

    def _typed(self, observations: Any, axes: int) -> Any:
        """Observations in the types of the space; `axes` leading axes are not the space's."""
        if self._spaces is None:
            return observations
        try:
            leaves = flatten_like(self._form, observations)
        except ColumnError as error:
            raise SpaceError(f"vector step, column 'obs' against the observation space\n{error}") from error
        named = zip(self._paths, leaves, self._spaces)
        return unflatten(self._form, [_fitting(path, leaf, space, axes) for path, leaf, space in named])

    def are_plain(self, rewards: Any, terminateds: Any, truncateds: Any) -> bool:
        """True if rewards and flags are surely right. Otherwise the checks below find out what is wrong."""
        for flags in (terminateds, truncateds):
            if type(flags) is not np.ndarray or flags.dtype is not _BOOL or flags.shape != self._flat:
                return False
        if type(rewards) is not np.ndarray or rewards.shape != self._rewards or rewards.dtype.kind not in "fiub":
            return False
        return b"\0" not in np.isfinite(rewards).tobytes()  # the cheapest way to ask for all

    def check_step(self, rewards: Any, terminateds: Any, truncateds: Any) -> None:
        """Check rewards and flags; errors as of the two methods below."""
        self.check_rewards(rewards)
        self.check_flags(Columns.TERMINATEDS, terminateds)
        self.check_flags(Columns.TRUNCATEDS, truncateds)

    def check_rewards(self, rewards: Any) -> None:
        """Check that there is one finite number per environment, or one vector of them.

        Raises:
            ColumnError: there is not.
        """
        array = rewards if type(rewards) is np.ndarray else as_value(_no_tensors(Columns.REWARDS, rewards))
        if array.shape != self._rewards or array.dtype.kind not in "fiub":
            kind = "vector, as reward_space says," if len(self._rewards) > 1 else "number"
            raise ColumnError(
                "vector step, column 'rewards'",
                expected=f"numbers of shape {self._rewards}, one {kind} per environment",
                found=f"{array.dtype} of shape {array.shape}",
                do=f"return one {kind.partition(',')[0]} as reward of each environment; reward_space says its shape",
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            envs = np.flatnonzero(~np.isfinite(array.reshape(self._num_envs, -1)).all(1))
            raise ColumnError(
                "vector step, column 'rewards'",
                expected="finite numbers",
                found=f"{array[envs[0]]} (NaN is also what None becomes) in environments {envs.tolist()}",
                do="return a number, 0.0 where there is no reward",
            )

    def check_flags(self, name: str, flags: Any) -> None:
        """Check that there is one bool per environment.

        Raises:
            ColumnError: there is not.
        """
        array = flags if type(flags) is np.ndarray else as_value(_no_tensors(name, flags))
        if array.dtype is not _BOOL or array.shape != self._flat:
            raise ColumnError(
                f"vector step, column {name!r}",
                expected=f"bools of shape ({self._num_envs},), one per environment",
                found=f"{array.dtype} of shape {array.shape}",
                do="return an array of bools",
            )

    def check_rows(self, name: str, value: Any) -> None:
        """Check that there is one row per environment.

        Raises:
            ColumnError: there is not.
        """
        if type(value) is np.ndarray and value.ndim and len(value) == self._num_envs:
            return
        for leaf in flatten(value)[0]:
            shape = as_value(_no_tensors(name, leaf)).shape
            if shape[:1] != (self._num_envs,):
                raise ColumnError(
                    f"vector step, column {name!r}",
                    expected=f"{self._num_envs} rows, one per environment",
                    found=f"shape {shape}",
                    do="give arrays whose first axis is the environment",
                )


def _no_tensors(name: str, value: Any) -> Any:
    """Refuse tensors, which lie on a device that is not known here."""
    if not hasattr(value, "detach"):
        return value
    raise ColumnError(
        f"vector step, column {name!r}",
        expected="NumPy arrays, or numbers",
        found=f"{type(value).__module__}.{type(value).__qualname__} of shape {tuple(value.shape)}",
        do="convert them in the vector environment: tensor.cpu().numpy()",
    )


def _fitting(path: str, leaf: Any, space: Any, axes: int) -> Any:
    """A leaf in its space's type, if that is wide enough; `axes` leading axes are not the space's."""
    if space.shape is None or space.dtype is None:
        return leaf
    array = as_value(leaf)
    if array.shape[axes:] != space.shape:
        raise SpaceError(
            f"vector step, column 'obs'{path}",
            expected=f"shape {space.shape} per environment, as the observation space says",
            found=f"{array.shape[axes:]} per environment",
            do="correct the environment's observations, or its single_observation_space"
            + (agents_axis_advice(array.shape[axes:], space.shape) if axes == 1 else ""),
        )
    if array.dtype == space.dtype:
        return leaf
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        raise SpaceError(
            f"vector step, column 'obs'{path}",
            expected=f"{space.dtype}, as {space} says",
            found=f"{array.dtype}",
            do="correct the environment's observations, or the type of its observation space",
        )
    return array.astype(space.dtype)


def placeholder(row: Any, value: Any) -> Any:
    """Return the last observation of an episode without a terminal one.

    Args:
        row: The observation before.
        value: As `missing_final_obs` of `VectorRecorder`.
    """
    if value == "keep":
        return owned(row)
    return map_struct(lambda leaf: np.full_like(leaf, _PLACEHOLDERS.get(value, value))[()], row)


def check_placeholder(value: Any, space: gym.Space[Any]) -> None:
    """Raise if observations cannot hold what takes the place of terminal ones.

    Args:
        value: As `missing_final_obs` of `VectorRecorder`.
        space: Space of one environment's observations.

    Raises:
        ConfigError: they cannot.
    """
    if value in (None, "keep"):
        return
    spaces, form = flatten(get_base_struct_from_space(space))
    for path, leaf in zip(paths_of(form), spaces):
        try:
            exact_fill_value(np.dtype(leaf.dtype), _PLACEHOLDERS.get(value, value), "missing_final_obs")
        except ColumnError as error:
            raise ConfigError(
                "missing_final_obs",
                expected=f"a value that observations{path and f' {path}'} can hold: {leaf}",
                found=repr(value),
                do="set it to 'keep' for the observation before, or to a number of that type",
            ) from error


def ended_twice(envs: list[int]) -> EpisodeError:
    """Return the error about environments that end in a step that only resets them."""
    return EpisodeError(
        "vector step of an environment that resets a step later",
        expected="no end in the step that only brings the reset observation",
        found=f"environments {envs} ended in two steps, one after the other",
        do="clear terminated and truncated in that step, or say AutoresetMode.SAME_STEP or DISABLED if "
        "the vector environment resets in one of these ways",
    )
