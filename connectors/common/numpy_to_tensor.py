"""Turns batched arrays into torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ConfigError
from epibatch.core.runtime import device_error, device_name

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece
from ..tensor_step import TensorStep

__all__ = ["NumpyToTensor"]


class NumpyToTensor(Piece):
    """Makes tensors of all arrays, sharing memory where types allow.

    float64 becomes float32; other types stay. A number that is too large for float32 becomes infinite, and NumPy warns
    ("overflow encountered in cast"). Infos, text and other objects stay as they are.
    Without a module nothing is changed.

    Counterparts: RLlib's `NumpyToTensor`, TorchRL's `DeviceCastTransform`.

    Args:
        as_learner_connector: Whether the batch is for training (kept for ported code; no effect).
        pin_memory: Whether to move arrays into page-locked memory first.
        device: Where the tensors go: a `torch.device`, or the name of one, such as cuda:0; default: the device of a
            RolloutStorage's rows, otherwise the CPU.

    Raises:
        ConfigError: the name is none of a device.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("arrays",)
    output_layout: ClassVar[str] = "tensors"
    as_learner_connector: bool = False
    pin_memory: bool = False
    device: Any = None

    def __post_init__(self) -> None:
        """Check the device."""
        if self.device not in (None, "meta") and not hasattr(self.device, "type"):
            _check_device(self.device)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Convert all columns."""
        module = group.rl_module
        if module is None:
            return columns
        if getattr(module, "framework", "torch") != "torch":
            raise BatchLayoutError(
                "NumpyToTensor",
                expected="a module of framework 'torch'",
                found=repr(module.framework),
                do="take NumpyToTensor out of the pipeline",
            )
        device = self.device if self.device is not None else getattr(group.episodes, "device", None)
        return {name: self._converted(name, value, device) for name, value in columns.items()}

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Make float64 float32; the tensors stay where they are."""
        return dict(_converter()(columns))

    def _converted(self, name: str, value: Any, device: Any) -> Any:
        if type(value) is not np.ndarray or name == Columns.INFOS:
            if name == Columns.INFOS or isinstance(value, (list, EpisodeColumn)):
                return value
            if isinstance(value, dict):
                return {key: self._converted(key, part, device) for key, part in value.items()}
        return _converter()(value, device=device, pin_memory=self.pin_memory)


@cache
def _converter() -> Callable[..., Any]:
    from epibatch.core.tensors import convert_to_torch_tensor  # loads torch, which the list of pieces does not need

    return convert_to_torch_tensor


def _check_device(device: Any) -> None:
    """Refuse what names no device; a number is that of a GPU."""
    try:
        problem = device_error(device_name(f"cuda:{device}")) if type(device) is int else device_name(device) and None
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        expected, do = "a torch.device, or the name of one, such as cuda:0", "correct it, or leave it out"
        found = f"{repr(device)[:80]} ({problem})"
        raise ConfigError("NumpyToTensor.device", expected=expected, found=found, do=do)
