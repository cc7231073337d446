"""Pieces that make column `obs` of the last few observations."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Interval

from epibatch.core.arrays_or_tensors import beside
from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import is_leaf, unflatten

from ...episodes.indexing import note_history
from ...episodes.rows import Rows, Windows
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import gather, rows_of
from .._engine.windows import window
from ..authoring.column_paths import (
    ColumnPath,
    added_columns,
    addresses_in,
    moves_from,
    observation_paths,
    refuse_taken,
    space_after,
)
from ..columnar_piece import TwoSidedPiece
from ..tensor_step import TensorStep

__all__ = [
    "ChunkFrames",
    "ObservationWindow",
    "FrameCount",
    "fill_before_start",
    "pool_frames",
    "pooled_newest",
    "stack_frames",
]

_MANY_PIXELS = 2048  # from here on two NumPy calls per frame cost less than passing over all frames again and again


_SHORT = 8
"""Steps of chunks, in the mean, up to which each step's frames are gathered by themselves."""


def stack_frames(out: npt.NDArray[Any], frames: npt.NDArray[Any], before: int) -> None:
    """Write the stack of every frame, oldest first, zeros where there was none.

    Args:
        out: Shape [T, ..., K]: stack t ends with frame `before + t`.
        frames: Shape [before + T, ..., 1], of the same type.
        before: Frames before the first stack's own, fewer than K; those that are missing are zeros.

    Examples:
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
        before: Frames before the first one's own.
        size: Number of frames in one, including its own.

    Examples:
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


def pooled_newest(window: npt.NDArray[Any], counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[Any]:
    """The newest frames of every environment, each the maximum of itself and those before it.

    Args:
        window: Shape [K + size - 1, N, ...], oldest first, zeros where there was none; it is written to.
        counts: How many frames each environment has, int64 [N].
        size: How many frames make one.

    Returns:
        Shape [K, N, ...], in memory [N, K, ...], zeros where there was none.
    """
    total, kept = len(window), len(window) - size + 1
    fill_before_start(window, counts)
    frames = window.swapaxes(0, 1)
    out = frames[:, size - 1 :].copy()
    for back in range(1, size):
        np.maximum(out, frames[:, size - 1 - back : total - back], out=out)
    short = np.flatnonzero(counts < kept)
    if len(short):
        env, place = np.nonzero(np.arange(kept) < (kept - counts[short])[:, None])
        out[short[env], place] = 0
    return out.swapaxes(0, 1)


def pooled_tensors(window: Any, known: Any, size: int) -> Any:
    """The maxima of `size` frames each that `pooled_newest` gives: `[N, K, ...]` of `[N, K + size - 1, ...]`.

    Args:
        window: Oldest first.
        known: True for frames that there are, bool [N, K + size - 1].
        size: How many frames make one.
    """
    import torch

    window, count = filled_tensors(window, known), window.shape[1] - size + 1
    out = window[:, size - 1 :]
    for back in range(1, size):
        out = torch.maximum(out, window[:, size - 1 - back :][:, :count])
    known = known[:, size - 1 :]
    return out.where(known.reshape(*known.shape, *[1] * (out.ndim - 2)), 0)


def filled_tensors(window: Any, known: Any) -> Any:
    """A window `[N, K, ...]` with each environment's first frame where there was none: bool `known` [N, K]."""
    import torch

    first = (~known).sum(1)
    return window[torch.arange(window.shape[0])[:, None], torch.arange(window.shape[1]).maximum(first[:, None])]


