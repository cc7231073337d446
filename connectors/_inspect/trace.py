"""Changes that each piece of a pipeline makes to the columns of one batch."""

from __future__ import annotations

import dataclasses
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from traceback import walk_tb
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError
from epibatch.core.runtime import preserve_random_state
from epibatch.core.structs import BatchedNdArray

from .._engine.call import running_call
from .._engine.checks import are_episodes, check_batch, no_episodes
from .._engine.columns import Batch, EpisodeColumn
from .._engine.layouts import is_plain
from .._engine.plan import Step
from .._engine.run import columns_of, run_plan
from ..pipeline_copies import copied
from ..step_watches import StepWatch
from .origin import ROW_ORIGIN, NumberRows, RowOrigin, chunks_of, insert_numbering

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2


class TracedColumn(NamedTuple):
    """A summary of one array of a batch.

    Args:
        name: Its column. The parts of a nested column are separated by `/`: `obs/camera`. With several modules the name
            begins with the module: `walker/obs`.
        layout: "episodes" (rows of each episode by themselves), "arrays", "tensors", "objects" (neither), or "stored":
            what the episodes themselves hold, under the names `episode.observations`, `.actions`, `.rewards`, and
            those of the outputs of the model, such as `episode.state_out/h`.
        shape: Rows first; None if rows differ in shape.
        dtype: Name of the type; of objects their class, and "mixed" where they differ.
        bytes: Of the rows.
        digest: Checksum of the values in their order, whatever the layout.
    """

    name: str
    layout: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int
    digest: int

    def __str__(self) -> str:
        shape = "rows of other shapes" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.layout} {self.dtype} {shape}"


def traced_columns(batch: Any) -> dict[str, TracedColumn]:
    """The columns of a batch in any layout, by name.

    Examples:
        >>> column, = traced_columns({"obs": {"camera": np.zeros((5, 2), np.uint8)}}).values()
        >>> column.name, str(column), column.bytes
        ('obs/camera', 'arrays uint8 [5, 2]', 10)
    """
    return _summarised(_rows_by_name(batch))


def _summarised(rows: Mapping[str, tuple[str, list[Any]]]) -> dict[str, TracedColumn]:
    columns = {name: parts for name, parts in rows.items() if name.rpartition("/")[2] != ROW_ORIGIN}
    return {name: _traced(name, layout, parts) for name, (layout, parts) in columns.items()}


def _rows_by_name(batch: Any) -> dict[str, tuple[str, list[Any]]]:
    """Layout, and arrays of rows (or objects) of each column."""
    found: dict[str, tuple[str, list[Any]]] = {}
    for name, layout, rows in _leaves(batch):
        found.setdefault(name, (layout, []))[1].extend(rows)
    return found


