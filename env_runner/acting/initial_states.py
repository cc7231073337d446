"""The recurrent states that episodes of environments of tensors begin with."""

from __future__ import annotations

from typing import Any

import torch

from epibatch.core.rl_module.module_facts import initial_state, state_layout
from epibatch.core.structs import map_struct
from epibatch.core.tensors import convert_to_torch_tensor


class InitialStates:
    """The states that episodes begin with, as tensors; for as long as the module's weights stay.

    Args:
        module: A recurrent module.
        device: Where they are.
    """

    def __init__(self, module: Any, device: Any) -> None:
        self._module, self._device, self._random = module, device, state_layout(module).random
        self._first = self._drawn()

    def _drawn(self) -> Any:
        return map_struct(torch.Tensor.detach, convert_to_torch_tensor(initial_state(self._module), self._device))

    def rows(self, count: int) -> Any:
        """Return `[count, ...]`; a module that draws its initial states draws one for each row."""
        if self._random:
            return map_struct(lambda *leaves: torch.stack(leaves), *(self._drawn() for _ in range(count)))
        return map_struct(lambda leaf: leaf.expand(count, *leaf.shape).clone(), self._first)

    def begun(self, states: Any, ended: torch.Tensor) -> Any:
        """Return states with the initial ones where an episode ended: bool `[N]`."""
        if not self._random:
            return map_struct(lambda leaf, new: where(ended, new, leaf), states, self._first)
        rows = ended.nonzero().flatten()
        if not len(rows):
            return states
        return map_struct(lambda leaf, new: leaf.index_copy(0, rows, new), states, self.rows(len(rows)))


def where(rows: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Return rows `[N, ...]` with another value where a mask `[N]` is True, in their type."""
    return torch.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new.to(old.dtype), old)
