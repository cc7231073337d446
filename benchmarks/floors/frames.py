"""Stacks of the last four frames, [..., 84, 84, 4], zeros in front of an episode's first frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.columns import Array, Episode

FRAMES = 4


def by_slices(episodes: Sequence[Episode]) -> Array:
    """One strided write per episode and place in the stack."""
    out = np.empty((_rows(episodes), *episodes[0].obs.shape[1:-1], FRAMES), np.uint8)
    _shifted(episodes, out, -1)
    return out


def stack_first(episodes: Sequence[Episode]) -> Array:
    """The same values with the stack's axis first in memory: every write is contiguous, and the result a view."""
    out = np.empty((_rows(episodes), FRAMES, *episodes[0].obs.shape[1:-1]), np.uint8)
    _shifted(episodes, out, 1)
    return np.moveaxis(out, 1, -1)


def _shifted(episodes: Sequence[Episode], out: Array, axis: int) -> None:
    places = np.moveaxis(out, axis, 0)
    start = 0
    for own in episodes:
        frames, stop = own.obs[:-1, ..., 0], start + len(own)
        for place, lag in zip(places, range(FRAMES - 1, -1, -1)):
            place[start : start + lag] = 0
            place[start + lag : stop] = frames[: len(own) - lag]
        start = stop


def by_packed_words(episodes: Sequence[Episode]) -> Array:
    """A pixel's stack is one 32-bit word: the word before, moved on by a byte, with the new frame on top."""
    shape = episodes[0].obs.shape[1:-1]
    pixels = int(np.prod(shape))
    out = np.empty((_rows(episodes), pixels), np.uint32)
    nothing, top = np.zeros(pixels, np.uint32), np.empty(pixels, np.uint32)
    start = 0
    for own in episodes:
        before = nothing
        for word, frame in zip(out[start : start + len(own)], own.obs[:-1].reshape(-1, pixels)):
            push(before, frame, word, top)
            before = word
        start += len(own)
    return out.view(np.uint8).reshape(-1, *shape, FRAMES)


def push(before: Array, frame: Array, out: Array, top: Array) -> None:
    """Put a frame on packed stacks.

    Args:
        before: uint32, the stacks so far; little-endian, so the oldest frame is the lowest byte.
        frame: uint8 of the same shape.
        out: uint32, where the new stacks go; may be `before`.
        top: uint32, overwritten.
    """
    np.right_shift(before, 8, out)
    np.left_shift(frame, 24, top, dtype=np.uint32)
    np.bitwise_or(out, top, out)


def _rows(episodes: Sequence[Episode]) -> int:
    return sum(map(len, episodes))


def stacked(frames: Sequence[Sequence[Any]]) -> Array:
    """Stacks of four frames for each environment, from the frames themselves.

    Args:
        frames: For each environment its last four frames, uint8 [84, 84, 1], oldest first.
    """
    out = np.empty((len(frames), *frames[0][0].shape[:-1], FRAMES), np.uint8)
    for place, own in zip(out, frames):
        np.concatenate(own, axis=-1, out=place)
    return out


def stacked_first(frames: Sequence[Sequence[Any]]) -> Array:
    """The same values with the stack's axis first in memory; the result is a view."""
    rows = np.concatenate([frame for own in frames for frame in own])
    return np.moveaxis(rows.reshape(len(frames), FRAMES, *frames[0][0].shape[:-1]), 1, -1)