def fill_before_start(window: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> None:
    """Repeat the first frame where there was none before it.

    Args:
        window: Shape [K, N, ...], oldest first.
        counts: How many frames each environment has, int64 [N].
    """
    short = np.flatnonzero(counts < len(window))
    if len(short):
        places = np.maximum(np.arange(len(window))[:, None], len(window) - counts[short])
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


FrameCount = Annotated[int, Interval(ge=1, le=2**16)]
"""A number of frames; more do not fit into memory."""


class ChunkFrames(NamedTuple):
    """A chunk's frames, and some of those before it.

    Args:
        rows: Shape [before + count, ...], where they lie; not to be written to.
        before: How many come before the chunk; fewer than asked for only where the episode had no more.
        place: Where the chunk's rows are among those of all chunks.
    """

    rows: npt.NDArray[Any]
    before: int
    place: slice


class ObservationWindow(TwoSidedPiece):
    """Looks back at observations, or at parts of them, on both sides; `lookback` says how far.

    Subclasses set `lookback` and write `of_all_steps`, `newest` and `output_space`.

    Args:
        input_observation_space: A Box, or a Dict or Tuple with Boxes at `columns`.
        columns: `obs`, or one part or several of a Dict or Tuple: "obs/camera", ["obs/left", "obs/right"]. Other parts
            stay as they are.
        to: A column of its own, or another part of the observations, that the result becomes; or as many names as
            `columns` has. Default: the result takes the place of what it is made of.
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    removes = (Columns.OBS,)
    needs_episodes: ClassVar[bool] = True
    columns: str | Sequence[str] = Columns.OBS
    to: str | Sequence[str] | None = None

    def _prepare(self) -> None:
        name = type(self).__name__
        self._paths = observation_paths(name, self.columns)
        self._moves = moves_from(name, self._paths, self.to)
        self._part = self._picked if self._paths[0].keys else None
        self.writes, self.removes = type(self).writes, type(self).removes  # type: ignore[misc]
        if self.to is not None:
            self.writes = tuple(dict.fromkeys(target.column for _, target in self._moves))  # type: ignore[misc]
            self.removes = (Columns.OBS,) if Columns.OBS in self.writes else ()  # type: ignore[assignment]
        self.adds = added_columns(self._moves)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space with what the piece makes of the Boxes at `columns`."""
        space, struct = input_observation_space, get_base_struct_from_space(input_observation_space)
        for move in self._moves:
            path = move.source
            part = path.part(struct)
            if not is_leaf(part):
                boxes = {name: leaf for name, leaf in addresses_in(part, str(path)).items() if hasattr(leaf, "low")}
                raise self._nested(type(self).__name__, path, {name: leaf.shape for name, leaf in boxes.items()})
            after = path.change_space(space, self.output_space)
            if move.target.column == Columns.OBS:
                space = space_after([move], space, after)
        return space

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if self.to is not None:
            refuse_taken(type(self).__name__, self._moves, columns)
        shifts, training = range(-self.lookback, 1), self.as_learner_connector
        rows, batch = window(group, Columns.OBS, shifts, type(self).__name__, newest=not training, part=self._part)
        rows.check()
        if self._part or rows.form is not None:
            self._check_parts(rows, group)
        made = {}
        if group.of_tensors:
            windows = Windows(rows, batch, shifts)
            found, known = windows.joined(), windows.mask()
            for path, frames in zip(self._paths, found if self._part else (found,)):
                self.check_frame(frames.shape[2:], 0, group)
                made[path] = self.of_tensors(frames, beside(known, frames))
        elif training and group.counts.sum() > _SHORT * len(group.counts):
            for leaf, path in enumerate(self._paths):
                made[path] = self.of_all_steps(self._frames_of_chunks(rows, leaf, group), group)
        else:
            found, counts = Windows(rows, batch, shifts).joined(), rows.counts
            if training:
                chunks, steps = rows_of(group)
                counts = np.minimum(group.reader.starts[chunks] + steps, self.lookback) + 1
            for path, frames in zip(self._paths, found if self._part else (found,)):
                self.check_frame(frames.shape[2:], 0, group)
                made[path] = self.newest(frames.swapaxes(0, 1), counts)
        for column, rows in self._put(made, lambda: self._observations(group)).items():
            columns[column] = EpisodeColumn(rows, group.counts if training else None)
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Make the column of the newest observations and those before."""
        rows, known = step.window(Columns.OBS, self.lookback)
        made = {path: self.of_tensors(path.part(rows), known) for path in self._paths}
        return {**columns, **self._put(made, lambda: step.obs)}

    @abstractmethod
    def of_tensors(self, window: Any, known: Any) -> Any:
        """Return a row for the newest observation of each environment.

        Args:
            window: The newest observations, a tensor of shape [N, lookback + 1, ...], oldest first, zeros where there
                was none yet.
            known: True where there was one, bool [N, lookback + 1].
        """

    @abstractmethod
    def output_space(self, space: Any) -> Any:
        """Return the space of rows that are made of observations of a space, which is neither Dict nor Tuple."""

    @abstractmethod
    def of_all_steps(self, chunks: Iterator[ChunkFrames], group: ChunkGroup) -> Any:
        """Return a row for each step, chunk after chunk."""

    @abstractmethod
    def newest(self, window: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Any:
        """Return a row for the newest observation of each episode.

        Args:
            window: The newest observations, a new array of shape [lookback + 1, N, ...], in memory
                [N, lookback + 1, ...], oldest first, zeros where there was none yet.
            counts: How many each episode has, int64 [N].
        """

    def _frames_of_chunks(self, rows: Rows, leaf: int, group: ChunkGroup) -> Iterator[ChunkFrames]:
        """Each chunk's frames, in the order of the call."""
        reader, start = group.reader, 0
        facts = zip(group.counts.tolist(), reader.lookbacks.tolist(), reader.starts.tolist())
        for i, (count, lookback, t_started) in enumerate(facts):
            note_history(lookback - self.lookback, lookback, t_started)
            frames = rows.of_chunk(i)[leaf]
            self.check_frame(frames.shape[1:], i, group)
            yield ChunkFrames(frames, len(frames) - count, slice(start, start + count))
            start += count

    def _picked(self, struct: Any) -> tuple[Any, ...]:
        """Return the parts at `columns` of a structure that is nested as the observations."""
        return tuple([path.part(struct) for path in self._paths])

    def _check_parts(self, rows: Rows, group: ChunkGroup) -> None:
        """Make sure that the parts are single arrays."""
        frames = unflatten(rows.form, [rows.like(i) for i in range(rows.num_leaves)])
        for path, part in zip(self._paths, frames if self._part else (frames,)):
            if not is_leaf(part):
                shapes = {name: leaf.shape[1:] for name, leaf in addresses_in(part, str(path)).items()}
                raise self._nested(f"{type(self).__name__}, {group.describe(0)}", path, shapes)

    def _observations(self, group: ChunkGroup) -> Any:
        if self.as_learner_connector:
            return gather(group, Columns.OBS, plus_one=group.plus_one)
        return group.reader.newest(Columns.OBS)[0]

    def _put(self, made: dict[ColumnPath, Any], observations: Callable[[], Any]) -> dict[str, Any]:
        """Return the columns with what was made: of observations the other parts are those that there are."""
        out: dict[str, Any] = {}
        for path, target in self._moves:
            if target.column == Columns.OBS and target.keys and Columns.OBS not in out:
                out[Columns.OBS] = observations()
            there, rows = out.get(target.column, {}), made[path]
            in_place = path == target and target.keys
            out[target.column] = target.replaced(there, partial(_first, rows)) if in_place else target.put(there, rows)
        return out

    def _nested(self, where: str, path: ColumnPath, parts: dict[str, tuple[int, ...]]) -> SpaceError:
        """The error of a path that leads to several arrays.

        Args:
            where: Where it was found.
            path: The path.
            parts: Address -> shape of the arrays there.
        """
        names = [name for name, shape in parts.items() if self.fits(shape)] or list(parts)
        do = f"name one of {_listed(names)}, as in columns={names[0]!r}, or a list of some" if names else "leave it out"
        return SpaceError(
            where,
            expected=f"one array at {str(path)!r}",
            found=f"a Dict or Tuple of {_listed([f'{name} {shape}' for name, shape in parts.items()])}",
            do=do,
        )

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return True if the piece can use frames of a shape; it can use any, by default."""
        return True

    def check_frame(self, shape: tuple[int, ...], chunk: int, group: ChunkGroup) -> None:
        """Refuse frames of a shape that the piece cannot use.

        Args:
            shape: Of one frame.
            chunk: Position of the chunk, for the message.
            group: The chunks.
        """


def _first(rows: Any, _: Any) -> Any:
    return rows


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
