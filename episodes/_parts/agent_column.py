"""An agent's column on the time line of the environment: which of its rows lie at which env steps."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from epibatch.core.errors import EpisodeIndexError
from epibatch.core.structs import flatten, unflatten

from .._storage.growing_column import NOTHING
from ..arrays import object_leaf, shielded, stacked_rows
from ..indexing import SEVERAL, WATCH, Indices, Positions, check_writable, position_of, positions_of
from ..infinite_lookback_buffer import InfiniteLookbackBuffer
from .agent_segment import AgentRecord, AgentSegment

OF_OBSERVATIONS = ("observations", "infos")  # columns with a row per observation; the others have one per step


class AgentColumn:
    """The rows of one column of one agent, in the order of their env steps, those of an open step included.

    Args:
        record: The agent.
        name: What SingleAgentEpisode calls the column: "observations", "infos", "actions", "rewards" or
            "extra_model_outputs".
        key: Which of the model outputs.
        latest: Whether only the last of the agent's lives counts.

    Attributes:
        buffer: The rows, but for the open step's.
        steps: Env steps of the rows.
        count: How many rows there are, the open step's included.
        open: The open step's row, or NOTHING.
    """

    __slots__ = ("_parts", "buffer", "count", "key", "name", "open", "record", "steps")

    def __init__(self, record: AgentRecord, name: str, key: str | None = None, *, latest: bool = False) -> None:
        self.record, self.name, self.key = record, name, key
        segments = record.segments[-1:] if latest else record.segments
        pairs = [(segment, _buffer(segment, name, key)) for segment in segments]
        self._parts = [(segment, buffer) for segment, buffer in pairs if buffer is not None]
        self.open = self._open_row()
        self.buffer: Any
        self.steps: array[int]
        if len(pairs) == len(self._parts) == 1:
            self.steps, self.buffer = segments[0].steps, pairs[0][1]
        else:
            self.buffer, self.steps = self._joined()
            if self.open is not NOTHING:
                self.steps.append(segments[-1].steps[-1])
        self.count = self.buffer.len_incl_lookback() + (self.open is not NOTHING)

    @property
    def lookback(self) -> int:
        """The number of rows before the chunk's start."""
        return int(self.buffer.lookback)

    def _open_row(self) -> Any:
        record, name = self.record, self.name
        if name in OF_OBSERVATIONS or record.live is None or record.action is NOTHING:
            return NOTHING
        if name == "actions":
            return record.action
        if name == "rewards":
            return record.no_reward if record.reward is None else record.reward
        return record.extras.get(str(self.key), NOTHING)

    def _joined(self) -> tuple[Any, array[int]]:
        """Copies of the rows of several lives (or of none)."""
        buffer: Any = None
        steps = array("q")
        for segment, part in self._parts:
            rows = part.len_incl_lookback()
            steps.extend(segment.steps[:rows])
            if buffer is None:
                buffer = part.copy_rows(range(rows), part.lookback)
            elif rows:
                buffer.extend(part)
        return InfiniteLookbackBuffer() if buffer is None else buffer, steps

    # -- reading -------------------------------------------------------------------------------

    def between(self, low: int, high: int, one_hot: bool = False) -> Any:
        """The rows at env steps from `low` to before `high`, stacked; NOTHING if there are none."""
        first = bisect_left(self.steps, low, 0, self.count)
        last = bisect_left(self.steps, high, first, self.count)
        if first == last:
            return NOTHING
        return self.get(slice(first - self.lookback, last - self.lookback), True, None, one_hot)

    def at(self, env_t: int, fill: Any = None, one_hot: bool = False) -> Any:
        """The row at an env step; if there is none, one of the fill value, or NOTHING without it."""
        row = bisect_left(self.steps, env_t, 0, self.count)
        if row == self.count or self.steps[row] != env_t:
            if fill is None:
                return NOTHING
            row = self.count
        return self.get(row - self.lookback, True, fill, one_hot)

    def find(self, env_steps: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Absolute rows at env steps; -1 where there is none."""
        targets = np.asarray(env_steps, np.int64)
        steps = np.array(self.steps[: self.count], np.int64)
        rows = np.searchsorted(steps, targets)
        if not self.count:
            return np.full(len(targets), -1)
        found = steps[np.minimum(rows, self.count - 1)] == targets
        return np.where(found, rows, -1)

    def at_each(self, env_steps: Sequence[int] | np.ndarray[Any, Any], fill: Any = None, one_hot: bool = False) -> Any:
        """The rows at some env steps, stacked; NOTHING if there are none.

        Args:
            env_steps: Which.
            fill: Value of the rows at env steps without one; None leaves them out.
            one_hot: Whether discrete values become one-hot rows.
        """
        rows = self.find(env_steps)
        if fill is None:
            rows = rows[rows >= 0]
            if not len(rows):
                return NOTHING
        else:
            rows = np.where(rows < 0, self.count, rows)
        return self.get((rows - self.lookback).tolist(), True, fill, one_hot)

    def get(self, indices: Indices, neg_index_as_lookback: bool, fill: Any, one_hot: bool) -> Any:
        """Rows by index of the agent's own, as a buffer gives them."""
        buffer = self.buffer
        if self.open is not NOTHING:
            last = self.count - 1 - self.lookback
            if type(indices) is int and neg_index_as_lookback and indices == last and not one_hot:
                return self.open
            stop = indices.stop if type(indices) is slice and neg_index_as_lookback else None
            if type(stop) is not int or stop > last:
                buffer = self.buffer.copy_rows(range(self.count - 1), self.lookback)
                buffer.t_started = self.buffer.t_started
                buffer.append(self.open)
        options = {"one_hot_discrete": True} if one_hot else {}
        rows = buffer.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill, **options)
        if self.name == "rewards":
            watch = WATCH.get()
            return shielded(rows) if watch is not None and watch.acting else rows
        return rows

    # -- writing -------------------------------------------------------------------------------

    def write(self, rows: int | Positions, new_data: Any, where: str) -> None:
        """Overwrite absolute rows.

        Args:
            rows: Which, one or several; all exist.
            new_data: One row, or as many: a list of rows, or stacked arrays.
            where: What is written to, for errors.

        Raises:
            EpisodeIndexError: another number of rows; nothing changed.
        """
        if isinstance(rows, int):
            self._write_row(rows, new_data)
            return
        form, leaves, count = stacked_rows(object_leaf(new_data) if self.name == "infos" else new_data)
        if count != len(rows):
            raise EpisodeIndexError(
                where, expected=f"{len(rows)} rows", found=f"{count}", do="pass one row per step addressed"
            )
        offset = 0
        for segment, part in self._parts:
            length = part.len_incl_lookback()
            chosen = [i for i, row in enumerate(rows) if offset <= row < offset + length]
            if chosen:
                indices = [int(rows[i]) - offset - part.lookback for i in chosen]
                self._set(segment, unflatten(form, [leaf[chosen] for leaf in leaves or []]), indices)
            offset += length
        for i, row in enumerate(rows):
            if row >= offset:
                self._write_open(unflatten(form, [leaf[i] for leaf in leaves or []]))

    def _write_row(self, row: int, new_data: Any) -> None:
        for segment, part in self._parts:
            length = part.len_incl_lookback()
            if row < length:
                self._set(segment, new_data, row - part.lookback)
                return
            row -= length
        self._write_open(new_data)

    def _write_open(self, row: Any) -> None:
        check_writable()
        if self.name == "actions":
            self.record.action = row
        elif self.name == "rewards":
            self.record.reward = row
        else:
            self.record.extras[str(self.key)] = row

    def _set(self, segment: AgentSegment, new_data: Any, at_indices: Any) -> None:
        keys = {} if self.key is None else {"key": self.key}
        setter = getattr(segment.episode, f"set_{self.name}")
        setter(**keys, new_data=new_data, at_indices=at_indices, neg_index_as_lookback=True)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A request for rows of one column of several agents, by env step or by each agent's own steps.

    Args:
        name: "observations", "infos", "actions", "rewards" or "extra_model_outputs".
        indices: An int, a slice, a list of ints, or None for the whole chunk.
        neg_index_as_lookback: Whether negative indices count backwards from the chunk's start.
        env_steps: Whether indices are env steps; otherwise each agent's own.
        fill: Value of rows that do not exist; None leaves them out.
        one_hot: Whether discrete values become one-hot rows.
        return_list: Whether to give a dict for each env step.
        key: One of the model outputs; None for all of them.
    """

    name: str
    indices: Indices
    neg_index_as_lookback: bool
    env_steps: bool = True
    fill: Any = None
    one_hot: bool = False
    return_list: bool = False
    key: str | None = None

    @property
    def several(self) -> bool:
        """True if rows are stacked, rather than one given as it is."""
        return isinstance(self.indices, SEVERAL)

    def positions(self, lookback: int, total: int, beyond: bool = False) -> Any:
        """Absolute positions of the indices among `total` rows: an int, or several; `beyond`: those outside too."""
        if self.several:
            return positions_of(self.indices, lookback, total, self.neg_index_as_lookback, beyond)  # type: ignore[arg-type]
        return position_of(self.indices, lookback, total, self.neg_index_as_lookback)

    def read(self, records: Mapping[Any, AgentRecord], steps: Any = None) -> dict[Any, Any]:
        """The rows of each agent that has any.

        Args:
            records: The agents.
            steps: One env step or several; None stands for the indices, as each agent's own steps.
        """
        found: dict[Any, Any] = {}
        for agent, record in records.items():
            if self.name == "extra_model_outputs" and self.key is None:
                outputs = {key: replace(self, key=key).rows_of(record, steps) for key in record.output_keys}
                rows = {key: rows for key, rows in outputs.items() if rows is not NOTHING} or NOTHING
            else:
                rows = self.rows_of(record, steps)
            if rows is not NOTHING:
                found[agent] = rows
        return found

    def rows_of(self, record: AgentRecord, steps: Any) -> Any:
        """The rows of one agent; NOTHING if there are none, and no fill or no env step."""
        if type(steps) is int:
            return self._row_of(record, steps)
        column = AgentColumn(record, self.name, self.key, latest=steps is None)
        if steps is None:
            rows = column.get(self.indices, self.neg_index_as_lookback, self.fill, self.one_hot)
            if self.several:
                leaves = [rows] if self.name == "infos" else flatten(rows)[0]
                if not leaves or not len(leaves[0]):
                    return NOTHING
            return rows
        if not len(steps):
            return NOTHING
        if isinstance(steps, range) and steps.step == 1 and self.fill is None:
            return column.between(steps.start, steps.stop, self.one_hot)
        return column.at_each(steps, self.fill, self.one_hot)

    def _row_of(self, record: AgentRecord, env_t: int) -> Any:
        name = self.name
        if name not in OF_OBSERVATIONS or self.one_hot or self.fill is not None:
            return AgentColumn(record, name, self.key).at(env_t, self.fill, self.one_hot)
        for segment in reversed(record.segments):
            row = segment.row_at(env_t)
            if row >= 0:
                buffer = getattr(segment.episode, name)
                here = segment.steps[row] == env_t
                return buffer.get(row - buffer.lookback, neg_index_as_lookback=True) if here else NOTHING
        return NOTHING


def _buffer(segment: AgentSegment, name: str, key: str | None) -> Any:
    """The column of one life; None if it has no model output of that key."""
    column = getattr(segment.episode, name)
    return column if key is None else column.get(key)
