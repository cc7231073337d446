"""One reward of several: a weighted sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import ColumnError, ConfigError

from ..observations.affine import as_numbers
from .elementwise import RewardTransform


class LineariseRewards(RewardTransform):
    """Makes one reward per step of a vector of them, one per objective: the sum, each times its weight.

    Linear scalarisation, as for multi-objective environments; weights of one 1 and zeros pick an objective.

    Counterparts: TorchRL's `LineariseRewards`.

    Args:
        weights: One number per objective; None: 1 for each.
        columns: The vectors.

    Raises:
        ConfigError: weights that are no list of finite numbers.
        ColumnError: rewards of another number of objectives.

    Examples:
        >>> LineariseRewards(weights=[1.0, 0.5]).transform(np.array([[1.0, 2.0], [0.0, -4.0]]))
        array([ 2., -2.])
    """

    weights: Any = None
    columns: Any = "rewards"

    def __post_init__(self) -> None:
        """Check the weights."""
        if self.weights is None:
            return
        self._weights = as_numbers(self.weights)
        if self._weights.ndim != 1 or not self._weights.size or not np.isfinite(self._weights).all():
            raise ConfigError(
                "LineariseRewards.weights",
                expected="a list of finite numbers, one per objective",
                found=repr(self.weights),
                do="pass such a list, as in weights=[1.0, 0.5]",
            )

    def transform(self, x: Any) -> Any:
        """The weighted sums."""
        size = "some" if self.weights is None else len(self._weights)
        if size == 1 and x.ndim == 1:  # episodes keep a reward of one entry as a number
            return x * float(self._weights[0])
        if x.ndim != 2 or size not in ("some", x.shape[1]):
            raise ColumnError(
                "LineariseRewards",
                expected=f"vectors of {size} entries, as many as weights",
                found=f"rows of shape {tuple(x.shape[1:])}",
                do="pass a weight for each objective" if x.ndim == 2 else "leave the piece out",
            )
        if self.weights is None:
            return x.sum(1)
        if isinstance(x, np.ndarray):
            return x @ self._weights.astype(np.float32 if x.dtype == np.float32 else np.float64)
        rows = x if x.is_floating_point() else x.float()
        return rows @ rows.new_tensor(self._weights)
