"""A module of plain arithmetic: sums of small multiples of 1/8, which every processor adds up in the same way."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI

from .content import STATES, map_shapes


def tensors(struct: Any) -> list[torch.Tensor]:
    """Return the leaves of a struct of tensors, dicts by sorted key."""
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in tensors(struct[key])]
    if isinstance(struct, (list, tuple)):
        return [leaf for part in struct for leaf in tensors(part)]
    return [struct]


class Sums(TorchRLModule, ValueFunctionAPI):
    """Module without weights whose outputs follow from sums of its observations.

    The `model_config` says: `state`, a layout of `STATES`; `axes`, how many axes rows have (default: 1, recurrent 2);
    `by_place`, True if actions follow from a row's place only, as they have to where observations are rounded.
    """

    def setup(self) -> None:
        """Make no layers."""

    def get_initial_state(self) -> Any:
        return map_shapes(STATES[self.model_config.get("state", "")], lambda shape: np.full(shape, -1.5, np.float32))

    def compute_values(self, batch: Any, embeddings: Any = None) -> torch.Tensor:
        return (torch.remainder(self._sums(batch), 64) / 16 - 2).float()

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        sums = self._sums(batch)
        if self.model_config.get("by_place"):
            sums = torch.arange(sums.numel(), dtype=torch.float64).reshape(sums.shape) / 8
        out = {**_actions(self.action_space, torch.floor(sums * 8)), "score": sums.float()}
        if self.is_stateful():
            seen = sums.sum(1)
            out["state_out"] = _moved(batch["state_in"], seen)
        return out

    def _sums(self, batch: Any) -> torch.Tensor:
        axes = self.model_config.get("axes", 2 if self.is_stateful() else 1)
        total: Any = 0
        for leaf in tensors(batch["obs"]):
            rows = leaf.double().reshape(*leaf.shape[:axes], -1)
            total = total + (rows * torch.arange(1, rows.shape[-1] + 1)).sum(-1)
        return total


def _actions(space: Any, numbers: torch.Tensor) -> dict[str, Any]:
    """Outputs from which the actions follow without a draw: distribution inputs, or the actions of a Dict space."""
    if isinstance(space, gym.spaces.Dict):
        push = (numbers % 5 / 4 - 0.5)[..., None]
        return {"actions": {"turn": (numbers % 3).long(), "push": torch.cat([push, -push], -1).float()}}
    if isinstance(space, gym.spaces.Box):
        parts = [(numbers % (k + 4)) / 4 - 0.5 for k in range(space.shape[0])]
        return {"action_dist_inputs": torch.stack([*parts, *[torch.full_like(numbers, -2.0)] * len(parts)], -1).float()}
    sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else [int(n) for n in space.nvec]
    logits = [torch.nn.functional.one_hot(numbers.long() % n, n) for n in sizes]
    return {"action_dist_inputs": torch.cat(logits, -1).float() * 64}


def _moved(state: Any, seen: torch.Tensor) -> Any:
    """A state after some steps: each entry plus what was seen."""
    if isinstance(state, dict):
        return {key: _moved(inner, seen) for key, inner in state.items()}
    return state + seen.reshape(-1, *[1] * (state.ndim - 1)).to(state.dtype)


def spec(observation_space: Any, action_space: Any, **model_config: Any) -> RLModuleSpec:
    """Return what builds such a module."""
    return RLModuleSpec(
        module_class=Sums,
        observation_space=observation_space,
        action_space=action_space,
        model_config=model_config,
    )
