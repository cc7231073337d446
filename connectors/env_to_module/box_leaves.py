"""The Box leaves of observations as columns of one matrix, and back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError
from epibatch.core.running_moments import Floats
from epibatch.core.shared_moments import LeafShapes
from epibatch.core.space_checks import get_base_struct_from_space
from epibatch.core.structs import flatten, paths_of, unflatten

__all__ = ["BoxLeaf", "BoxLeaves", "filtered_dtype"]


class BoxLeaf(NamedTuple):
    """One Box among the leaves.

    Args:
        name: Its place, such as `observation['arm'][0]`.
        position: Its place among all leaves.
        columns: Its entries' columns.
        shape: Its shape.
        dtype: The type it is given back in.
    """

    name: str
    position: int
    columns: slice
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class BoxLeaves:
    """Where the entries of an observation space's Boxes stand in a row of all of them, sorted by name.

    Args:
        space: Space of one observation.

    Attributes:
        space: The space.
        form: Nesting of an observation.
        shapes: Shape of each Box by name.
        size: Number of columns.

    Example:
        >>> leaves = BoxLeaves(gym.spaces.Dict(b=gym.spaces.Box(0, 1, (2,)), a=gym.spaces.Discrete(2)))
        >>> leaves.shapes, leaves.size
        ({"observation['b']": [2]}, 2)
    """

    __slots__ = ("_boxes", "form", "shapes", "size", "space")

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        spaces, self.form = flatten(get_base_struct_from_space(space))
        names = ["observation" + path for path in paths_of(self.form)]
        self._boxes: list[BoxLeaf] = []
        self.size = 0
        for name, index, leaf in sorted(zip(names, range(len(spaces)), spaces), key=lambda item: item[0]):
            if isinstance(leaf, gym.spaces.Box):
                columns = slice(self.size, self.size + math.prod(leaf.shape))
                self._boxes.append(BoxLeaf(name, index, columns, leaf.shape, filtered_dtype(leaf)))
                self.size = columns.stop
        self.shapes: LeafShapes = {box.name: list(box.shape) for box in self._boxes}

    def rows(self, leaves: list[Any]) -> Floats:
        """The Boxes' entries side by side.

        Args:
            leaves: All leaves of a batch of observations, arrays of shape [number of rows, ...].

        Returns:
            float64, shape [number of rows, size]; a copy.

        Raises:
            SpaceError: a leaf of another shape than its Box.
        """
        for box in self._boxes:
            shape = np.shape(leaves[box.position])[1:]
            if shape != box.shape:
                raise SpaceError(
                    box.name,
                    expected=f"shape {box.shape}, as its space says",
                    found=f"shape {shape}",
                    do="let the piece in front say in recompute_output_observation_space what it makes",
                )
        count = len(leaves[0]) if leaves else 0
        if len(self._boxes) == 1:
            single: Floats = leaves[self._boxes[0].position].reshape(count, self.size).astype(np.float64)
            return single
        rows = np.empty((count, self.size))
        for box in self._boxes:
            rows[:, box.columns] = leaves[box.position].reshape(count, -1)
        return rows

    def put_back(self, leaves: list[Any], rows: Floats) -> Any:
        """The observations with `rows` in the place of the Boxes' entries; other leaves as they are."""
        out = list(leaves)
        for box in self._boxes:
            out[box.position] = rows[:, box.columns].astype(box.dtype).reshape(len(rows), *box.shape)
        return unflatten(self.form, out)

    def name_of(self, column: int) -> str:
        """The name of the Box that a column belongs to."""
        return next(box.name for box in self._boxes if column < box.columns.stop)


def filtered_dtype(box: gym.spaces.Box) -> np.dtype[Any]:
    """The type that a Box's entries have when they are no longer whole numbers: its own, or float32."""
    own = np.dtype(box.dtype)
    return own if own.kind == "f" else np.dtype(np.float32)
