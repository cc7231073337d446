"""Lets a module with more choices than the environment act in it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from annotated_types import Ge

from epibatch.core.errors import SpaceError
from epibatch.core.restoring import restore_generator

from ..authoring.column_transform import ColumnTransform


class ProjectDiscreteActions(ColumnTransform):
    """Gives a module a larger Discrete space than the environment has, and maps choices back to the smaller one.

    One module can then act in environments with different numbers of actions. Choices outside of the environment's
    actions never reach it. Episodes store the module's choices. If the module should see which choices are legal,
    use `ActionMask` instead. Put it into the env-to-module pipeline; configs add its inverse.

    Counterparts: TorchRL's `DiscreteActionProjection`.

    Args:
        num_actions: Number of choices of the module, 0 to `num_actions - 1`; at least as many as the environment.
        outside: Handling of a choice i that is not below the environment's number n of actions: "modulo" makes it
            i modulo n, "last" the last action, "random" a random action, drawn each time.
        columns: The actions, or one part of them, as `actions/gear`.

    Raises:
        ConfigError: `num_actions` is below 1.
        SpaceError: actions that are not Discrete, or more of them than `num_actions`.

    Examples:
        >>> piece = ProjectDiscreteActions(input_action_space=gym.spaces.Discrete(3, start=1), num_actions=8)
        >>> piece.action_space
        Discrete(8)
        >>> piece.changed(piece.paths[0], np.array([0, 2, 3, 7]), piece.inverse)
        array([1, 3, 1, 2])
    """

    uses_spaces: ClassVar[bool] = True
    num_actions: Annotated[int, Ge(1)]
    outside: Literal["modulo", "last", "random"] = "modulo"
    columns: Any = "actions"

    def __post_init__(self) -> None:
        """Begin with a random stream of its own."""
        self._rng = np.random.default_rng()

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The larger space."""
        count = int(space.n) if isinstance(space, gym.spaces.Discrete) else None
        if count is not None and count <= self.num_actions:
            return gym.spaces.Discrete(self.num_actions)
        raise SpaceError(
            "ProjectDiscreteActions",
            expected=f"a Discrete action space of at most {self.num_actions} actions",
            found=str(space),
            do=f"pass num_actions={count} or more" if count else "name the part: columns='actions/gear', say",
        )

    def transform(self, x: Any) -> Any:
        """The choices that stand for actions of the environment: counted from 0.

        Args:
            x: Actions, [rows].
        """
        return x - self._own_space().start

    def inverse(self, y: Any) -> Any:
        """The environment's actions.

        Args:
            y: The module's choices, [rows].
        """
        space = self._own_space()
        count = int(space.n)
        if self.outside == "modulo":
            inside = y % count
        elif self.outside == "last":
            inside = np.minimum(y, count - 1)
        else:
            inside = np.where(y < count, y, self._rng.integers(0, count, np.shape(y)))
        return inside + space.start

    def _own_space(self) -> Any:
        if isinstance(self.row_space, gym.spaces.Discrete):
            return self.row_space
        raise SpaceError(
            "ProjectDiscreteActions",
            expected="the environment's action space, which says how many actions it has",
            found=str(self.row_space),
            do="pass it to the pipeline, or to the piece: ProjectDiscreteActions(None, action_space, ...)",
        )

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The state of the random stream, if actions are drawn."""
        return {"generator": self._rng.bit_generator.state} if self.outside == "random" else {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a random stream."""
        if "generator" in state:
            restore_generator("ProjectDiscreteActions.set_state", self._rng, state["generator"])
