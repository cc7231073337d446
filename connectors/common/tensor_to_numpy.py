"""Turns a module's output tensors into arrays."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.structs import map_struct

from .._engine.chunks import ChunkGroup
from ..columnar_piece import Piece

__all__ = ["TensorToNumpy"]

_FLOAT64 = np.dtype(np.float64)


class TensorToNumpy(Piece):
    """Makes arrays of all tensors; float64 and bfloat16 become float32, other types stay, float16 too.

    Counterparts: RLlib's `TensorToNumpy`, TorchRL's `DeviceCastTransform`.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    output_layout: ClassVar[str] = "arrays"

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Convert all columns."""
        return {
            name: map_struct(_array, value) if isinstance(value, (dict, tuple)) else _array(value)
            for name, value in columns.items()
        }

    run_tensors = Piece.leave_tensors


def _array(leaf: Any) -> Any:
    if hasattr(leaf, "detach"):  # a tensor; torch itself is not needed here
        try:
            leaf = leaf.numpy(force=True)  # off its device, and without a graph
        except TypeError:  # bfloat16, which NumPy does not have
            leaf = leaf.float().numpy(force=True)
    elif not isinstance(leaf, np.ndarray):
        return leaf
    return leaf.astype(np.float32) if leaf.dtype == _FLOAT64 else leaf
