"""Makes images gray."""

from __future__ import annotations

from typing import Any

from epibatch.core.arrays_or_tensors import as_type_of
from epibatch.core.errors import ColumnError, ConfigError

from ..authoring.column_transform import ColumnTransform
from ..observations.affine import as_lists, as_numbers
from .image_rows import images_of, in_blocks


class Grayscale(ColumnTransform):
    """Makes one channel of several: the luma of RGB images, by the weights 0.299, 0.587 and 0.114 of ITU-R BT.601.

    Images have the channels last, (height, width, channels), and keep their type; whole numbers are rounded, and so
    are bools (more than half is True).

    Counterparts: TorchRL's `GrayScale`.

    Args:
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        weights: Of each channel; none is negative, and their sum is at most 1.
        keep_axis: Whether the axis of channels stays, with length 1.

    Raises:
        ConfigError: other weights.
        ColumnError: rows that are no images of as many channels.

    Examples:
        >>> import numpy as np
        >>> Grayscale().transform(np.full((2, 4, 4, 3), 100, np.uint8)).shape
        (2, 4, 4, 1)
        >>> Grayscale(keep_axis=False).transform(np.array([[[[255, 0, 0], [0, 255, 0]]]], np.uint8)).tolist()
        [[[76, 150]]]
    """

    columns: Any = "obs"
    weights: Any = (0.299, 0.587, 0.114)
    keep_axis: bool = True
    takes_tensors = True
    monotonic = True

    def __post_init__(self) -> None:
        self.weights = as_lists(self.weights)
        self._weights = as_numbers(self.weights)
        if self._weights.ndim == 1 and (self._weights >= 0).all() and 0 < self._weights.sum() < 1 + 1e-6:
            return
        raise ConfigError(
            "Grayscale.weights",
            expected="one number for each channel, 0 or more, at most 1 in all",
            found=repr(self.weights),
            do="leave them out for RGB images; (1/3, 1/3, 1/3) is the mean",
        )

    def transform(self, x: Any) -> Any:
        """The gray images."""
        images = images_of(x, "Grayscale")
        if images.shape[-1] != len(self._weights):
            raise ColumnError(
                "Grayscale",
                expected=f"images with {len(self._weights)} channels on the last axis",
                found=f"rows of shape {x.shape[1:]}",
                do="give a weight for each channel: weights=(...)",
            )
        out = in_blocks(images, images.shape[1:-1], lambda block: block @ as_type_of(self._weights, block))
        return out.reshape(*x.shape[:-1], 1) if self.keep_axis else out.reshape(x.shape[:-1])