def _some_rows(parts: Sequence[Any], most: int) -> np.ndarray[Any, Any] | None:
    """Copies of at most so many rows of a column, evenly spaced; None if they are no numbers of one shape.

    Args:
        parts: Arrays and tensors of rows.
        most: The most rows; fewer of rows with very many entries.
    """
    shapes = {part.shape[1:] if isinstance(part, (np.ndarray, _Tensor)) and part.shape else None for part in parts}
    if len(shapes) != 1 or None in shapes:
        return None
    width = max(1, math.prod(next(iter(shapes)) or ()))
    counts = [part.shape[0] for part in parts]
    total = sum(counts)
    picks = np.unique(np.linspace(0, total - 1, min(total, most, max(1, _MOST_VALUES // width))).astype(np.int64))
    found, start = [], 0
    for part, count in zip(parts, counts):
        among = picks[(picks >= start) & (picks < start + count)] - start
        found.append(part.rows(among) if isinstance(part, _Tensor) else part[among])
        start += count
    rows = np.concatenate(found)
    return rows if rows.dtype.kind in "biuf" else None


def stored_columns(episodes: Iterable[Any]) -> dict[str, TracedColumn]:
    """Return the observations, actions, rewards and outputs of the model that episodes hold, by name.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0.5, 1.5], actions=[0], rewards=[1.0], len_lookback_buffer=0)
        >>> {name: str(column) for name, column in stored_columns([episode]).items()}["episode.observations"]
        'stored float64 [2]'
    """
    return _summarised(_stored_rows(chunks_of(list(episodes))))


def _stored_rows(
    chunks: Sequence[Any], lengths: Sequence[int | None] | None = None
) -> dict[str, tuple[str, list[Any]]]:
    """Layout and arrays of rows of each column that chunks hold.

    Args:
        chunks: Of single agents.
        lengths: The first steps of each that are meant; default: all.
    """
    found: dict[str, tuple[str, list[Any]]] = {}
    for episode, length in zip(chunks, lengths or [None] * len(chunks)):
        module_id = "" if episode.agent_id is None else f"{episode.module_id}/"
        steps, ends = slice(0, length), slice(0, None if length is None else length + 1)
        columns = {
            what: getattr(episode, f"get_{what}")(ends if what == "observations" else steps)
            for what in ("observations", "actions", "rewards")
            if len(getattr(episode, what))
        }
        for name, column in episode.extra_model_outputs.items():
            if len(column):
                columns[name] = episode.get_extra_model_outputs(name, steps)
        for what, rows in columns.items():
            for name, layout, leaves in _nested(f"{module_id}episode.{what}", rows, "stored"):
                found.setdefault(name, (layout, []))[1].extend(leaves)
    return found


def differences(before: TracedColumn | None, after: TracedColumn | None) -> tuple[str, ...]:
    """Return the differences of a column: ("added",), ("removed",), or some of "layout", "shape", "dtype", "values".

    Args:
        before: The column before a piece; None if there is none.
        after: The column after it.
    """
    if before is None or after is None:
        return () if before is after else ("added",) if before is None else ("removed",)
    found = tuple(part for part in ("layout", "shape", "dtype") if getattr(before, part) != getattr(after, part))
    retyped = "dtype" in found or "shape" in found
    return found if retyped or before.digest == after.digest else (*found, "values")


def _by_module(before: dict[str, TracedColumn], batch: Any, after: dict[str, TracedColumn]) -> dict[str, TracedColumn]:
    """Return columns by the names that they have in a batch that a piece has put under its one module."""
    if not isinstance(batch, Batch) or len(batch.groups) != 1:
        return before
    (module_id,) = batch.groups
    names = {name: f"{module_id}/{name}" for name in before if name not in after}
    return {(names[name] if names.get(name) in after else name): column for name, column in before.items()}


def _leaves(batch: Any) -> Iterator[tuple[str, str, list[Any]]]:
    """Name, layout, and arrays of rows (or objects) of each leaf."""
    if isinstance(batch, Batch):
        for group, columns in batch.groups.items():
            module_id = group[0] if isinstance(group, tuple) else group
            for name, column in columns.items():
                yield from _of(str(name) if group is None else f"{module_id}/{name}", column)
        batch = batch.loose
    for name, column in batch.items():
        yield from _of(str(name), column)


def _of(name: str, column: Any) -> Iterator[tuple[str, str, list[Any]]]:
    if isinstance(column, EpisodeColumn):
        parts = column.parts  # not joined for good: that is the work of the piece that will need it
        yield from _nested(name, column.data if parts is None else parts.joined(), "episodes")
    elif is_plain(column):
        yield from _plain(name, column)
    elif isinstance(column, list):  # a module's items
        for item in column:
            yield from _nested(name, item, "episodes", single=True)
    else:
        yield from _nested(name, column, None)


def _plain(name: str, column: Mapping[Any, list[Any]]) -> Iterator[tuple[str, str, list[Any]]]:
    for key, items in column.items():
        label = f"{key[2]}/{name}" if len(key) == 3 else name
        for item in items:
            yield from _nested(label, item, "episodes", single=True)


def _nested(name: str, struct: Any, layout: str | None, single: bool = False) -> Iterator[tuple[str, str, list[Any]]]:
    """The leaves of a structure of rows, or of one row.

    Args:
        name: Of the structure.
        struct: Arrays, tensors, dicts and tuples of them, or objects.
        layout: Of it; None: as its leaves are.
        single: Whether a leaf that is not tagged as many rows is one row.
    """
    if isinstance(struct, (dict, tuple)) and name.rpartition("/")[2] != "infos":
        parts = struct.items() if isinstance(struct, dict) else enumerate(struct)
        for key, part in parts:
            yield from _nested(f"{name}/{key}", part, layout, single)
    elif isinstance(struct, list):
        yield name, layout or "objects", list(struct)
    elif hasattr(struct, "detach"):
        yield name, layout or "tensors", [_Tensor(struct)]
    elif single and not isinstance(struct, BatchedNdArray):
        numeric = isinstance(struct, (np.ndarray, np.generic, int, float, bool))
        yield name, layout or "objects", [np.asarray(struct)[None] if numeric else struct]
    else:
        is_array = isinstance(struct, np.ndarray) and struct.ndim
        yield name, layout or ("arrays" if is_array else "objects"), [struct]


class _Tensor:
    """A tensor with what an array has of what is asked here; its type is a name, since NumPy has not all of them."""

    def __init__(self, tensor: Any) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.nbytes = tensor.element_size() * tensor.nelement()
        self._tensor = tensor

    def rows(self, at: Any) -> np.ndarray[Any, Any]:
        """Copies of some rows; of a type that NumPy has not as float32."""
        rows = self._tensor.detach()[at].cpu()
        try:
            return np.array(rows.numpy())
        except TypeError:
            return np.array(rows.float().numpy())

    def digest(self, start: int) -> int:
        tensor = self._tensor.detach().cpu().contiguous()
        try:
            return _digest(tensor.numpy(), start)
        except TypeError:  # NumPy has no such type
            return _digest(tensor.float().numpy(), start)


def _traced(name: str, layout: str, rows: Iterable[Any]) -> TracedColumn:
    rows = list(rows)
    arrays = [part for part in rows if isinstance(part, (np.ndarray, _Tensor)) and part.shape]
    if len(arrays) != len(rows) or not rows:
        kinds = {type(part).__name__.lstrip("_") for part in rows}
        digest = 0
        for part in rows:
            digest = _digest_of(part, digest)
        return TracedColumn(name, layout, (len(rows),), kinds.pop() if len(kinds) == 1 else "mixed", 0, digest)
    types = {str(part.dtype) for part in arrays}
    shapes = {part.shape[1:] for part in arrays}
    shape = (sum(part.shape[0] for part in arrays), *shapes.pop()) if len(shapes) == 1 else None
    digest = 0
    for part in arrays:
        digest = part.digest(digest) if isinstance(part, _Tensor) else _digest(part, digest)
    dtype = types.pop() if len(types) == 1 else "mixed"
    return TracedColumn(name, layout, shape, dtype, sum(int(part.nbytes) for part in arrays), digest)


def _digest(array: Any, start: int) -> int:
    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        return _digest_of(array.tolist(), start)
    return zlib.crc32(array.reshape(-1).view(np.uint8), start) if array.size else start


def _digest_of(part: Any, start: int, inside: tuple[int, ...] = ()) -> int:
    """Return the checksum of any object: of all numbers in arrays, at any depth of containers and dataclasses.

    Args:
        part: The object.
        start: The checksum of the objects before it.
        inside: The `id` of each object that contains it.
    """
    if id(part) in inside:
        return start
    kind, inside = type(part), (*inside, id(part))
    start = zlib.crc32(kind.__name__.encode(), start)
    if isinstance(part, _Tensor):
        return part.digest(start)
    if hasattr(part, "detach") and hasattr(part, "element_size"):
        return _Tensor(part).digest(start)
    if isinstance(part, np.ndarray):
        return _digest(part, zlib.crc32(f"{part.dtype} {part.shape}".encode(), start))
    if isinstance(part, Mapping):
        part = [entry for item in part.items() for entry in item]
    elif isinstance(part, (set, frozenset)):
        part = sorted(_digest_of(entry, 0, inside) for entry in part)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        part = [getattr(part, field.name) for field in dataclasses.fields(part)]
    elif not isinstance(part, (list, tuple)):
        return zlib.crc32(repr(part).encode(), start)
    for entry in part:
        start = _digest_of(entry, start, inside)
    return start


_MOST_VALUES = 2**20
"""Values of a column that a trace keeps, at most."""
_SIGNS = {"added": "+", "removed": "-"}


class TracedPiece(NamedTuple):
    """The changes of one piece to the batch, and to the episodes (`episode.rewards`) if it may write to them.

    Args:
        piece: Its stable name in the pipeline.
        before: The columns before the piece, by name.
        after: The columns after the piece; those before it if it raised.
        error: The error that it raised, or that its output caused before the next piece; or None.
        seconds: What it took, with bringing the batch into the layout that it takes.
        values: At most `keep_rows` rows of each column of numbers after the piece, by name: arrays `[rows, ...]`. With
            origins there is `row_origin` too: the numbers of the rows, from 1 in the order of chunks; 0 is padding.
    """

    piece: str
    before: Mapping[str, TracedColumn]
    after: Mapping[str, TracedColumn]
    error: Exception | None = None
    seconds: float = 0.0
    values: Mapping[str, np.ndarray[Any, Any]] = MappingProxyType({})

    @property
    def changes(self) -> dict[str, tuple[str, ...]]:
        """In what columns differ, by name: ("added",), ("removed",), or of "layout", "shape", "dtype", "values"."""
        names = dict.fromkeys([*self.before, *self.after])
        found = {name: differences(self.before.get(name), self.after.get(name)) for name in names}
        return {name: kinds for name, kinds in found.items() if kinds}

    @property
    def bytes(self) -> tuple[int, int]:
        """The bytes of all columns of the batch, before the piece and after it."""
        before, after = (
            sum(column.bytes for column in columns.values() if column.layout != "stored")
            for columns in (self.before, self.after)
        )
        return before, after


class PipelineTrace(StepWatch):
    """The changes of each piece of a pipeline to one batch: print it, or read `pieces`.

    Args:
        pipeline: The pipeline to run.
        start: The batch at its start.
        episodes: The episodes of the call.
        keep_rows: Rows of each column that `values` of a piece keeps.

    Attributes:
        pieces: One entry per piece that ran, and one for the piece that raised. An error in the batch that a piece
            returned belongs to that piece, although it is raised before the next piece.
        error: The error, or None.
        batch: The pipeline's output; None if a piece raised.
        origin: The chunk and step of each row of the batch, by module, if they were asked for.
        chunks: The chunks that `origin` names.
        start_values: As `values` of a piece, before the first one.
        recorded: What the episodes hold at the start, and rows of it as in `values` (None: no numbers of one shape), by
            the name that the column has in a batch (`obs`, `actions`, `state_out/h`). While acting these are the
            newest rows alone. Empty if no rows are kept.

    Examples:
        >>> import numpy as np
        >>> from epibatch.connectors.env_to_module import (
        ...     AddObservationsFromEpisodesToBatch, BatchIndividualItems, EnvToModulePipeline)
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> pieces = [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
        >>> pipeline = EnvToModulePipeline(connectors=pieces)
        >>> episodes = [SingleAgentEpisode(observations=[np.zeros(4, np.float32)]) for _ in range(3)]
        >>> trace = pipeline.trace(episodes)
        >>> [(piece.piece, piece.changes) for piece in trace.pieces][1:]
        [('batch_individual_items', {'obs': ('layout',)})]
        >>> str(trace.pieces[1].after["obs"])
        'arrays float32 [3, 4]'
    """

    def __init__(self, pipeline: ConnectorPipelineV2, start: Any, episodes: Sequence[Any], keep_rows: int = 0) -> None:
        self.pipeline = type(pipeline).__name__
        self.pieces: list[TracedPiece] = []
        self.error: Exception | None = None
        self.batch: dict[str, Any] | None = None
        self.origin: dict[str, RowOrigin] = {}
        self.chunks: list[Any] = []
        self._steps = [step for step in pipeline.plan().steps if not isinstance(step.piece, NumberRows)]
        self._keep_rows = keep_rows
        self._episodes = episodes
        self._stored: dict[str, TracedColumn] = {}
        self._stored_values: dict[str, np.ndarray[Any, Any]] = {}
        self.recorded: dict[str, tuple[TracedColumn, np.ndarray[Any, Any] | None]] = {}
        writes = any(map(_may_write, self._steps))
        if writes or keep_rows:
            rows = _stored_rows(chunks_of(episodes))
            columns, values = _summarised(rows), self._values(rows)
            if writes:
                self._stored, self._stored_values = columns, values
            if keep_rows:
                if pipeline.training is False:  # it makes columns of the newest rows
                    rows = {name: (layout, [_newest(part) for part in parts]) for name, (layout, parts) in rows.items()}
                    columns, values = _summarised(rows), self._values(rows)
                self.recorded = {_name_in_batch(name): (column, values.get(name)) for name, column in columns.items()}
        self._last = {**self._stored, **traced_columns(start)}
        self.start_values = {**self._stored_values, **self._values(_rows_by_name(start))}

    def _values(self, rows: Mapping[str, tuple[str, list[Any]]]) -> dict[str, np.ndarray[Any, Any]]:
        if not self._keep_rows:
            return {}
        kept = {name: _some_rows(parts, self._keep_rows) for name, (_, parts) in rows.items()}
        return {name: values for name, values in kept.items() if values is not None}

    # -- as a watch of the pipeline --------------------------------------------------------------

    def stepped(self, step: Step, seconds: float, batch: Any) -> None:
        """Take note of what a piece left."""
        if isinstance(step.piece, NumberRows):
            return
        if _may_write(step):
            stored = self._stored_now(step)
            self._stored, self._stored_values = _summarised(stored), self._values(stored)
        rows = _rows_by_name(batch)
        after = {**self._stored, **_summarised(rows)}
        self._last = _by_module(self._last, batch, after)
        values = {**self._stored_values, **self._values(rows)}
        self.pieces.append(TracedPiece(step.name, self._last, after, seconds=seconds, values=values))
        self._last = after

    def _stored_now(self, step: Step) -> dict[str, tuple[str, list[Any]]]:
        """Return what the episodes hold after a piece, without the steps that it was shown in addition."""
        chunks, call = chunks_of(self._episodes), running_call()
        if call is None or (step.columnar and not isinstance(self._episodes, list)):
            return _stored_rows(chunks)
        shown = chunks_of(call.plain_episodes())  # may be copies, with a bootstrap step or with steps after a draw
        return _stored_rows(shown, list(map(len, chunks)) if len(chunks) == len(shown) else None)

    def failed(self, error: Exception) -> None:
        """Take note of the piece that raised: the first that left nothing, or the last if what it left is wrong."""
        self.error = error
        if _is_about_the_batch(error):
            self.pieces[-1] = self.pieces[-1]._replace(error=error)
        elif len(self.pieces) < len(self._steps):
            name = self._steps[len(self.pieces)].name
            self.pieces.append(TracedPiece(name, self._last, self._last, error))

    # -- as a table --------------------------------------------------------------------------------

    def table(self, *, unchanged: bool = False) -> Any:
        """A `rich` table, a line per column that a piece added (+), removed (-) or changed (~).

        Args:
            unchanged: Whether columns that a piece left alone have a line too.
        """
        from rich.table import Table
        from rich.text import Text

        table = Table("piece", "", "column", "before", "after", "bytes", box=None, header_style="bold", pad_edge=False)
        table.columns[-1].justify = "right"
        for piece in self.pieces:
            for line in _lines(piece, unchanged):
                table.add_row(*map(Text, line))
        return table

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        return self.table() if self.error is None else Group(self.table(), "", Text(_spelled(self.error)))

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=10_000, color_system=None, force_terminal=False, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __repr__(self) -> str:
        failed = f", error in {self.pieces[-1].piece}" if self.error is not None and self.pieces else ""
        return f"PipelineTrace({self.pipeline}, {len(self.pieces)} pieces{failed})"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        from html import escape

        head = "".join(f"<th>{name}</th>" for name in ("piece", "", "column", "before", "after", "bytes"))
        lines = [line for piece in self.pieces for line in _lines(piece, False)]
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
        error = "" if self.error is None else f"<pre>{escape(_spelled(self.error))}</pre>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{error}"


def _spelled(error: Exception) -> str:
    notes = getattr(error, "__notes__", [])
    return "\n".join([f"{type(error).__name__}: {error}", *notes])


def _name_in_batch(stored: str) -> str:
    """The name in a batch of a column that episodes hold."""
    return stored.replace("episode.observations", Columns.OBS).replace("episode.", "")


def _newest(rows: Any) -> Any:
    return rows[-1:] if isinstance(rows, np.ndarray) else rows


def _may_write(step: Step) -> bool:
    return step.writes_episodes or bool(step.piece.rewrites_observations)


def _lines(piece: TracedPiece, unchanged: bool) -> Iterator[tuple[str, ...]]:
    """The lines of one piece: its name stands in the first."""
    changes = piece.changes
    names = [name for name in dict.fromkeys([*piece.before, *piece.after]) if unchanged or name in changes]
    if piece.error is not None:
        yield (piece.piece, "!", type(piece.error).__name__, "", "", "")
        return
    if not names:
        yield (piece.piece, "", "-", "", "", "")
    for number, name in enumerate(names):
        before, after = piece.before.get(name), piece.after.get(name)
        sign = _SIGNS.get(changes[name][0], "~") if name in changes else "="
        old, new = (0 if column is None else column.bytes for column in (before, after))
        size = f"{old:,} -> {new:,}" if old != new else f"{new:,}"
        note = ", other values" if changes.get(name) == ("values",) else ""
        cells = ("" if before is None else str(before), "" if after is None else f"{after}{note}")
        yield (piece.piece if number == 0 else "", sign, name, *cells, size)


def trace_pipeline(
    pipeline: ConnectorPipelineV2,
    episodes: Sequence[Any],
    module: Any,
    batch: dict[str, Any] | None,
    shared_data: dict[str, Any] | None,
    copies: bool,
    keep_rows: int = 0,
    origin: bool = False,
    **call: Any,
) -> PipelineTrace:
    """Run a pipeline once and watch what its pieces do to the columns; see `ConnectorPipelineV2.trace`."""
    batch, shared_data = {} if batch is None else batch, {} if shared_data is None else shared_data
    if not are_episodes(episodes):
        raise no_episodes(pipeline, episodes)
    check_batch(pipeline, batch)
    if copies:
        do = "pass copies=False: then pieces and episodes are those that you gave, and change as in any call"
        arguments = (episodes, batch, shared_data)
        pipeline, episodes, batch, shared_data = copied("trace", pipeline, *arguments, kept=module, do=do)
    elif origin:
        raise PipelineError(
            f"{type(pipeline).__name__}.trace(copies=False, origin=True)",
            expected="copies, into which a piece can be put that numbers the rows",
            found="the pipeline itself",
            do="leave out copies=False, or origin=True",
        )
    numbering = insert_numbering(pipeline) if origin and pipeline.training is not False else None
    trace = PipelineTrace(pipeline, batch, episodes, keep_rows)
    pipeline.watches.append(trace)
    try:
        with preserve_random_state() if copies else nullcontext():
            trace.batch = pipeline(rl_module=module, batch=batch, episodes=episodes, shared_data=shared_data, **call)
    except Exception as error:
        ran = run_plan.__code__ in _codes(error)  # otherwise what the call was given is wrong
        if not ran or (_is_about_the_batch(error) and not trace.pieces):
            raise
        trace.failed(error)
    finally:
        pipeline.watches.remove(trace)
    if numbering is not None and trace.batch is not None:
        trace.origin, trace.chunks = numbering.taken_from(trace.batch), numbering.chunks
    return trace


def _is_about_the_batch(error: Exception) -> bool:
    """True if no piece was running, but columns were made of the batch before one."""
    codes = _codes(error)
    return codes[codes.index(run_plan.__code__) :][1:2] == [columns_of.__code__]


def _codes(error: Exception) -> list[Any]:
    """Return the code objects that were running, outermost first."""
    return [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
