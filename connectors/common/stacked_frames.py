"""Stacks of consecutive frames, side by side on the last axis."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["stack_frames"]

_MANY_PIXELS = 2048  # from here on two NumPy calls per frame cost less than passing over all frames again and again


def stack_frames(out: npt.NDArray[Any], frames: npt.NDArray[Any], before: int) -> None:
    """Write the stack of every frame, oldest first, zeros where there was none.

    Args:
        out: Shape [T, ..., K], contiguous: stack t ends with frame `before + t`.
        frames: Shape [before + T, ..., 1], of the same type.
        before: Frames in front of the first stack's own, fewer than K; those that are missing are zeros.

    Example:
        >>> out = np.empty((3, 1, 2), np.uint8)
        >>> stack_frames(out, np.array([[[1]], [[2]], [[3]]], np.uint8), 0)
        >>> out[:, 0].tolist()
        [[0, 1], [1, 2], [2, 3]]
    """
    count, width = len(out), out.shape[-1]
    if not count:
        return
    bits = 8 * out.dtype.itemsize
    word = np.dtype(f"u{out.dtype.itemsize * width}") if bits * width in (16, 32, 64) else None
    pixels = out[0].size // width
    if word is None or width == 1 or pixels < _MANY_PIXELS or sys.byteorder != "little" or out.dtype.kind not in "biuf":
        _stack_by_place(out, frames, before)
        return
    _stack_by_word(out.reshape(count, pixels, width), word, bits, frames, before)


def _stack_by_place(out: npt.NDArray[Any], frames: npt.NDArray[Any], before: int) -> None:
    """One pass over all frames for each place in the stack."""
    count, width = len(out), out.shape[-1]
    for place in range(width):
        first = before + place - width + 1  # the frame at this place of the first stack
        missing = min(max(0, -first), count)
        out[:missing, ..., place] = 0
        out[missing:, ..., place] = frames[first + missing : first + count, ..., 0]


def _stack_by_word(
    out: npt.NDArray[Any], word: np.dtype[Any], bits: int, frames: npt.NDArray[Any], before: int
) -> None:
    """A pixel's stack is one machine word: shift the stack before by one frame, and put the newest into the top.

    One pass, in which the stack before is still in the cache.
    """
    words = out.view(word)[..., 0]
    stack: npt.NDArray[Any] = np.zeros(words.shape[1:], word)
    newest = stack.view(out.dtype).reshape(out.shape[1:])[:, -1]
    for frame in frames[:before]:
        np.right_shift(stack, bits, out=stack)
        newest[:] = frame.reshape(-1)
    for t, frame in enumerate(frames[before : before + len(out)]):
        np.right_shift(stack, bits, out=words[t])
        out[t, :, -1] = frame.reshape(-1)
        stack = words[t]
