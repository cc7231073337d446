"""Rows that are images, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError

_BLOCK = 1 << 17  # so many numbers stay in the cache as floats


def size_of(x: Any, piece: str) -> tuple[int, int]:
    """Height and width of images of shape [rows, ..., height, width, channels].

    Raises:
        ColumnError: rows of fewer axes.
    """
    if x.ndim >= 4:
        return x.shape[-3], x.shape[-2]
    raise ColumnError(
        piece,
        expected="images of shape (height, width, channels), such as (84, 84, 1)",
        found=f"rows of shape {tuple(x.shape[1:])}",
        do="name the column, or the part of it, that has images; give gray ones a last axis of length 1",
    )


def images_of(x: Any, piece: str) -> Any:
    """Images whose leading axes are joined: [images, height, width, channels].

    Raises:
        ColumnError: rows of fewer axes.
    """
    size_of(x, piece)
    return x.reshape(-1, *x.shape[-3:])


def in_blocks(images: Any, shape: tuple[int, ...], function: Callable[[Any], Any]) -> Any:
    """Apply a function to images as floats: to a few arrays at a time, to tensors at once.

    Args:
        images: Shape [images, ...], numbers of any type.
        shape: Shape of one result.
        function: Gets images as float32 (float64 if those have more digits) and returns floats.

    Returns:
        Shape [images, ...], of the images' type. Results for integers and bools are rounded.
    """
    if not isinstance(images, np.ndarray):
        exact = images.dtype.itemsize > 2 and (images.dtype.itemsize > 4 or not images.is_floating_point())
        results = function(images.double() if exact else images.float())
        return (results if images.is_floating_point() else results.round()).to(images.dtype)
    floats = np.dtype(np.float32) if np.can_cast(images.dtype, np.float32) else np.dtype(np.float64)
    out = np.empty((len(images), *shape), images.dtype)
    block = max(1, _BLOCK // max(1, images[:1].size))
    for start in range(0, len(images), block):
        results = function(images[start : start + block].astype(floats, copy=False))
        out[start : start + block] = rounded(results, images.dtype)
    return out


def rounded(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Floats as they are, or rounded if they are to become whole numbers or bools."""
    return np.rint(values) if dtype.kind in "biu" else values
