"""One step of acting as tensors: for runners that stay on a device, and for policies that are exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, map_struct, unflatten

from ._engine.call import PipelineCall
from ._engine.chunks import ChunkGroup
from .authoring.column_paths import addresses_in

if TYPE_CHECKING:
    import torch

__all__ = ["TensorStep", "group_of_tensors"]

_STEPS = "t"
"""The state that counts the steps of the episode so far, int64 `[N]`."""


class TensorStep:
    """One step of N environments as tensors, which `Piece.run_tensors` gets in place of episodes.

    Earlier steps are in *states*: tensors `[N, ...]` by name, which every step takes and returns. The first step gets
    none. It finds out which states the pieces ask for.

    Args:
        obs: The newest observations, tensors `[N, ...]` nested as the environment's space.
        group: The call: its module, and what pieces share in `shared_data`.
        reward: The rewards that came with the observations, float `[N]`.
        states: The states by name; None at the first step.
        state_in: The states of a recurrent module, `[N, ...]`; None: it has none.

    Attributes:
        obs: The newest observations. A piece that rewrites observations replaces them.
        group: As given.
        state_in: As given.
        initial: The states that pieces asked for in the first step: name -> value at an episode's start, `[...]`.
        reads_rewards: True if a piece asked for rewards.
    """

    def __init__(
        self,
        obs: Any,
        group: ChunkGroup,
        *,
        reward: Any,
        states: dict[str, torch.Tensor] | None,
        state_in: Any = None,
    ) -> None:
        self.obs, self.group, self.state_in = obs, group, state_in
        self.initial: dict[str, torch.Tensor] = {}
        self.reads_rewards = False
        self._reward, self._states, self._kept = reward, states, dict[str, Any]()

    @property
    def _rows(self) -> int:
        rows: int = flatten(self.obs)[0][0].shape[0]  # len() would fix their number where torch exports the step
        return rows

    @property
    def _device(self) -> torch.device:
        device: torch.device = flatten(self.obs)[0][0].device
        return device

    @property
    def is_first(self) -> bool:
        """True if the step was given no states."""
        return self._states is None

    def as_first(self) -> TensorStep:
        """Return the step as if no states had been given, for pieces that ask for others."""
        step = TensorStep(self.obs, self.group, reward=self._reward, states=None, state_in=self.state_in)
        step.reads_rewards = True
        return step

    def check_tensors(self, columns: Any) -> None:
        """Raise if a piece made something else than tensors on the device of the observations.

        Args:
            columns: Those after it.

        Raises:
            ColumnError: it did, in a column or in the observations.
        """
        named = {Columns.OBS: self.obs, **columns} if isinstance(columns, dict) else {"columns": columns}
        for name, column in named.items():
            for leaf in flatten(column)[0]:
                if not hasattr(leaf, "detach") or leaf.device != self._device:
                    found = f"one on {leaf.device}" if hasattr(leaf, "detach") else type(leaf).__name__
                    raise ColumnError(
                        f"column {name!r}",
                        expected=f"tensors on {self._device}",
                        found=found,
                        do="use what tensors have, and torch's functions, and return the columns; or leave out "
                        "takes_tensors and sample with SingleAgentEnvRunner",
                    )

    def state(self, name: str, initial: torch.Tensor) -> torch.Tensor:
        """Return the rows of a state, `[N, ...]`.

        Args:
            name: Its name.
            initial: Its value at an episode's start, `[...]`.
        """
        self.initial[name] = initial = initial.to(self._device)
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
        known = steps[:, None] + torch.arange(-count, int(column == Columns.OBS), device=self._device) >= 0
        if column == Columns.REWARDS:
            self.reads_rewards = True
            self._reward = torch.where(steps > 0, self._reward.double(), 0.0)
            return torch.cat([self._earlier(column, self._reward, count - 1), self._reward[:, None]], 1), known
        rows = self.obs
        if column == Columns.ACTIONS:
            struct = get_base_struct_from_space(space)
            rows = map_struct(lambda leaf: self._zeros((1, *leaf.shape), leaf.dtype), struct)
        leaves = [self._earlier(name, leaf, count) for name, leaf in addresses_in(rows, column).items()]
        newest, form = flatten(rows)
        if column == Columns.OBS:
            leaves = [torch.cat([earlier, leaf[:, None]], 1) for earlier, leaf in zip(leaves, newest)]
        return unflatten(form, leaves), known

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.zeros(shape, dtype)).to(self._device)

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

        states = self._states
        if states is None:
            states = {name: value.expand(self._rows, *value.shape) for name, value in self.initial.items()}
        if not states:
            return {}
        newest = {Columns.OBS: self.obs, Columns.ACTIONS: actions, Columns.REWARDS: self._reward}
        leaves = {f"last_{name}": leaf for at, rows in newest.items() for name, leaf in addresses_in(rows, at).items()}
        out = {}
        for name, rows in states.items():
            if name in self._kept:
                out[name] = self._kept[name]
            else:
                out[name] = torch.cat([rows[:, 1:], leaves[name][:, None].to(rows.dtype)], 1)
        return out


def group_of_tensors(module: Any, explore: bool | None) -> ChunkGroup:
    """Return the group of a call without episodes, whose columns are batched rows.

    Args:
        module: The module that acts.
        explore: Whether actions explore.
    """
    call = PipelineCall(rl_module=module, episodes=[], explore=explore, training=False)
    (group,) = call.groups.values()
    call.groups = {}
    group.ragged = True  # no time axis where pieces run
    return group
