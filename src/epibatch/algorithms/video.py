"""Writing frames to a video file as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.errors import ConfigError, NotAvailableError, RunnerError

__all__ = ["VideoWriter"]


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
            raise self._unfit("a uint8 array of shape (height, width, 3)", found)
        if self._writer is None:
            self._shape = frame.shape
            height, width = (side + side % 2 for side in frame.shape[:2])
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._make(str(self.path), (width, height), self._fps)
        if frame.shape != self._shape:
            raise self._unfit(f"the size of the first frame, {self._shape}", str(frame.shape))
        height, width = frame.shape[:2]
        self._writer.write_frame(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0))))
        self.count += 1

    def _unfit(self, expected: str, found: str) -> RunnerError:
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
