"""Nested columns without the parts that hold nothing."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from ..authoring.column_paths import paths_from
from .open_columns import OpenColumns, PieceOfColumns, known_names, moved_space


class RemoveEmptyParts(PieceOfColumns):
    """Leaves out parts of nested columns that hold no numbers: empty dicts and tuples, and arrays of shape (0,), say.

    On both sides; of Tuples later parts move up. The observation space is that of what stays.

    Counterparts: TorchRL's `RemoveEmptySpecs`.

    Args:
        columns: Name of the column, or names.

    Raises:
        ColumnError: nothing would be left.

    Examples:
        >>> box = gym.spaces.Box(-1, 1, (2,))
        >>> space = gym.spaces.Dict(a=box, b=gym.spaces.Dict(), c=gym.spaces.Box(0, 1, (0,)))
        >>> RemoveEmptyParts(space).observation_space
        Dict('a': Box(-1.0, 1.0, (2,), float32))
    """

    columns: Any = Columns.OBS

    def __post_init__(self) -> None:
        """Take the names apart."""
        self._names = tuple(path.column for path in paths_from("RemoveEmptyParts", self.columns))

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are to be there."""
        return known_names(name for name in self._names if name != Columns.OBS)

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns."""
        return self._names

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of what stays."""
        if Columns.OBS not in self.writes:
            return input_observation_space
        return moved_space(input_observation_space, lambda tree: {Columns.OBS: _filled(tree[Columns.OBS])})

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Leave the parts out."""
        paths = paths_from("RemoveEmptyParts", self.writes)
        opened = OpenColumns(columns, group, paths, "RemoveEmptyParts", pull=Columns.OBS in self.writes)
        return opened.batch_with({name: _filled(struct, opened.leading) for name, struct in opened.tree.items()})


def _filled(struct: Any, leading: int = 0) -> Any:
    """A structure without empty parts."""
    if isinstance(struct, dict):
        parts = {key: _filled(entry, leading) for key, entry in struct.items()}
        return {key: entry for key, entry in parts.items() if not _is_empty(entry, leading)}
    if isinstance(struct, tuple):
        return tuple(entry for entry in (_filled(part, leading) for part in struct) if not _is_empty(entry, leading))
    return struct


def _is_empty(part: Any, leading: int) -> bool:
    if isinstance(part, (dict, tuple)):
        return not part
    shape = part.shape if isinstance(part, gym.Space) else np.shape(part)[leading:]
    return shape is not None and not math.prod(shape)
