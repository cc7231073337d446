"""Changes the size of images."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from epibatch.core.arrays_or_tensors import as_type_of
from epibatch.core.errors import ConfigError

from ..authoring.column_transform import ColumnTransform
from .image_rows import images_of, in_blocks

Method = Literal["area", "bilinear", "nearest"]


class Resize(ColumnTransform):
    """Brings images to a size: (210, 160, 3) to (84, 84, 3), say.

    - `area`: each new pixel is the mean of the old ones below it, those at its edge in part; best for making images
      smaller, and what `INTER_AREA` is in OpenCV.
    - `bilinear`: between the four old pixels with the nearest centres, as in PyTorch without `align_corners`. With
      `antialias` a new pixel of a smaller image weights all old ones near it, as torchvision and TorchRL do.
    - `nearest`: one old pixel, the next up and left; no new colours.

    Images have the channels last, (height, width, channels), and keep their type; whole numbers are rounded, and so
    are bools (more than half is True).

    Counterparts: TorchRL's `Resize`.

    Args:
        height: New height in pixels.
        width: New width in pixels.
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        method: The interpolation.
        antialias: True: `bilinear` reads all old pixels when it makes images smaller.

    Raises:
        ConfigError: a height or width below 1, or `antialias` with another method.
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
    antialias: bool = False
    takes_tensors = True
    monotonic = True

    def __post_init__(self) -> None:
        """Check the method."""
        if self.antialias and self.method != "bilinear":
            raise ConfigError(
                "Resize.antialias",
                expected="method='bilinear'",
                found=f"method={self.method!r}",
                do="leave it out; area reads all old pixels anyway",
            )

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
        down, across = (
            as_type_of(_weights(*sizes, self.method, self.antialias), images)
            for sizes in ((rows, self.height), (columns, self.width))
        )
        images = (down @ images.reshape(count, rows, columns * channels)).reshape(-1, columns, channels)
        lines = images.swapaxes(1, 2).reshape(-1, columns)
        return (lines @ across.T).reshape(count, self.height, channels, self.width).swapaxes(2, 3)


@functools.lru_cache(32)
def _weights(old: int, new: int, method: Method, antialias: bool) -> npt.NDArray[np.float64]:
    """Return the weight of each old pixel in each new one, along one axis: [new, old], rows add up to 1."""
    scale, pixels = old / new, np.arange(old)
    if method == "area":
        edges = np.arange(new + 1) * scale
        overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    else:
        distances = np.abs((np.arange(new)[:, None] + 0.5) * scale - (pixels + 0.5))
        overlap = 1 - distances / (max(scale, 1.0) if antialias else 1.0)
    weights: npt.NDArray[np.float64] = np.maximum(overlap, 0.0)
    weights /= weights.sum(1, keepdims=True)
    weights.flags.writeable = False
    return weights
