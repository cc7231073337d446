"""What each piece of a pipeline does to the columns of one batch."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

from epibatch.core.errors import PieceError, add_context
from epibatch.core.random_states import random_state_kept

from .._engine.checks import are_episodes, check_batch, no_episodes
from .._engine.plan import Step
from .._engine.run import columns_of, run_plan
from .traced_columns import TracedColumn, differences, stored_columns, traced_columns

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["PipelineTrace", "TracedPiece", "copied", "trace_pipeline"]

_SIGNS = {"added": "+", "removed": "-"}


class TracedPiece(NamedTuple):
    """What one piece did to the batch, and to what the episodes hold (`episode.rewards`), if it may write there.

    Args:
        piece: Its stable name in the pipeline.
        before: The columns that it found, by name.
        after: The columns that it left; what it found if it raised.
        error: What it raised, or what the next piece could not make columns of; or None.
    """

    piece: str
    before: Mapping[str, TracedColumn]
    after: Mapping[str, TracedColumn]
    error: Exception | None = None

    @property
    def changes(self) -> dict[str, tuple[str, ...]]:
        """In what columns differ, by name: ("added",), ("removed",), or of "layout", "shape", "dtype", "values"."""
        names = dict.fromkeys([*self.before, *self.after])
        found = {name: differences(self.before.get(name), self.after.get(name)) for name in names}
        return {name: own for name, own in found.items() if own}

    @property
    def bytes(self) -> tuple[int, int]:
        """Of all columns of the batch in front of the piece, and behind it."""
        before, after = (
            sum(own.bytes for own in columns.values() if own.layout != "stored")
            for columns in (self.before, self.after)
        )
        return before, after


class PipelineTrace:
    """What the pieces of a pipeline did to one batch: print it, or read `pieces`.

    Args:
        pipeline: What is to run.
        start: The batch at its start.
        episodes: What it is about.

    Attributes:
        pieces: One entry per piece that ran, and one for the piece that raised. An error about the batch that a piece
            left is that piece's, although nobody sees it before the next piece.
        error: What was raised, or None.
        batch: What the pipeline gave; None if a piece raised.

    Example:
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

    def __init__(self, pipeline: ConnectorPipelineV2, start: Any, episodes: Sequence[Any]) -> None:
        self.pipeline = type(pipeline).__name__
        self.pieces: list[TracedPiece] = []
        self.error: Exception | None = None
        self.batch: dict[str, Any] | None = None
        self._steps = pipeline.plan().steps
        self._episodes = episodes
        self._stored = stored_columns(episodes) if any(map(_may_write, self._steps)) else {}
        self._last = {**self._stored, **traced_columns(start)}

    # -- as a watch of the pipeline --------------------------------------------------------------

    def stepped(self, step: Step, seconds: float, batch: Any) -> None:
        """Take note of what a piece left."""
        if _may_write(step):
            self._stored = stored_columns(self._episodes)
        after = {**self._stored, **traced_columns(batch)}
        self.pieces.append(TracedPiece(step.name, self._last, after))
        self._last = after

    def finished(self, seconds: float) -> None:
        """Nothing: the pieces are all that is kept."""

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
        old, new = (0 if own is None else own.bytes for own in (before, after))
        told = f"{old:,} -> {new:,}" if old != new else f"{new:,}"
        note = ", other values" if changes.get(name) == ("values",) else ""
        cells = ("" if before is None else str(before), "" if after is None else f"{after}{note}")
        yield (piece.piece if number == 0 else "", sign, name, *cells, told)


def trace_pipeline(
    pipeline: ConnectorPipelineV2,
    episodes: Sequence[Any],
    module: Any,
    batch: dict[str, Any] | None,
    shared_data: dict[str, Any] | None,
    copies: bool,
    **call: Any,
) -> PipelineTrace:
    """Run a pipeline once and watch what its pieces do to the columns; see `ConnectorPipelineV2.trace`."""
    batch, shared_data = {} if batch is None else batch, {} if shared_data is None else shared_data
    if not are_episodes(episodes):
        raise no_episodes(pipeline, episodes)
    check_batch(pipeline, batch)
    if copies:
        do = "pass copies=False: then pieces and episodes are those that you gave, and change as in any call"
        given = (episodes, batch, shared_data)
        pipeline, episodes, batch, shared_data = copied("trace", pipeline, *given, kept=module, do=do)
    trace = PipelineTrace(pipeline, batch, episodes)
    pipeline.watches.append(trace)
    try:
        with random_state_kept() if copies else nullcontext():
            trace.batch = pipeline(rl_module=module, batch=batch, episodes=episodes, shared_data=shared_data, **call)
    except Exception as error:
        if not _came_from_a_piece(error) or (_is_about_the_batch(error) and not trace.pieces):
            raise
        trace.failed(error)
    finally:
        pipeline.watches.remove(trace)
    return trace


def _came_from_a_piece(error: Exception) -> bool:
    """Whether pieces were running; otherwise what the call was given is wrong."""
    return run_plan.__code__ in _codes(error)


def _is_about_the_batch(error: Exception) -> bool:
    """Whether no piece was running, but columns were made of the batch in front of one."""
    codes = _codes(error)
    return codes[codes.index(run_plan.__code__) :][1:2] == [columns_of.__code__]


def _codes(error: Exception) -> list[Any]:
    """What was running, outermost first."""
    return [frame.f_code for frame, _ in walk_tb(error.__traceback__)]


def copied(method: str, pipeline: Any, *given: Any, kept: Any = None, do: str) -> Any:
    """Copy a pipeline, without its watches, and what it is given.

    Args:
        method: The pipeline's method that needs the copies, for messages.
        pipeline: The pipeline.
        *given: Episodes, a batch, a module.
        kept: What is not copied wherever it is found.
        do: What to do about something that cannot be copied.

    Returns:
        The copies, the pipeline's first.
    """
    watch, watches = pipeline.watch, pipeline.watches
    pipeline.watch, pipeline.watches = None, []
    try:
        return copy.deepcopy((pipeline, *given), {id(kept): kept})
    except Exception as error:
        context = PieceError(
            f"{type(pipeline).__name__}.{method}",
            expected="pieces and arguments that can be copied, so that it changes nothing",
            found="something that copy.deepcopy cannot copy, see below",
            do=do,
        )
        add_context(error, str(context))
        raise
    finally:
        pipeline.watch, pipeline.watches = watch, watches
