"""Stacks the newest observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import SpaceError

from .._engine.chunks import ChunkGroup
from .observation_window import (
    ChunkFrames,
    FrameCount,
    ObservationWindow,
    fill_before_start,
    filled_tensors,
    pool_frames,
    pooled_newest,
    pooled_tensors,
    stack_frames,
)

__all__ = ["FrameStacking"]


class FrameStacking(ObservationWindow):
    """Puts the last `num_frames` observations into `obs`, oldest first, on the last axis.

    The episodes keep single frames, so one piece on each side gives both the same stacks; steps
    before the episode's start are zeros, or with `padding="same"` its first observation.

    Frames have a last axis of length 1, on which they are put side by side. With `axis` they are joined on any axis,
    of any length: RGB images of shape (84, 84, 3) become (84, 84, 12). With `new_axis` they are put on an axis of
    their own, before the others or at `axis`: (4, 84, 84, 3).

    Train batches are contiguous as their shape says, `[B, ..., num_frames]`: rows of a minibatch are then
    picked ten times as fast, and PyTorch convolves such images (`channels_last`) up to 1.7 times as fast as
    others. Stacks to act on are built in every step. They are a view of `[N, num_frames, ...]`, which
    takes a tenth of the time to build.

    Counterparts: RLlib's `FrameStacking`, TorchRL's `CatFrames`.

    Args:
        input_observation_space: A Box, or a Dict or Tuple with Boxes at `columns`; without `axis` and `new_axis` those
            have a last axis of length 1, such as (84, 84, 1).
        columns: `obs`, or one part or several of a Dict or Tuple: "obs/camera", ["obs/left", "obs/right"]. Other parts
            are shown as they are newest.
        num_frames: Number of observations in a stack.
        axis: Axis of a frame to join frames on; with `new_axis`, axis of a stack that frames are on. Negative ones
            count from the end. Default: the last one; with `new_axis` the first.
        new_axis: Whether frames are put on an axis of their own.
        padding: Values of frames before an episode's start: "zeros", or "same" for its first observation.
        max_pool: Number of observations in a frame: the newest one and those before it, as far as there are any. Each
            entry is their maximum. 2 removes the flicker of games that draw an object in every other frame, as in Mnih
            et al. 2015, "Human-level control through deep reinforcement learning".

    Raises:
        ConfigError: `num_frames` or `max_pool` is no positive int.
        SpaceError: observations of another kind.
        LookbackError: a chunk kept too little of the episode before it.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[np.array([t, -t]) for t in (1, 2, 3)],
        ...     actions=[0, 0], rewards=[0.0, 0.0], len_lookback_buffer=0)
        >>> FrameStacking(num_frames=2, new_axis=True)(batch={}, episodes=[episode])["obs"][("e",)][0].tolist()
        [[2, -2], [3, -3]]
    """

    num_frames: FrameCount = 1
    axis: int | None = None
    new_axis: bool = False
    padding: Literal["zeros", "same"] = "zeros"
    max_pool: FrameCount = 1
    multi_agent: bool = False

    def __post_init__(self) -> None:
        """Ask for as much history as the frames need."""
        self.lookback = self.num_frames + self.max_pool - 2

    def output_space(self, space: Any) -> Any:
        """The Box of stacks; the bounds take in the zeros of missing frames."""
        if not isinstance(space, gym.spaces.Box) or not self.fits(space.shape):
            raise self._unfit("FrameStacking", "a Box", repr(space))
        low, high = (self._arranged(np.stack([bound] * self.num_frames), 0) for bound in (space.low, space.high))
        if self.padding == "zeros":
            zero = low.dtype.type(0)
            low, high = np.minimum(low, zero), np.maximum(high, zero)
        return gym.spaces.Box(low, high, dtype=low.dtype.type)

    def of_all_steps(self, chunks: Iterator[ChunkFrames], group: ChunkGroup) -> Any:
        """The stacks that end with each observation, chunk after chunk; frames are read where they lie."""
        out: Any = None
        shape: tuple[int, ...] = ()
        at = 0
        for chunk in chunks:
            rows, before = self._prepared(chunk)
            if out is None:
                shape, at = rows.shape[1:], self._position(rows.ndim - 1)
                out = np.empty((int(group.counts.sum()), *shape[:at], self.num_frames, *shape[at:]), rows.dtype)
            elif rows.dtype != out.dtype:
                out = out.astype(np.result_type(out, rows), copy=False)
            stacks = out[chunk.place]
            if at == len(shape):
                stack_frames(stacks, rows[..., None], before)
            elif shape[at:] == (1,):
                stack_frames(stacks[..., 0], rows, before)
            else:
                stack_frames(np.moveaxis(stacks, at + 1, -1), rows[..., None], before)
        return out if self.new_axis else _merged(out, at + 1)

    def _prepared(self, chunk: ChunkFrames) -> tuple[npt.NDArray[Any], int]:
        """A chunk's frames as stacks have them, and how many come before it."""
        rows, before = chunk.rows, min(chunk.before, self.num_frames - 1)
        if self.max_pool > 1:
            pooled = np.empty((before + chunk.place.stop - chunk.place.start, *rows.shape[1:]), rows.dtype)
            pool_frames(pooled, rows, chunk.before - before, self.max_pool)
            rows = pooled
        missing = self.num_frames - 1 - before
        if missing and self.padding == "same" and len(rows):
            rows, before = np.concatenate([rows[:1]] * missing + [rows]), before + missing
        return rows, before

    def newest(self, window: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Any:
        """The stacks that end with the newest observations."""
        if self.max_pool > 1:
            window = pooled_newest(window, counts, self.max_pool)
        if self.padding == "same":
            fill_before_start(window, counts)
        return self._arranged(window.swapaxes(0, 1), 1)

    def of_tensors(self, window: Any, known: Any) -> Any:
        """The stacks that end with the newest observations."""
        if self.max_pool > 1:
            window, known = pooled_tensors(window, known, self.max_pool), known[:, self.max_pool - 1 :]
        if self.padding == "same":
            window = filled_tensors(window, known)
        at = self._position(window.ndim - 2) + 1
        window = window.movedim(1, at)
        return window if self.new_axis else window.flatten(at, at + 1)

    # -- shapes --------------------------------------------------------------------------------

    def check_frame(self, shape: tuple[int, ...], chunk: int, group: ChunkGroup) -> None:
        """Refuse frames without the axis that they are to be joined on."""
        if not self.fits(shape):
            raise self._unfit(f"FrameStacking, {group.describe(chunk)}", "observations", f"shape {shape}")

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return True if frames of a shape have the axis that they are to be joined on."""
        if self.axis is None:
            return self.new_axis or shape[-1:] == (1,)
        axes = len(shape) + self.new_axis
        return -axes <= self.axis < axes

    def _unfit(self, where: str, things: str, found: str) -> SpaceError:
        if self.axis is None and not self.new_axis:
            kind, do = "whose last axis has length 1, such as (84, 84, 1)", "put frames on an axis of their own "
            do += "with new_axis=True, or join them on an axis of another length with axis=-1"
        else:
            kind, do = f"with room for axis={self.axis}", "name an axis that there is; -1 is the last one"
        return SpaceError(where, expected=f"{things} {kind}", found=found, do=do)

    def _position(self, axes: int) -> int:
        """Return the position of the stack's axis among the axes of a frame."""
        axis = (0 if self.new_axis else -1) if self.axis is None else self.axis
        return axis % (axes + self.new_axis)

    def _arranged(self, stacks: npt.NDArray[Any], lead: int) -> npt.NDArray[Any]:
        """Stacks as they are given out.

        Args:
            stacks: Shape [..., num_frames, ...]; `lead` axes come first, and a frame's last.
            lead: How many axes come first.
        """
        at = self._position(stacks.ndim - lead - 1) + lead
        axes = list(range(stacks.ndim))
        axes.insert(at, axes.pop(lead))
        stacks = stacks.transpose(axes)
        return stacks if self.new_axis else _merged(stacks, at)


def _merged(stacks: npt.NDArray[Any], at: int) -> npt.NDArray[Any]:
    """Join an axis and the next; a view where that is no matter of memory."""
    if stacks.shape[at + 1] == 1:
        return stacks.squeeze(at + 1)
    return stacks.reshape(*stacks.shape[:at], -1, *stacks.shape[at + 2 :])
