"""A binary tree of sums: draws numbers in proportion to their weights, and changes many weights at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..store import Ints

Weights = npt.NDArray[np.float64]


class SumTree:
    """Weights of numbered items, and the sums of them that a draw walks along.

    A draw and a change walk all items' paths together, level by level, with NumPy; they take time in proportion to the
    logarithm of the size. (The structure of Schaul et al. 2016, arXiv:1511.05952.)

    Args:
        size: Number of items; their weights are 0 at first.

    Examples:
        >>> tree = SumTree(5)
        >>> tree.set(np.array([1, 4]), np.array([1.0, 3.0]))
        >>> tree.total, tree.find(np.array([0.5, 1.5, 3.9])).tolist()
        (4.0, [1, 4, 4])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._leaves = 1 << max(size - 1, 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def get(self, items: Ints) -> Weights:
        """Return the weights of items: float64 [R]."""
        out: Weights = self._sums[items + self._leaves]
        return out

    def set(self, items: Ints, weights: Any) -> None:
        """Set the weights of items; of one that is given twice the last counts.

        Args:
            items: Their numbers: int64 [R].
            weights: Not negative: float64 [R], or one for all.
        """
        sums, nodes = self._sums, items + self._leaves
        sums[nodes] = weights
        if len(nodes) > self._leaves // 8:  # most sums change: level by level as a whole
            level = self._leaves
            while level > 1:
                sums[level // 2 : level] = sums[level : 2 * level : 2] + sums[level + 1 : 2 * level : 2]
                level //= 2
            return
        while len(nodes) and nodes[0] > 1:
            nodes = nodes // 2
            sums[nodes] = sums[2 * nodes] + sums[2 * nodes + 1]

    def find(self, masses: Weights) -> Ints:
        """Return the item in whose part of the total each number lies: int64 [R].

        Args:
            masses: From 0 to below `total`: float64 [R]. Each may be changed.
        """
        sums, masses = self._sums, masses.copy()
        nodes = np.ones(len(masses), np.int64)
        while len(nodes) and nodes[0] < self._leaves:
            nodes *= 2
            left = sums[nodes]
            right = (masses >= left) & (sums[nodes + 1] > 0)  # sums of rounded numbers may leave a little over
            masses -= left * right
            nodes += right
        found: Ints = nodes - self._leaves
        return found
