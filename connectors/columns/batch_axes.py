"""Several leading axes of a finished train batch."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.structs import map_struct

from .._engine.chunks import ChunkGroup
from ..columnar_piece import Piece

__all__ = ["BatchAxes"]


class BatchAxes(Piece):
    """Gives a finished batch several leading axes: columns `[B, ...]` become `[*sizes, ...]`.

    Put it at the end of a learner pipeline. Steps of one chunk follow one another, so `sizes=[-1, 50]` makes rows of
    chunks that all have 50 steps `[chunks, 50, ...]`. Of sequences `[B, T, ...]` the axis B is split.

    Use it in a loop of your own. A Learner draws minibatches along the first axis, and its losses and networks have to
    take the others.

    Counterparts: TorchRL's `BatchSizeTransform`.

    Args:
        sizes: Lengths of the leading axes; one may be -1.

    Raises:
        ConfigError: no such lengths.
        ColumnError: the batch has another number of rows.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> batch = {"obs": torch.zeros(6, 4), "rewards": torch.zeros(6)}
        >>> batch = BatchAxes(sizes=[2, -1])(rl_module=SimpleNamespace(), batch=batch, episodes=[])
        >>> batch["obs"].shape, batch["rewards"].shape
        (torch.Size([2, 3, 4]), torch.Size([2, 3]))
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors",)
    sizes: Any

    def __post_init__(self) -> None:
        """Check the sizes."""
        given = self.sizes
        fits = isinstance(given, (list, tuple)) and all(
            type(size) is int and (size > 0 or size == -1) for size in given
        )
        if not fits or not given or list(given).count(-1) > 1:
            expected, do = "a list of lengths of at least 1, one of which may be -1", "pass sizes=[-1, 50], say"
            raise ConfigError("BatchAxes.sizes", expected=expected, found=repr(given), do=do)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Split the first axis of each column."""
        known = math.prod(size for size in self.sizes if size > 0)

        def split(leaf: Any, name: str) -> Any:
            if not getattr(leaf, "ndim", 0):  # a number, such as a weight of all rows
                return leaf
            if len(leaf) % known or (len(leaf) != known and -1 not in self.sizes):
                raise ColumnError(
                    f"BatchAxes(sizes={list(self.sizes)}), column {name!r}",
                    expected=f"a number of rows that makes these axes, {known} or a multiple if one is -1",
                    found=f"{len(leaf)} rows",
                    do="take so many steps; with advantages each chunk has one row more, which loss_mask leaves out",
                )
            return leaf.reshape(*self.sizes, *leaf.shape[1:])

        return {
            name: column if isinstance(column, list) else map_struct(lambda leaf, name=name: split(leaf, name), column)
            for name, column in columns.items()
        }
