"""Replaces the rows of a column by what a frozen network makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import gymnasium as gym

from ..authoring.column_transform import ColumnTransform
from ..authoring.probed_spaces import probed_space
from .encoder import Encoder

__all__ = ["FrozenModule"]


class FrozenModule(ColumnTransform):
    """Replaces the rows of a column by a frozen network's output for them: a pretrained image encoder, for example.

    The network runs in eval mode, without gradients and a few rows at a time, in both pipelines or, in the
    env-to-module pipeline alone, in front of `WriteObservationsToEpisodes`: episodes then keep embeddings, and nothing
    is encoded twice. What comes out is a column of arrays of the network's type, float32 mostly, and its space follows
    from a trial. Behind `NumpyToTensor` the network runs on the batch's device.

    A copy of the network is kept, so that training the original changes nothing here. Its weights are saved with the
    piece's state. In config files `module` is an import path, which they may have where imports are allowed.

    Counterparts: TorchRL's `R3MTransform`, `VC1Transform`, `VIPTransform`.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
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

    Example:
        >>> piece = FrozenModule(gym.spaces.Box(0, 1, (4,)), module="torch.nn:Linear",
        ...     keywords={"in_features": 4, "out_features": 2})
        >>> piece.observation_space
        Box(-inf, inf, (2,), float32)
    """

    import_parameters: ClassVar[tuple[str, ...]] = ("module",)
    takes_tensors = True

    module: Any
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    columns: Any = "obs"
    batch_size: int = 256
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._encoder = Encoder(type(self).__name__, self.module, self.keywords, self.batch_size, self.device)

    def transform(self, x: Any) -> Any:
        """The network's output."""
        return self._encoder(x)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any] | None:
        """A Box of the output's shape and type, without bounds."""
        return probed_space(space, self.transform)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """`weights`: copies of all weights and buffers of the network by name, as arrays."""
        return {"weights": self._encoder.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the weights.

        Raises:
            StateError: those of another network.
        """
        self._encoder.set_state(state.get("weights") if isinstance(state, dict) else state)

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """The first state: copies of a frozen network are the same."""
        return dict(states[0]) if states else {}
