"""Stacks of consecutive frames, side by side on the last axis."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["fill_before_start", "pool_frames", "pooled_newest", "stack_frames"]

_MANY_PIXELS = 2048  # from here on two NumPy calls per frame cost less than passing over all frames again and again


def stack_frames(out: npt.NDArray[Any], frames: npt.NDArray[Any], before: int) -> None:
    """Write the stack of every frame, oldest first, zeros where there was none.

    Args:
        out: Shape [T, ..., K]: stack t ends with frame `before + t`.
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
    by_word = word is not None and width > 1 and pixels >= _MANY_PIXELS and out.flags.c_contiguous
    if not by_word or word is None or sys.byteorder != "little" or out.dtype.kind not in "biuf":
        _stack_by_place(out, frames, before)
        return
    _stack_by_word(out.reshape(count, pixels, width), word, bits, frames, before)


def pool_frames(out: npt.NDArray[Any], rows: npt.NDArray[Any], before: int, size: int) -> None:
    """Write the maximum of each frame and those before it, as far as there are any.

    Args:
        out: Shape [T, ...]: entry t is about frame `before + t`.
        rows: The frames, shape [before + T, ...].
        before: Frames in front of the first one's own.
        size: How many frames make one, their own included.

    Example:
        >>> out = np.empty((3, 1))
        >>> pool_frames(out, np.array([[5.0], [1.0], [2.0], [0.0]]), 1, 2)
        >>> out[:, 0].tolist()
        [5.0, 2.0, 2.0]
    """
    so_far = rows[before:]
    if size == 1:
        out[...] = so_far
    for back in range(1, size):
        first = min(max(0, back - before), len(out))
        if first and back == 1:
            out[:first] = so_far[:first]
        np.maximum(so_far[first:], rows[before - back + first : len(rows) - back], out=out[first:])
        so_far = out


def pooled_newest(window: npt.NDArray[Any], held: npt.NDArray[np.int64], size: int) -> npt.NDArray[Any]:
    """The newest frames of every environment, each the maximum of itself and those before it.

    Args:
        window: Shape [K + size - 1, N, ...], oldest first, zeros where there was none; it is written to.
        held: How many frames each environment has, int64 [N].
        size: How many frames make one.

    Returns:
        Shape [K, N, ...], in memory [N, K, ...], zeros where there was none.
    """
    total, kept = len(window), len(window) - size + 1
    fill_before_start(window, held)
    frames = window.swapaxes(0, 1)
    out = frames[:, size - 1 :].copy()
    for back in range(1, size):
        np.maximum(out, frames[:, size - 1 - back : total - back], out=out)
    short = np.flatnonzero(held < kept)
    if len(short):
        env, place = np.nonzero(np.arange(kept) < (kept - held[short])[:, None])
        out[short[env], place] = 0
    return out.swapaxes(0, 1)


def fill_before_start(window: npt.NDArray[Any], held: npt.NDArray[np.int64]) -> None:
    """Repeat the first frame where there was none before it.

    Args:
        window: Shape [K, N, ...], oldest first.
        held: How many frames each environment has, int64 [N].
    """
    short = np.flatnonzero(held < len(window))
    if len(short):
        places = np.maximum(np.arange(len(window))[:, None], len(window) - held[short])
        window[:, short] = window[places, short]


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
