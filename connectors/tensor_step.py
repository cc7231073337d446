"""One step of acting as tensors, for policies that are exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct, unflatten

from ._engine.chunks import ChunkGroup
from .authoring.column_paths import addresses_in

if TYPE_CHECKING:
    import torch

__all__ = ["TensorStep"]

_STEPS = "t"
"""The state that counts the steps of the episode so far, int64 `[N]`."""


class TensorStep:
    """One step of N environments as tensors, which `Piece.run_tensors` gets in place of episodes.

    Earlier steps are in *states*: tensors `[N, ...]` by name, which every step takes and returns. The first step of an
    export gets none. It finds out which states the pieces ask for.

    Args:
        obs: The newest observations, tensors `[N, ...]` nested as the environment's space.
        group: The call: its module, and what pieces share in `shared_data`.
        reward: The rewards that came with the observations, float `[N]`.
        states: The states by name; None at the first step of an export.

    Attributes:
        obs: The newest observations. A piece that rewrites observations replaces them.
        group: As given.
        initial: The states that pieces asked for in the first step: name -> value at an episode's start, `[...]`.
        reads_rewards: True if a piece asked for rewards.
    """

    def __init__(self, obs: Any, group: ChunkGroup, *, reward: Any, states: dict[str, torch.Tensor] | None) -> None:
        self.obs, self.group = obs, group
        self.initial: dict[str, torch.Tensor] = {}
        self.reads_rewards = False
        self._reward, self._states, self._kept = reward, states, dict[str, Any]()
        self._rows = flatten(obs)[0][0].shape[0]

    def state(self, name: str, initial: torch.Tensor) -> torch.Tensor:
        """Return the rows of a state, `[N, ...]`.

        Args:
            name: Its name.
            initial: Its value at an episode's start, `[...]`.
        """
        self.initial[name] = initial
        return initial.expand(self._rows, *initial.shape) if self._states is None else self._states[name]

    def keep(self, name: str, rows: torch.Tensor) -> None:
        """Give a state its value for the next step.

        Args:
            name: Its name.
            rows: Tensor `[N, ...]` of the initial value's type.
        """
        self._kept[name] = rows

    def window(self, column: str, count: int, space: Any = None) -> tuple[Any, torch.Tensor]:
        """Return a column's rows of the last `count` steps, and True for those that the episode has.

        Args:
            column: `obs`, where the newest ones are one row more; `actions`, as the module gave them; or `rewards`,
                float64.
            count: How many steps.
            space: For `actions`: space of one of the module's actions.

        Returns:
            Tensors `[N, count, ...]`, oldest first, zeros before the start; and bool `[N, count]`.
        """
        import torch

        steps = self.state(_STEPS, torch.zeros((), dtype=torch.int64))
        self.keep(_STEPS, steps + 1)
        known = steps[:, None] + torch.arange(-count, int(column == Columns.OBS)) >= 0
        if column == Columns.REWARDS:
            self.reads_rewards = True
            self._reward = torch.where(steps > 0, self._reward.double(), 0.0)
            return torch.cat([self._earlier(column, self._reward, count - 1), self._reward[:, None]], 1), known
        rows = self.obs
        if column == Columns.ACTIONS:
            struct = get_base_struct_from_space(space)
            rows = map_struct(lambda leaf: torch.from_numpy(np.zeros((1, *leaf.shape), leaf.dtype)), struct)
        leaves = [self._earlier(name, leaf, count) for name, leaf in addresses_in(rows, column).items()]
        newest, form = flatten(rows)
        if column == Columns.OBS:
            leaves = [torch.cat([earlier, leaf[:, None]], 1) for earlier, leaf in zip(leaves, newest)]
        return unflatten(form, leaves), known

    def _earlier(self, address: str, like: torch.Tensor, count: int) -> torch.Tensor:
        """Return the last `count` rows of a leaf; the newest one is not known yet."""
        name = f"last_{address}"
        if not count:
            return like.new_zeros(self._rows, 0, *like.shape[1:])
        if self._states is None:
            longest = max(count, len(self.initial.get(name, ())))
            self.initial[name] = like.new_zeros(longest, *like.shape[1:])
            return like.new_zeros(self._rows, count, *like.shape[1:])
        rows = self._states[name]
        return rows[:, rows.shape[1] - count :]

    def states_after(self, actions: Any) -> dict[str, torch.Tensor]:
        """Return the states for the next step.

        Args:
            actions: The module's actions, tensors `[N, ...]`.
        """
        import torch

        newest = {Columns.OBS: self.obs, Columns.ACTIONS: actions, Columns.REWARDS: self._reward}
        leaves = {f"last_{name}": leaf for at, rows in newest.items() for name, leaf in addresses_in(rows, at).items()}
        out = {}
        for name, rows in (self._states or {}).items():
            if name in self._kept:
                out[name] = self._kept[name]
            else:
                out[name] = torch.cat([rows[:, 1:], leaves[name][:, None].to(rows.dtype)], 1)
        return out
