"""Images as convolutions of PyTorch take them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Gt

from ..authoring.column_transform import ColumnTransform
from .image_rows import size_of


class ToCHWFloat(ColumnTransform):
    """Moves the channels of images to the front, and makes whole numbers of 0 to 255 into floats of 0 to 1.

    What comes out is float32 and contiguous, of shape (channels, height, width). Images that are floats are not
    divided. It stands last among the pieces for images, which take the channels last; a frame stack's frames are then
    its channels.

    Counterparts: TorchRL's `ToTensorImage`.

    Args:
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.
        divide_by: What whole numbers are divided by.

    Raises:
        ConfigError: `divide_by` is not above 0.
        ColumnError: rows that are no images.

    Examples:
        >>> image = np.array([[[0, 51, 255]]], np.uint8)
        >>> [round(value, 6) for value in ToCHWFloat().transform(image[None])[0].ravel().tolist()]
        [0.0, 0.2, 1.0]
        >>> ToCHWFloat().transform(np.zeros((2, 84, 60, 3), np.uint8)).shape
        (2, 3, 84, 60)
    """

    columns: Any = "obs"
    divide_by: Annotated[float, Gt(0)] = 255.0
    takes_tensors = True
    monotonic = True

    def transform(self, x: Any) -> Any:
        """The images, moved and divided."""
        size_of(x, "ToCHWFloat")
        if isinstance(x, np.ndarray):
            moved = np.moveaxis(x, -1, -3)
            if x.dtype.kind == "f":
                return np.ascontiguousarray(moved, np.float32)
            out = np.empty(moved.shape, np.float32)
            np.divide(moved, np.float32(self.divide_by), out=out, dtype=np.float32)
            return out
        moved = x.movedim(-1, -3).contiguous()
        return moved.float() if moved.is_floating_point() else moved.float() / self.divide_by
