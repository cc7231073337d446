"""Videos: frames of any layout, grids of frames, and mp4 files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError, ConfigError, NotAvailableError, RunnerError
from epibatch.core.structs import convert_to_numpy

__all__ = ["VideoWriter", "frame_of", "grid_of", "stacked"]

Frame = npt.NDArray[np.uint8]


def frame_of(image: Any, where: str) -> Frame:
    """Return an image as a frame of a video, uint8 [height, width, 3].

    Args:
        image: An array or tensor: [height, width], [height, width, channels] or [channels, height, width], with 1 or 3
            channels; bytes, or floats from 0 to 1.
        where: Its source, for messages.

    Raises:
        ColumnError: something else.

    Examples:
        >>> frame_of(np.ones((3, 4, 6), np.float32), "example").shape
        (4, 6, 3)
    """
    array = np.asarray(convert_to_numpy(image))
    frame = array[..., None] if array.ndim == 2 else array
    if frame.ndim == 3 and frame.shape[2] not in (1, 3) and frame.shape[0] in (1, 3):
        frame = np.moveaxis(frame, 0, 2)
    if frame.ndim != 3 or frame.shape[2] not in (1, 3) or array.dtype.kind not in "uif":
        raise ColumnError(
            where,
            expected="an image: bytes, or floats from 0 to 1, with 1 or 3 channels first or last",
            found=f"{array.dtype} of shape {array.shape}",
            do="name the part that has images, columns='obs/pixels'; or leave columns out and let the environment "
            "render: env_config={'render_mode': 'rgb_array'}",
        )
    if frame.dtype.kind == "f":
        frame = np.rint(255 * frame)
    return np.broadcast_to(frame.clip(0, 255).astype(np.uint8), (*frame.shape[:2], 3))


def stacked(frames: Sequence[Frame]) -> Frame:
    """Return frames as one array [frames, height, width, 3], smaller ones with black at the right and below.

    Args:
        frames: At least one.
    """
    height, width, _ = np.max([frame.shape for frame in frames], axis=0)
    out = np.zeros((len(frames), height, width, 3), np.uint8)
    for whole, frame in zip(out, frames):
        whole[: frame.shape[0], : frame.shape[1]] = frame
    return out


def grid_of(frames: Sequence[Frame]) -> Frame:
    """Return one frame that shows several side by side, in rows of about as many as there are rows.

    Args:
        frames: At least one.

    Examples:
        >>> grid_of([np.full((2, 2, 3), i, np.uint8) for i in range(3)])[::2, ::2, 0].tolist()
        [[0, 1], [2, 0]]
    """
    columns = math.ceil(math.sqrt(len(frames)))
    rows = -(-len(frames) // columns)
    black = [np.zeros((1, 1, 3), np.uint8)] * (rows * columns - len(frames))
    tiles = stacked([*frames, *black])
    _, height, width, channels = tiles.shape
    tiles = tiles.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return tiles.reshape(rows * height, columns * width, channels)


class VideoWriter:
    """Writes an mp4 file, frame by frame; a file that is there already is replaced.

    Sides of odd length get one black line more, which the format needs.

    Args:
        path: The file; its folder is made.
        fps: Frames per second.

    Raises:
        NotAvailableError: the extra `video` is not installed.
        ConfigError: the path does not end in .mp4.

    Attributes:
        count: Frames written.
    """

    def __init__(self, path: Path, fps: float) -> None:
        if path.suffix.lower() != ".mp4":
            raise ConfigError(
                "video", expected="a file that ends in .mp4", found=str(path), do="name it so, say out.mp4"
            )
        try:
            from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter
        except ImportError as error:
            raise NotAvailableError(
                "writing a video",
                expected="the extra `video`",
                found=str(error),
                do="install it: pip install 'epibatch[video]'",
            ) from error
        self.path, self.count = path, 0
        self._fps, self._make = fps, FFMPEG_VideoWriter
        self._shape: tuple[int, ...] = ()
        self._writer: Any = None

    def add(self, frame: Any) -> None:
        """Write one frame.

        Args:
            frame: uint8, [height, width, 3].

        Raises:
            RunnerError: something else, or of another size than the first one.
        """
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise self._mismatch_error("a uint8 array of shape (height, width, 3)", found)
        if self._writer is None:
            self._shape = frame.shape
            height, width = (side + side % 2 for side in frame.shape[:2])
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._make(str(self.path), (width, height), self._fps)
        if frame.shape != self._shape:
            raise self._mismatch_error(f"the size of the first frame, {self._shape}", str(frame.shape))
        height, width = frame.shape[:2]
        self._writer.write_frame(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0))))
        self.count += 1

    def _mismatch_error(self, expected: str, found: str) -> RunnerError:
        return RunnerError(
            f"frame {self.count} of the video",
            expected=expected,
            found=found,
            do="let the environment's render() return one, with render_mode='rgb_array'",
        )

    def close(self) -> None:
        """Finish the file; without any frame there is none."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
