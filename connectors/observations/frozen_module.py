"""Replaces the rows of a column by what a frozen network makes of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import gymnasium as gym
import numpy as np
from annotated_types import Ge

from epibatch.core.errors import ConfigError, PieceOutputError, StateError
from epibatch.core.imports import load_object
from epibatch.core.restoring import check_like

from ..authoring.column_transform import ColumnTransform
from ..authoring.fields import ParameterPiece
from ..authoring.row_spaces import probed_space

if TYPE_CHECKING:
    import torch


class Encoder:
    """Runs rows through a network in eval mode and without gradients, a few at a time.

    Args:
        piece: Name of the piece that it is for, for messages.
        module: An nn.Module, of which a copy is kept; or the import path `package.module:name` of a class or function
            that makes one.
        keywords: What to call that class or function with.
        batch_size: How many rows to run at a time.
        device: Where arrays are encoded; tensors are encoded where they are.

    Raises:
        ConfigError: `module` makes no nn.Module, or `batch_size` is no positive number.
        RegistryError: there is nothing at the import path.
    """

    def __init__(self, piece: str, module: Any, keywords: Mapping[str, Any], batch_size: int, device: str) -> None:
        import torch

        self.piece, self.batch_size, self.device = piece, batch_size, torch.device(device)
        net = load_object(module, f"{piece}.module", "function")(**keywords) if isinstance(module, str) else module
        if not isinstance(net, torch.nn.Module):
            raise ConfigError(
                f"{piece}.module",
                expected="an nn.Module, or 'package.module:name' of what makes one",
                found=f"the class {net.__name__}" if isinstance(net, type) else f"{type(net).__name__} {net!r}",
                do="make an instance of it" if isinstance(net, type) else "wrap it in an nn.Module",
            )
        self._module = (net if isinstance(module, str) else copy.deepcopy(net)).requires_grad_(False)

    def __call__(self, x: Any) -> Any:
        """The network's output for rows, of their kind: arrays for arrays, tensors for tensors.

        Args:
            x: Array or tensor of shape [rows, ...]; floats are given in the type of the network's weights, other
                numbers as they are.

        Raises:
            PieceOutputError: the network gives something else than a tensor with as many rows.
        """
        import torch

        is_array = isinstance(x, np.ndarray)
        device = self.device if is_array else x.device
        network = self._module.to(device).eval()
        dtype = next((tensor.dtype for tensor in network.parameters() if tensor.is_floating_point()), None)
        parts = []
        with torch.no_grad():
            for start in range(0, max(len(x), 1), self.batch_size):
                rows = x[start : start + self.batch_size]
                rows = torch.from_numpy(np.ascontiguousarray(rows)).to(device) if is_array else rows
                if dtype is not None and rows.is_floating_point():
                    rows = rows.to(dtype)
                parts.append(self._checked(network(rows), len(rows)))
            out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.cpu().numpy() if is_array else out

    def _checked(self, out: Any, rows: int) -> torch.Tensor:
        import torch

        if isinstance(out, torch.Tensor) and out.shape[:1] == (rows,):
            return out.detach()
        raise PieceOutputError(
            f"{self.piece}.module",
            expected=f"a tensor of {rows} rows, as many as it was given",
            found=f"shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__,
            do="wrap it in an nn.Module whose forward gives one such tensor",
        )

    def get_state(self) -> dict[str, Any]:
        """Copies of all weights and buffers by name, as arrays."""
        import torch

        tensors = {name: tensor.detach().cpu() for name, tensor in self._module.state_dict().items()}
        halves = {
            name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in tensors.items()
        }
        return {name: np.array(tensor.numpy()) for name, tensor in halves.items()}

    def set_state(self, weights: Any) -> None:
        """Take over what `get_state` gave.

        Raises:
            StateError: weights of another network.
        """
        import torch

        state = self._module.state_dict()
        expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
        actual = {name: np.shape(leaf) for name, leaf in weights.items()} if isinstance(weights, Mapping) else weights
        if expected == actual:
            check_like(f"{self.piece}.set_state", dict(zip(weights, map(np.asarray, weights.values()))), state)
        else:
            raise StateError(
                f"{self.piece}.set_state",
                expected=f"weights {expected}",
                found=f"{actual}",
                do="build the piece with the network that was saved",
            )
        self._module.load_state_dict({name: torch.as_tensor(np.asarray(leaf)) for name, leaf in weights.items()})


class EncoderPiece(ParameterPiece):
    """A piece whose state is the weights of its encoder, if it has one."""

    _is_base: ClassVar[bool] = True
    import_parameters: ClassVar[tuple[str, ...]] = ("module",)
    brings_state: ClassVar[tuple[str, ...]] = ("module", "keywords")
    _encoder: Any = None

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """`weights`: copies of all weights and buffers of the network by name, as arrays; {} without one."""
        return {} if self._encoder is None else {"weights": self._encoder.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the weights.

        Raises:
            StateError: those of another network.
        """
        if self._encoder is not None:
            self._encoder.set_state(state.get("weights") if isinstance(state, dict) else state)

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """The first state: copies of a frozen network are the same."""
        return dict(states[0]) if states else {}


class FrozenModule(EncoderPiece, ColumnTransform):
    """Replaces the rows of a column by a frozen network's output for them: a pretrained image encoder, for example.

    The network runs in eval mode, without gradients and a few rows at a time. Put the piece into both pipelines. Or put
    it only into the env-to-module pipeline, before `WriteObservationsToEpisodes`: episodes then keep embeddings, and
    no observation is encoded twice. The result is a column of arrays of the network's type, mostly float32. Its space
    follows from a trial. After `NumpyToTensor` the network runs on the batch's device.

    A copy of the network is kept, so that training the original changes nothing here. Its weights are saved with the
    piece's state. In config files `module` is an import path, which they may have where imports are allowed.

    Counterparts: TorchRL's `R3MTransform`, `VC1Transform`, `VIPTransform`.

    Args:
        module: An nn.Module that takes [rows, ...] and gives one tensor [rows, ...]; or `package.module:name` of a
            class or function that makes one.
        keywords: What to call that class or function with.
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        batch_size: How many rows to run at a time.
        device: Where the network runs on arrays, such as "cuda"; on tensors it runs where they are.

    Raises:
        ConfigError: `module` makes no nn.Module, or `batch_size` is no positive number.
        RegistryError: there is nothing at the import path.
        PieceOutputError: the network gives something else than a tensor of as many rows.

    Examples:
        >>> piece = FrozenModule(gym.spaces.Box(0, 1, (4,)), module="torch.nn:Linear",
        ...     keywords={"in_features": 4, "out_features": 2})
        >>> piece.observation_space
        Box(-inf, inf, (2,), float32)
    """

    takes_tensors = True

    module: Any
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    columns: Any = "obs"
    batch_size: Annotated[int, Ge(1)] = 256
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._encoder = Encoder(type(self).__name__, self.module, self.keywords, self.batch_size, self.device)

    def transform(self, x: Any) -> Any:
        """The network's output."""
        return self._encoder(x)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any] | None:
        """A Box of the output's shape and type, without bounds."""
        return probed_space(space, self.transform)
