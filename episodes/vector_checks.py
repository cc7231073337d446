"""Checks of what a vector environment brings, cheap where it is right."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ColumnError, SpaceError, explain
from epibatch.core.structs import Form, flatten, flatten_like

from .leaves import as_value

__all__ = ["VectorChecks"]


class VectorChecks:
    """The shapes that vector steps of N environments must have.

    Args:
        num_envs: N.
        observation_space: Space of one environment's observation; None: any observations.
    """

    def __init__(self, num_envs: int, observation_space: gym.Space[Any] | None = None) -> None:
        self._num_envs = num_envs
        self._form: Form = None
        self._shapes: list[tuple[int, ...] | None] | None = None
        self._whole: tuple[int, ...] | None = None
        if observation_space is not None:
            from epibatch.core.spaces import get_base_struct_from_space

            leaves, self._form = flatten(get_base_struct_from_space(observation_space))
            self._shapes = [leaf.shape for leaf in leaves]
            if self._form is None and self._shapes[0] is not None:
                self._whole = (num_envs, *self._shapes[0])

    def check_observations(self, observations: Any) -> None:
        """Compare the shapes of a vector step's observations with the space.

        Raises:
            ColumnError: not one row per environment.
            SpaceError: another nesting or shape than the space.
        """
        if type(observations) is np.ndarray and (
            observations.shape == self._whole
            if self._shapes
            else observations.ndim and len(observations) == self._num_envs
        ):
            return
        if self._shapes is None:
            self.check_rows("obs", observations)
            return
        try:
            leaves = flatten_like(self._form, observations)
        except ColumnError as error:
            raise SpaceError(f"vector step, column 'obs' against the observation space\n{error}") from error
        self.check_rows("obs", observations)
        for leaf, shape in zip(leaves, self._shapes):
            found = np.shape(leaf)[1:]
            if shape is not None and found != shape:
                raise SpaceError(
                    explain(
                        "vector step, column 'obs'",
                        expected=f"shape {shape} per environment, as the observation space says",
                        found=f"{found} per environment",
                        do="correct the environment's observations, or its single_observation_space",
                    )
                )

    def check_rows(self, name: str, value: Any) -> None:
        """Check that there is one row per environment.

        Raises:
            ColumnError: there is not.
        """
        if type(value) is np.ndarray and value.ndim and len(value) == self._num_envs:
            return
        for leaf in flatten(value)[0]:
            shape = as_value(leaf).shape
            if shape[:1] != (self._num_envs,):
                raise ColumnError(
                    explain(
                        f"vector step, column {name!r}",
                        expected=f"{self._num_envs} rows, one per environment",
                        found=f"shape {shape}",
                        do="give arrays whose first axis is the environment",
                    )
                )
