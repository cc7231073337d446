"""Where the rows of agents are among rows of all agents of an env step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct

from ..columns.box_bounds import bounds_of, box_of, choices_of

__all__ = ["StackedRows", "stacked_rows_of", "stacked_space"]


def stacked_rows_of(module_id: Any) -> str:
    """The key under which a call's `shared_data` has a module's `StackedRows`.

    Args:
        module_id: The module.
    """
    return f"_stacked_agents_for_mid={module_id}"


def stacked_space(space: gym.Space[Any], agents: int) -> gym.Space[Any]:
    """The space of rows `[A, ...]` of several agents, zeros where there is none.

    Args:
        space: Of one agent's row.
        agents: A.

    Example:
        >>> stacked_space(gym.spaces.Box(1.0, 2.0, (3,)), 2)
        Box(0.0, 2.0, (2, 3), float32)
        >>> stacked_space(gym.spaces.Discrete(4), 2)
        MultiDiscrete([4 4])
    """
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: stacked_space(own, agents) for key, own in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([stacked_space(own, agents) for own in space.spaces])
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary((agents, *space.shape))
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return gym.spaces.Tuple([space] * agents)
    low, high = (np.stack([bound] * agents) for bound in bounds_of(space, "StackAgents"))
    low, high = np.minimum(low, 0).astype(low.dtype), np.maximum(high, 0).astype(high.dtype)
    return box_of(low, high) if isinstance(space, gym.spaces.Box) else choices_of(low, high)


class StackedRows:
    """Places of a module's rows in arrays of shape [B, A, ...].

    Args:
        cells: For each row its place among B * A, int64.
        shape: B and A.

    Example:
        >>> stacked = StackedRows(np.array([1, 3]), (2, 2))
        >>> stacked.stack("rewards", np.array([0.5, 2.0])).tolist()
        [[0.0, 0.5], [0.0, 2.0]]
        >>> stacked.unstack("logits", np.array([[1, 2], [3, 4]])).tolist()
        [2, 4]
    """

    __slots__ = ("cells", "shape")

    def __init__(self, cells: npt.NDArray[np.int64], shape: tuple[int, int]) -> None:
        self.cells = cells
        self.shape = shape

    def stack(self, name: str, column: Any) -> Any:
        """Rows as [B, A, ...], zeros where there are none; lists have None there.

        Args:
            name: The column, for the message.
            column: Arrays of shape [rows, ...], nested, or a list.

        Raises:
            ColumnError: another number of rows.
        """
        if isinstance(column, list):
            self._check(name, len(column))
            flat: list[Any] = [None] * (self.shape[0] * self.shape[1])
            for cell, item in zip(self.cells.tolist(), column):
                flat[cell] = item
            return [flat[i : i + self.shape[1]] for i in range(0, len(flat), self.shape[1])]
        return map_struct(lambda leaf: self._stack_leaf(name, leaf), column)

    def _stack_leaf(self, name: str, leaf: Any) -> Any:
        self._check(name, len(leaf))
        out = np.zeros((self.shape[0] * self.shape[1], *leaf.shape[1:]), leaf.dtype)
        out[self.cells] = leaf
        return out.reshape(*self.shape, *leaf.shape[1:])

    def _check(self, name: str, rows: int) -> None:
        if rows != len(self.cells):
            raise ColumnError(
                f"column {name!r}",
                expected=f"{len(self.cells)} rows, one for each of its agents' rows",
                found=f"{rows} rows",
                do="let the piece that adds it give each agent as many rows as the other columns have",
            )

    def unstack(self, name: str, column: Any) -> Any:
        """The rows out of [B, A, ...].

        Args:
            name: The column, for the message.
            column: Arrays or tensors, nested.

        Raises:
            ColumnError: arrays of another shape.
        """
        return map_struct(lambda leaf: self._unstack_leaf(name, leaf), column)

    def _unstack_leaf(self, name: str, leaf: Any) -> Any:
        if tuple(leaf.shape[:2]) != self.shape:
            raise ColumnError(
                f"column {name!r}",
                expected=f"one row for each env step and agent, shape {[*self.shape, '...']}",
                found=f"shape {list(leaf.shape)}",
                do="let the module return outputs for all agents of a row, in their order",
            )
        return leaf.reshape(-1, *leaf.shape[2:])[self.cells]
