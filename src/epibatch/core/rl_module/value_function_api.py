"""The interface of modules that predict values of observations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["ValueFunctionAPI"]


class ValueFunctionAPI(ABC):
    """Mixin for RLModules with a value function; advantage estimation and PPO's loss call it."""

    @abstractmethod
    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """The value of every observation of a batch.

        Args:
            batch: the module's input columns, `obs` `[B, ...]` (recurrent: `[B, T, ...]` and `state_in`).
            embeddings: the `embeddings` that `forward_train` gave for the same batch, to save computing
                them again; None computes them from `batch`.

        Returns:
            A float tensor `[B]` (recurrent: `[B, T]`).
        """
