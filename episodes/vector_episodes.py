"""Episodes that were recorded together, as a sequence over one time-major block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import UnknownNameError, explain, nearest
from epibatch.core.structs import Form, unflatten

from .block import Block, BlockColumn
from .buffer_source import NOTHING
from .chunk import Chunk
from .leaves import Leaf
from .single_agent_episode import SingleAgentEpisode

__all__ = ["VectorEpisodes"]


class VectorEpisodes(Sequence[SingleAgentEpisode]):
    """A sequence of episodes whose rows live in one block of shape [T, N, ...].

    Its items are persistent `SingleAgentEpisode` objects that show the block's rows and are made
    when somebody looks. Built-in pieces ask for whole columns instead.

    Args:
        block: Where the rows are.
        chunks: One per episode or chunk of one.
        views: Episode objects that exist already; None where nobody looked yet.
        recording: Whether these are the N episodes that a recorder is adding to.
    """

    def __init__(
        self, block: Block, chunks: Sequence[Chunk], views: Sequence[Any] | None = None, recording: bool = False
    ) -> None:
        self.block = block
        self.recording = recording
        self.chunks = list(chunks)
        self.views: list[SingleAgentEpisode | None] = list(views) if views is not None else [None] * len(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        view = self.views[index]
        if view is None:
            view = self.views[index] = self.chunks[index].view()
        return view

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        for i in range(len(self.chunks)):
            yield self[i]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"VectorEpisodes({len(self)} chunks, {int(self.lengths().sum())} steps)"

    def first(self, count: int) -> VectorEpisodes:
        """The first `count` of these episodes."""
        return VectorEpisodes(self.block, self.chunks[:count], self.views[:count])

    @property
    def ids(self) -> list[str]:
        """The episodes' names."""
        return [chunk.id_ for chunk in self.chunks]

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of steps of each chunk: int64, shape [len(self)]."""
        return np.fromiter((len(chunk) for chunk in self.chunks), np.int64, len(self.chunks))

    @property
    def columnar(self) -> bool:
        """Whether every chunk's rows are still in the block."""
        return not any(chunk.detached for chunk in self.chunks)

    # -- the newest step, while recording --------------------------------------------------------

    def latest_observations(self) -> Any:
        """The newest observation of every environment: arrays of shape [N, ...]; do not write to them."""
        return self.block.latest_observations()

    def set_latest_observations(self, observations: Any) -> None:
        """Replace the newest, still provisional observations of all environments."""
        self.block.pending, self.block.written = observations, {}

    def latest_output(self, key: str) -> tuple[Any, np.ndarray[Any, np.dtype[np.bool_]]] | None:
        """The newest row of a model output of every environment.

        Returns:
            Arrays of shape [N, ...] and which environments have such a row (bool, [N]); None if
            there is no such output yet.
        """
        column, row = self.block.extras.get(key), self.block.row - 1
        if column is None or row < 0:
            return None
        has = np.fromiter((chunk.low <= row for chunk in self.chunks), np.bool_, len(self.chunks))
        return column.row(row), has

    # -- whole columns, for batches ---------------------------------------------------------------

    def output_names(self) -> list[str]:
        """Names of the model outputs."""
        return list(self.block.extras)

    def gather(self, name: str, *, plus_one: bool = False) -> Any:
        """One column of all chunks, one chunk after the other.

        Args:
            name: `obs`, `actions`, `rewards`, or the key of a model output.
            plus_one: Give each chunk one row more: the last observation, or the last step again.

        Returns:
            Arrays of shape [sum of lengths (+ number of chunks), ...], copies.
        """
        column = self._column(name)
        rows = self._rows(plus_one, name == Columns.OBS)
        leaves = [_take(leaf, rows) for leaf in column.leaves]
        if plus_one and name == Columns.OBS:
            leaves = self._with_tails(leaves, column.form)
        return unflatten(column.form, leaves)

    def gather_before(self, name: str, steps: Sequence[Any]) -> Any:
        """Rows of a model output at given steps of each chunk (-1: the newest lookback step).

        Args:
            name: Key of the model output.
            steps: One int64 array of steps per chunk.
        """
        column, width = self._column(name), self.block.num_envs
        rows = [(chunk.start + at) * width + chunk.env for chunk, at in zip(self.chunks, steps)]
        index = np.concatenate(rows) if rows else np.empty(0, np.int64)
        return unflatten(column.form, [_take(leaf, index) for leaf in column.leaves])

    def _column(self, name: str) -> BlockColumn:
        block = self.block
        if name == Columns.OBS:
            block.commit()
            return block.observations
        own = {Columns.ACTIONS: block.actions, Columns.REWARDS: block.rewards}
        if name in own:
            return own[name]
        if name in block.extras:
            return block.extras[name]
        raise UnknownNameError(
            explain(
                "VectorEpisodes",
                expected="the name of a column",
                found=repr(name),
                do=nearest(name, [Columns.OBS, *own, *block.extras]),
            )
        )

    def _rows(self, plus_one: bool, next_exists: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Flat positions (row * N + env) of every chunk's steps."""
        counts = self.lengths() + plus_one
        width = self.block.num_envs
        first = np.fromiter((c.start * width + c.env for c in self.chunks), np.int64, len(self.chunks))
        ends = np.cumsum(counts)
        rows = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
        rows *= width
        rows += np.repeat(first - (ends - counts) * width, counts)
        if plus_one and not next_exists:
            rows[ends - 1] -= width
        elif plus_one:
            tails = np.fromiter((c.tail is not NOTHING for c in self.chunks), np.bool_, len(self.chunks))
            rows[ends[tails] - 1] -= width
        return rows

    def _with_tails(self, leaves: list[Leaf], form: Form) -> list[Leaf]:
        """Put observations that lie outside the block in their places."""
        ends = np.cumsum(self.lengths() + 1) - 1
        for end, chunk in zip(ends, self.chunks):
            if chunk.tail is not NOTHING:
                column = BlockColumn()
                column.form, column.leaves = form, leaves
                column.put_one(int(end), chunk.tail)
                leaves = column.leaves
        return leaves


def _take(leaf: Leaf, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Leaf:
    flat = leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
    return np.take(flat, rows, axis=0)
