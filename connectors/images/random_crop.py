"""Cuts parts out of images at random, for training."""

from __future__ import annotations

import copy
import math
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from annotated_types import Ge
from numpy.lib.stride_tricks import sliding_window_view

from epibatch.core.arrays_or_tensors import beside, empty_like
from epibatch.core.errors import ConfigError
from epibatch.core.restoring import restore_generator, restoring

from .._engine.chunks import ChunkGroup
from ..authoring.column_transform import ColumnTransform
from .crops import check_room, cut_out, margin
from .image_rows import size_of


class RandomCrop(ColumnTransform):
    """Crops each image: for training a random part, drawn for each row; for acting the middle.

    With `pad` alone images are shifted by up to `pad` pixels each way and keep their size. The edge is repeated
    `pad` times on every side, then a part as large as the image is cut out (DrQ: Kostrikov et al. 2021, "Image
    Augmentation Is All You Need"). For acting they stay as they are: the piece is needed in the learner pipeline only.
    With `height` and `width` parts of this size are cut out (RAD: Laskin et al. 2020, "Reinforcement Learning with
    Augmented Data"); it then stands in both pipelines, because the network sees the smaller images.

    All frames of a row's stack are cut alike. Images have the channels last, (height, width, channels).

    Args:
        height: Height of the part in pixels; None: the image's own.
        width: Width of the part in pixels; None: the image's own.
        pad: Number of pixels to repeat the edge by before cropping.
        columns: Name of the column, or names; `obs/camera` is one part of a nested column. Each is drawn for by itself.

    Raises:
        ConfigError: a size below 1, a `pad` below 0, or nothing to draw.
        ColumnError: rows that are no images, or that are smaller.

    Examples:
        >>> piece = RandomCrop(pad=1)
        >>> piece.seed(0)
        >>> piece.transform(np.arange(9).reshape(1, 3, 3, 1))[0, ..., 0].tolist()
        [[3, 4, 5], [6, 7, 8], [6, 7, 8]]
    """

    height: Annotated[int, Ge(1)] | None = None
    width: Annotated[int, Ge(1)] | None = None
    pad: Annotated[int, Ge(0)] = 0
    columns: Any = "obs"
    takes_tensors = True
    training_only = True

    def __post_init__(self) -> None:
        self._draws = True
        self._random = np.random.default_rng()
        if self.height is None and self.width is None and not self.pad:
            do = "give height and width, or pad=4 to shift images of 84 by 84"
            found = "an image's own size, not padded"
            raise ConfigError("RandomCrop", expected="several places to cut at", found=found, do=do)

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        self._random = np.random.default_rng(seed)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the random stream, so that a restored run draws the same numbers."""
        return {"random": copy.deepcopy(self._random.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on drawing where a state was taken.

        Raises:
            CheckpointError: a state of another kind.
        """
        with restoring("RandomCrop.set_state", "random"):
            restore_generator("RandomCrop.set_state", self._random, state["random"])

    def freeze(self) -> None:
        """Cut the middle from now on, as for acting."""
        super().freeze()

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Cut the images: at random for training, the middle for acting and once frozen."""
        self._draws = group.of_steps and not self.frozen
        try:
            return super().run(columns, group)
        finally:
            self._draws = True

    def transform(self, x: Any) -> Any:
        """A part of each image."""
        rows, columns = size_of(x, "RandomCrop")
        height, width = self._size(x)
        if not self._draws:
            return cut_out(x, "RandomCrop", height, width, margin(rows, height), margin(columns, width))
        count, pad = len(x), self.pad
        top = self._random.integers(0, rows + 2 * pad - height + 1, count) - pad
        left = self._random.integers(0, columns + 2 * pad - width + 1, count)
        return _parts(_widened(x, pad), top, left, height, width)

    def output_space(self, space: gym.Space[Any]) -> gym.Space[Any] | None:
        """The Box of parts; a pixel's bounds are those of all that it can be."""
        if not isinstance(space, gym.spaces.Box):
            return super().output_space(space)
        height, width = self._size(space.low[None])
        shape = (*space.shape[:-3], height, width, space.shape[-1])
        low, high = space.low.min((-3, -2), keepdims=True), space.high.max((-3, -2), keepdims=True)
        low, high = np.broadcast_to(low, shape).copy(), np.broadcast_to(high, shape).copy()
        return gym.spaces.Box(low, high, dtype=low.dtype.type)

    def _size(self, x: Any) -> tuple[int, int]:
        rows, columns = size_of(x, "RandomCrop")
        height, width = self.height or rows, self.width or columns
        check_room(x, "RandomCrop", height, width)
        return height, width


def _widened(x: Any, pad: int) -> Any:
    """Images with the first and the last column repeated."""
    if not pad:
        return x
    width = x.shape[-2]
    out = empty_like(x, (*x.shape[:-2], width + 2 * pad, x.shape[-1]))
    out[..., :pad, :] = x[..., :1, :]
    out[..., pad : pad + width, :] = x
    out[..., pad + width :, :] = x[..., -1:, :]
    return out


def _parts(x: Any, top: Any, left: Any, height: int, width: int) -> Any:
    """One part of each row's images, a line of it at a time; lines beyond the edge are the nearest.

    Args:
        x: Shape [rows, ..., height, width, channels].
        top: First line of each row's part; int64, [rows].
        left: First column of each row's part; int64, [rows].
        height: Lines of a part.
        width: Columns of a part.
    """
    count, channels = len(x), x.shape[-1]
    images = x.reshape(count, math.prod(x.shape[1:-3]), x.shape[-3], x.shape[-2] * channels)
    if isinstance(images, np.ndarray):
        lines = sliding_window_view(images, width * channels, axis=-1)
    else:
        lines = images.unfold(-1, width * channels, 1)
    down = np.clip(top[:, None] + np.arange(height), 0, images.shape[2] - 1)
    frames = np.arange(images.shape[1])[:, None]
    places = np.arange(count)[:, None, None], frames, down[:, None], left[:, None, None] * channels
    out = lines[tuple(beside(index, images) for index in places)]
    return out.reshape(*x.shape[:-3], height, width, channels)
