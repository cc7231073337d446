"""Cuts a part out of images."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from epibatch.core.errors import ColumnError

from ..authoring.column_transform import ColumnTransform
from .image_rows import size_of


class Crop(ColumnTransform):
    """Keeps the part of images that is `height` times `width` pixels large, `top` below the edge and `left` beside it.

    Images have the channels last, (height, width, channels).

    Counterparts: TorchRL's `Crop`.

    Args:
        height: Of the part, in pixels.
        width: Of the part, in pixels.
        top: How many rows above it are left out.
        left: How many columns to the left of it are left out.
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.

    Raises:
        ConfigError: a size below 1, or a place below 0.
        ColumnError: rows that are no images, or that are smaller.

    Examples:
        >>> Crop(height=1, width=2, top=1).transform(np.arange(9).reshape(1, 3, 3, 1)).ravel().tolist()
        [3, 4]
    """

    height: Annotated[int, Ge(1)]
    width: Annotated[int, Ge(1)]
    top: Annotated[int, Ge(0)] = 0
    left: Annotated[int, Ge(0)] = 0
    columns: Any = "obs"
    takes_tensors = True
    monotonic = True

    def transform(self, x: Any) -> Any:
        """The part of each image."""
        return cut_out(x, "Crop", self.height, self.width, self.top, self.left)


class CenterCrop(ColumnTransform):
    """Keeps the middle of images, `height` times `width` pixels large.

    Of an odd number of pixels too many, the half is rounded to the nearest even number, as torchvision and TorchRL do:
    of 3, 2 are left out above and 1 below; of 5, 2 and 3.

    Images have the channels last, (height, width, channels).

    Counterparts: TorchRL's `CenterCrop`.

    Args:
        height: Of the part, in pixels.
        width: Of the part, in pixels.
        columns: Name of the column, or names; `obs/camera` is one part of a nested column.

    Raises:
        ConfigError: a size below 1.
        ColumnError: rows that are no images, or that are smaller.

    Examples:
        >>> CenterCrop(height=1, width=1).transform(np.arange(9).reshape(1, 3, 3, 1)).ravel().tolist()
        [4]
    """

    height: Annotated[int, Ge(1)]
    width: Annotated[int, Ge(1)]
    columns: Any = "obs"
    takes_tensors = True
    monotonic = True

    def transform(self, x: Any) -> Any:
        """The middle of each image."""
        rows, columns = size_of(x, "CenterCrop")
        fits = rows >= self.height and columns >= self.width
        top, left = (margin(rows, self.height), margin(columns, self.width)) if fits else (0, 0)
        return cut_out(x, "CenterCrop", self.height, self.width, top, left)


def margin(old: int, new: int) -> int:
    """Number of pixels to leave out before the middle; a half goes to the nearest even number."""
    return round((old - new) / 2)


def cut_out(x: Any, piece: str, height: int, width: int, top: int, left: int) -> Any:
    """A part of images of shape [rows, ..., height, width, channels], in memory of its own.

    Raises:
        ColumnError: rows that are no images, or that do not have the part.
    """
    check_room(x, piece, top + height, left + width)
    part = x[..., top : top + height, left : left + width, :]
    return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part.contiguous()


def check_room(x: Any, piece: str, height: int, width: int) -> None:
    """Refuse images that are smaller than what is cut out of them."""
    rows, columns = size_of(x, piece)
    if height > rows or width > columns:
        raise ColumnError(
            piece,
            expected=f"images of at least {height} by {width} pixels",
            found=f"{rows} by {columns}",
            do="cut out less, or put the piece before the one that makes images smaller",
        )
