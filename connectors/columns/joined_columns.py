"""Several columns, or parts of nested ones, joined into one array, and an array taken apart."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.structs import flatten, sorted_leaves

from .._engine.chunks import ChunkGroup
from ..authoring.column_paths import paths_from
from ..authoring.row_spaces import bounds_of, box_of
from .open_columns import OpenColumns, PieceOfColumns, in_tree, known_names, moved_space


class ConcatenateColumns(PieceOfColumns):
    """Joins columns, or parts of nested ones, into one array: `["obs/pose", "obs/speed"]` to `"obs"`.

    It works in both pipelines. Before the default pieces it takes parts of observations from the episodes, and the
    observation space is that of the result. A nested part is joined completely, with dicts in the order of sorted
    keys. Numbers are joined as they are, and a Discrete value is one number; `flatten_observations` makes one-hots.
    The type is that of the floats among them, or a type that holds all of them.

    Counterparts: TorchRL's `CatTensors`.

    Args:
        columns: The columns to join, in this order.
        to: The column, or part of one, that the result becomes.
        axis: Axis of a row along which they are joined; None: each row is made a vector first.
        keep: Whether the joined columns stay, too.

    Raises:
        ConfigError: `keep`, and a name that is one of the columns.
        ColumnError: columns of other rows or shapes, or parts of `to` that would be lost.
        SpaceError: observations that are to be made of other columns.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = [{"pose": np.array([t, -t]), "speed": 0.5} for t in range(3)]
        >>> episode = SingleAgentEpisode(observations=rows, actions=[0, 0], rewards=[0.0, 0.0], len_lookback_buffer=0)
        >>> piece = ConcatenateColumns(columns=["obs/pose", "obs/speed"], to="obs")
        >>> LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])(episodes=[episode])["obs"]
        array([[ 0. ,  0. ,  0.5],
               [ 1. , -1. ,  0.5]])
    """

    columns: Any
    to: str
    axis: int | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        """Take the names apart."""
        self._paths = paths_from("ConcatenateColumns", self.columns)
        (self._to,) = paths_from("ConcatenateColumns", self.to)
        if self.keep and self._to in self._paths:
            raise ConfigError(
                "ConcatenateColumns.to",
                expected="a new name, since keep is True",
                found=f"{self.to!r}, one of the columns",
                do="choose another name",
            )
        moved = () if self.keep else self._paths
        whole_columns = [path.column for path in moved if not path.keys]
        self._written = tuple(dict.fromkeys([*(path.column for path in moved if path.keys), self._to.column]))
        self._whole = tuple(whole_columns)
        self.removes = tuple(name for name in whole_columns if name not in self._written)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are to be there."""
        return known_names(self._whole)

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are in the batch after the piece, changed."""
        return self._written

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space with the joined Box in the place of its parts."""
        obs_paths = [path for path in self._paths if path.column == Columns.OBS]
        if self._to.column == Columns.OBS and len(obs_paths) < len(self._paths):
            raise SpaceError(
                f"ConcatenateColumns(to={self.to!r})",
                expected="parts of 'obs' alone, since the observation space follows from theirs",
                found=next(str(path) for path in self._paths if path.column != Columns.OBS),
                do='join into a column of its own, such as to="features"',
            )
        return moved_space(input_observation_space, lambda tree: self._moved(tree, obs_paths, self._joined_spaces))

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Join."""
        targets = [self._to] if self._to.column in columns or (self._to.column == Columns.OBS and self._to.keys) else []
        opened = OpenColumns(columns, group, [*self._paths, *targets], type(self).__name__, pull=self.keep)
        opened.check_rows()
        return opened.batch_with(
            self._moved(opened.tree, self._paths, lambda leaves: _joined(leaves, opened.leading, self.axis))
        )

    def _moved(self, tree: Any, paths: Any, join: Any) -> Any:
        """A structure `{column: {part: ...}}` with the joined parts in their new place."""
        leaves = [leaf for path in paths for leaf in sorted_leaves(in_tree(path).part(tree))]
        if not self.keep:
            for path in paths:
                tree = in_tree(path).without(tree)
        if self._to.column == Columns.OBS or len(paths) == len(self._paths):
            tree = in_tree(self._to).put(self._emptied(tree), join(leaves))
        return tree

    def _emptied(self, tree: Any) -> Any:
        """The structure without what is left at the place of the result, if that is nothing."""
        rest = tree.get(self._to.column)
        if self._to.keys or rest is None:
            return tree
        names = sorted(rest) if isinstance(rest, dict) else ["all of it"]
        if flatten(rest)[0] or not isinstance(rest, (dict, tuple)):
            raise ColumnError(
                f"ConcatenateColumns(to={self.to!r})",
                expected=f"all parts of {self.to!r}, since the result takes its place",
                found=f"{', '.join(map(str, names))} would be lost",
                do=f'name them too, or write to="{self.to}/joined"',
            )
        return {name: part for name, part in tree.items() if name != self._to.column}

    def _joined_spaces(self, spaces: Any) -> gym.Space[Any]:
        bounds = [bounds_of(space, "ConcatenateColumns") for space in spaces]
        low, high = (_joined([end[None] for end in ends], 1, self.axis)[0] for ends in zip(*bounds))
        return box_of(low, high)


class SplitColumn(PieceOfColumns):
    """Takes a column apart along an axis of its rows: the inverse of `ConcatenateColumns`.

    On both sides; observations are taken from the episodes if the batch has none yet, and their space is a Dict of
    the parts'.

    Args:
        column: The column, or part of one.
        sizes: Name of each part, a column or a part of one, and how many entries it has; they follow one another.
        axis: Axis of a row along which it is taken apart.

    Raises:
        ConfigError: sizes that are no numbers of entries by name.
        ColumnError: a column of another number of entries, or a name that is taken.
        SpaceError: a space that is no array of numbers.

    Examples:
        >>> space = gym.spaces.Box(np.float32([-1, -2, 0]), np.float32([1, 2, 9]))
        >>> piece = SplitColumn(space, column="obs", sizes={"obs/pose": 2, "obs/speed": 1})
        >>> piece.observation_space
        Dict('pose': Box([-1. -2.], [1. 2.], (2,), float32), 'speed': Box(0.0, 9.0, (1,), float32))
    """

    column: str
    sizes: dict[str, int]
    axis: int = -1

    def __post_init__(self) -> None:
        """Take the names apart."""
        sizes = list(self.sizes.values()) if isinstance(self.sizes, dict) else []
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise ConfigError(
                "SplitColumn.sizes",
                expected="the number of entries of each part, by its name",
                found=repr(self.sizes),
                do='pass a dict such as sizes={"obs/pose": 3, "obs/speed": 1}',
            )
        (self._path,) = paths_from("SplitColumn", self.column)
        self._targets = paths_from("SplitColumn", list(self.sizes))
        self._ends = np.cumsum(sizes).tolist()
        parts = [self._path.column] if self._path.keys else []
        self._written = tuple(dict.fromkeys([*(path.column for path in self._targets), *parts]))
        self.removes = () if self._path.column in self._written else (self._path.column,)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are to be there."""
        is_whole = not self._path.keys and self._path.column != Columns.OBS
        return known_names([self._path.column]) if is_whole else ()

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that are in the batch after the piece."""
        return self._written

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space with a Box for each part."""
        if self._path.column != Columns.OBS:
            return input_observation_space
        return moved_space(input_observation_space, lambda tree: self._moved(tree, self._split_space))

    def _split_space(self, space: Any) -> list[Any]:
        ends = [self._split(end[None], 1) for end in bounds_of(space, "SplitColumn")]
        return [box_of(low[0], high[0]) for low, high in zip(*ends)]

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Split."""
        targets = [path for path in self._targets if path.column in columns]
        pull = self._path.column == Columns.OBS
        opened = OpenColumns(columns, group, [self._path, *targets], type(self).__name__, pull=pull)
        opened.check_rows()
        return opened.batch_with(self._moved(opened.tree, lambda rows: self._split(rows, opened.leading)))

    def _moved(self, tree: Any, split: Any) -> Any:
        pieces = split(in_tree(self._path).part(tree))
        tree = in_tree(self._path).without(tree)
        for path, part in zip(self._targets, pieces):
            tree = in_tree(path).put(tree, part)
        return tree

    def _split(self, rows: Any, leading: int) -> list[Any]:
        axis = _axis(self.axis, leading, rows)
        if axis is None or rows.shape[axis] != self._ends[-1]:
            raise ColumnError(
                f"SplitColumn, column {self.column!r}",
                expected=f"{self._ends[-1]} entries on axis {self.axis} of a row, the sum of its parts",
                found=f"rows of shape {tuple(rows.shape[leading:])}" if hasattr(rows, "shape") else "nested parts",
                do="let the numbers of parts add up to the entries that there are",
            )
        before = (slice(None),) * axis
        return [rows[(*before, slice(start, end))] for start, end in zip([0, *self._ends], self._ends)]


def _axis(axis: int, leading: int, rows: Any) -> int | None:
    """An axis of a row as one of its array; None if rows have no such axis."""
    position = axis + leading if axis >= 0 else axis + getattr(rows, "ndim", 0)
    return position if leading <= position < getattr(rows, "ndim", 0) else None


def _joined(leaves: list[Any], leading: int, axis: int | None) -> Any:
    """Arrays or tensors side by side."""
    if axis is None:
        leaves = [leaf.reshape(*leaf.shape[:leading], math.prod(leaf.shape[leading:])) for leaf in leaves]
    else:
        leaves = [leaf[..., None] if leaf.ndim == leading else leaf for leaf in leaves]
    places = [_axis(-1 if axis is None else axis, leading, leaf) for leaf in leaves]
    shapes = [None if at is None else (*leaf.shape[:at], *leaf.shape[at + 1 :]) for leaf, at in zip(leaves, places)]
    if None in shapes or len(set(zip(shapes, places))) > 1:
        raise ColumnError(
            "ConcatenateColumns",
            expected=f"rows of one shape, but for axis {axis} along which they are joined",
            found=", ".join(str(tuple(leaf.shape[leading:])) for leaf in leaves),
            do="leave axis out, so that rows are made vectors first; or bring them to one shape before",
        )
    place: Any = places[0]
    if isinstance(leaves[0], np.ndarray):
        floats = [leaf.dtype for leaf in leaves if leaf.dtype.kind == "f"]
        return np.concatenate(leaves, place, dtype=np.result_type(*floats) if floats else None)
    import torch

    return torch.cat(leaves, place)
