"""Changes the size of images."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from epibatch.core.arrays_or_tensors import as_type_of

from ..authoring.column_transform import ColumnTransform
from .image_rows import images_of, in_blocks

Method = Literal["area", "bilinear", "nearest"]


class Resize(ColumnTransform):
    """Brings images to a size: (210, 160, 3) to (84, 84, 3), say.

    - `area`: each new pixel is the mean of the old ones below it, those at its edge in part; best for making images
      smaller, and what `INTER_AREA` is in OpenCV.
    - `bilinear`: between the four old pixels with the nearest centres, as in PyTorch without `align_corners` and
      without `antialias`; torchvision and TorchRL antialias when they make images smaller.
    - `nearest`: one old pixel, the next up and left; no new colours.

    Images have the channels last, (height, width, channels), and keep their type; whole numbers are rounded, and so
    are bools (more than half is True).

    Counterparts: TorchRL's `Resize`.

    Args:
        height: New height in pixels.
        width: New width in pixels.
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        method: The interpolation.

    Raises:
        ConfigError: a height or width below 1.
        ColumnError: rows that are no images.

    Examples:
        >>> image = np.array([[0, 2], [4, 6]], np.uint8).reshape(1, 2, 2, 1)
        >>> Resize(height=1, width=1).transform(image).item()
        3
        >>> Resize(height=1, width=4, method="nearest").transform(image).ravel().tolist()
        [0, 0, 2, 2]
    """

    height: Annotated[int, Ge(1)]
    width: Annotated[int, Ge(1)]
    columns: Any = "obs"
    method: Method = "area"
    takes_tensors = True
    monotonic = True

    def transform(self, x: Any) -> Any:
        """The images in the new size."""
        images = images_of(x, "Resize")
        rows, columns, channels = images.shape[1:]
        if self.method == "nearest":
            places = (np.arange(new) * old // new for new, old in ((self.height, rows), (self.width, columns)))
            down, across = places
            out = images[:, down[:, None], across]
        elif (rows, columns) == (self.height, self.width):
            out = images
        else:
            out = in_blocks(images, (self.height, self.width, channels), self._mixed)
        return out.reshape(*x.shape[:-3], self.height, self.width, channels)

    def _mixed(self, images: Any) -> Any:
        """Images as weighted sums of old rows, then of old columns."""
        count, rows, columns, channels = images.shape
        down = as_type_of(_weights(rows, self.height, self.method), images)
        across = as_type_of(_weights(columns, self.width, self.method), images)
        images = (down @ images.reshape(count, rows, columns * channels)).reshape(-1, columns, channels)
        lines = images.swapaxes(1, 2).reshape(-1, columns)
        return (lines @ across.T).reshape(count, self.height, channels, self.width).swapaxes(2, 3)


@functools.lru_cache(32)
def _weights(old: int, new: int, method: Method) -> npt.NDArray[np.float64]:
    """Return the weight of each old pixel in each new one, along one axis: [new, old], rows add up to 1."""
    if method == "area":
        edges = np.arange(new + 1) * (old / new)
        pixels = np.arange(old)
        overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        weights: npt.NDArray[np.float64] = np.maximum(overlap, 0.0) * (new / old)
    else:
        centres = np.maximum((np.arange(new) + 0.5) * (old / new) - 0.5, 0.0)
        first = np.minimum(centres.astype(np.int64), old - 1)
        share = np.minimum(centres - first, 1.0)
        weights = np.zeros((new, old))
        np.add.at(weights, (np.arange(new), first), 1 - share)
        np.add.at(weights, (np.arange(new), np.minimum(first + 1, old - 1)), share)
    weights.flags.writeable = False
    return weights
