"""The facts of how episodes became a batch, as data and as a page."""

from __future__ import annotations

import json
import math
import warnings
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError
from epibatch.core.files import write_file
from epibatch.core.rl_module.module_facts import initial_state, is_multi, state_layout, to_array
from epibatch.core.runtime import preserve_random_state
from epibatch.core.structs import map_struct

from ..pipeline_copies import copied
from .drawings import draw_batch, draw_episodes
from .drawn_probes import DrawnProbes
from .origin import MOST_LOOKBACK, NumberRows, RowOrigin, chunks_of, insert_numbering, is_draw
from .trace import PipelineTrace, TracedColumn, TracedPiece, trace_pipeline

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2

_KEEP_ROWS, _MOST_CELLS, _MOST_PROBES = 1024, 4096, 64
_MOST_ENTRIES = 16
"""Entries of an observation that are shown as numbers, and pixels on a side of one that is shown as a picture."""
_MOST_OUTPUTS, _MOST_CHANNELS, _LEAST_PIXELS = 8, 4, 4
_VALUES, _BARS = 32, 12
_PADDING, _LOSS, _BOOTSTRAP, _NO_LOSS = range(4)
_PER_SEQUENCE = (Columns.STATE_IN, Columns.NEXT_STATE_IN)
_STORED = {Columns.OBS: "observations", Columns.ACTIONS: "actions", Columns.REWARDS: "rewards"}
_NO_MODULE = "none was given"
NOT_FINITE = 1e308
"""The difference of two values of which one is not finite."""
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
PAGE_DATA = "/*DATA*/null"
"""What the page's template has in the place of the data."""


class Inspection:
    """The facts of how episodes became a batch: plain dicts, lists, numbers and text in `data`.

    Args:
        data: The facts.

    Attributes:
        data: `title`; `facts`: name -> value; `notes`: texts, the most important first; `compared`: texts that say
            which columns of the train batches hold the recorded values, and which do not; `gap`: the largest difference
            between acting and learning, [of observations, of module outputs], None where it is not known, and 1e308
            where a value is finite on one side alone; and

            `parting`, of an algorithm: None, or `acting` and `learning`, the names of the pieces after which the
            observation of a step is no longer the same on both sides (None: not this side), and `text`.

            `flow`: a dict per pipeline. `key`: its name. `pieces`: dicts with `piece`, `kind` (class), `own` (True: not
            built in), `doc`, `us` (microseconds), `error` (text or None) and `columns`: dicts with `name`, `was` (name
            before), `what` (kinds of changes), `before`, `after` and `recorded` (of a column that the piece added: the
            column of the episodes that it comes from). These are None or dicts with `layout`, `shape` (or
            a text), `dtype`, `bytes`, and for numbers `rows` (of which the moments are), `sampled` (True: not all),
            `nan` (share that is not finite), `zero` (share), `min`, `mean`, `max`, `bars` (histogram, highest 1), and
            of a column that the piece changed `values` (the first few), and of images `thumb`, the first: `planes`
            (base64 of uint8 [planes, height, width]), `width` and `height`.

            `chunks`: a dict per chunk that a cell is of. `id`, `episode` (short names), `name` (the whole id), `agent`,
            `module`, `env` (-1: unknown), `t0` (step of the episode at which it starts), `n` (steps that are shown),
            `steps` (all), `look` (lookback, at most 16), `end` ("terminated", "truncated" or "cut"), `x` (time of each
            observation on the lane of `env` and `agent`, lookback first), `obs` (a list per observation, lookback
            first; bytes of pictures, base64; or None), `side` (pixels on a side of these pictures, or 0), `actions` (or
            None), `rewards`.

            `grids`: module id -> a dict about the train batch. `shape`: of its cells, [B] or [B, T]; `rows`: the B of
            the whole batch. Lists with an entry per cell, in order: `chunk` (number, -1: padding), `at` (step of the
            chunk), `kind` (0 padding, 1 step with loss, 2 bootstrap row, 3 step without loss), `pairs` (None, or
            [acting observation, learning observation, difference, recorded output, output in training, difference,
            None or base64 pictures of both observations]). `columns`: name -> values per cell; `forward_train/...` are
            the module's outputs. `entries`: names of an observation's entries, or None. `seen`: {"obs": cell -> steps
            of the chunk whose observation the cell sees, "rewards": likewise}. `states`: per sequence [norm of the
            first state, what it equals to the bit, what it should equal]. These are the step after which a state was
            recorded, None (the module's initial state), "zeros", or "?" (nothing of these; of the third: not known).
            `others`: column that is not shown per cell -> shape.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def to_json(self) -> str:
        """Return `data` as JSON."""
        return json.dumps(self.data, separators=(",", ":"), allow_nan=False)

    def to_html(self, path: str | Path) -> Path:
        """Write a page that shows the facts and fetches nothing.

        Args:
            path: The file; one that is there is replaced. Folders that are missing are made.

        Returns:
            The file.

        Raises:
            StorageError: It cannot be written.
        """
        write_file(Path(path), self._page().encode(), "the inspector's page")
        return Path(path)

    def _page(self) -> str:
        template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
        return template.replace(PAGE_DATA, self.to_json().translate(_UNSAFE))

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        style = "width:100%;height:720px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self._page())}"></iframe>'

    def svg(self, part: str, module_id: str | None = None) -> str:
        """Return a still drawing for documentation, readable on light and dark pages.

        Args:
            part: "episodes": a line per environment and agent, or per chunk where environments are not known, and a
                cell per step. "batch": the cells of a train batch, each with the step whose values it holds.
            module_id: The module whose batch is drawn; default: the first.

        Returns:
            The text of an SVG.

        Raises:
            PipelineError: another part, or a batch of a module that there is not.

        Examples:
            >>> from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, BatchIndividualItems
            >>> from epibatch.connectors.learner import LearnerConnectorPipeline
            >>> from epibatch.episodes import SingleAgentEpisode
            >>> pipeline = LearnerConnectorPipeline(
            ...     connectors=[AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()])
            >>> episode = SingleAgentEpisode(id_="a", observations=[3.0, 5.0, 7.0], actions=[0, 1], rewards=[0.0, 1.0],
            ...                              len_lookback_buffer=0)
            >>> drawing = pipeline.inspect([episode]).svg("batch")
            >>> drawing[:4], "row 1: step 1 of episode a" in drawing
            ('<svg', True)
        """
        parts = ["episodes", *(["batch"] if self.data["grids"] else [])]
        module_id = next(iter(self.data["grids"]), None) if module_id is None else module_id
        if part not in parts or (part == "batch" and module_id not in self.data["grids"]):
            raise PipelineError(
                "Inspection.svg",
                expected=f"a part among {parts}, and a module among {list(self.data['grids'])}",
                found=f"{part!r}, module {module_id!r}",
                do="choose among these",
            )
        return draw_episodes(self.data) if part == "episodes" else draw_batch(self.data, str(module_id))

    def __repr__(self) -> str:
        pieces = sum(len(lane["pieces"]) for lane in self.data["flow"])
        cells = sum(len(grid["kind"]) for grid in self.data["grids"].values())
        failed = [piece["kind"] for lane in self.data["flow"] for piece in lane["pieces"] if piece["error"] is not None]
        more = ["without a module"] if self.data["facts"].get("module") == _NO_MODULE else []
        more += [f"error in {kind}" for kind in failed]
        counts = [f"{pieces} pieces", f"{len(self.data['chunks'])} chunks", f"{cells} cells"]
        return f"Inspection({', '.join([*counts, *more])})"


def inspect_pipeline(
    pipeline: ConnectorPipelineV2,
    episodes: Sequence[Any],
    module: Any,
    *,
    title: str = "",
    acted: Mapping[Any, Any] | None = None,
    envs: Mapping[Any, int] | None = None,
    outputs: Any = None,
    **call: Any,
) -> Inspection:
    """Run a copy of a pipeline on copies of episodes, with probes, and return what it did.

    Args:
        pipeline: The pipeline.
        episodes: As for a call.
        module: The RL module, which is not copied.
        title: The page's.
        acted: (id of a single agent's episode, step) -> the observation that the module acted on, as one vector; None
            if it did not act.
        envs: Id of an episode -> number of its environment.
        outputs: Function of a batch that returns module id -> outputs of its rows.
        **call: As for `ConnectorPipelineV2.trace`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = traced(pipeline, episodes, module, origin=True, **call)
        notes: list[str] = []
        by_module = _by_module(trace.batch, trace.origin)
        seen = _probed(pipeline, episodes, module, trace, notes, call)
        made = outputs(by_module) if outputs is not None and by_module else {}
        originals = _originals(trace.chunks, episodes)
        shown: dict[int, int] = {}
        grids = {}
        findings: list[tuple[str, bool]] = []
        for key, columns in by_module.items():
            grid = _Grid(trace, originals, key, columns, shown, notes)
            sees = {what: cells.get(key, {}) for what, cells in seen.items()}
            member = module[key] if module is not None and is_multi(module) and key in module else module
            grids[key] = grid.facts(acted, made.get(key, {}), sees, member)
            findings += grid.findings(pipeline, grids[key]["states"])
    gaps = [grid.pop("gap") for grid in grids.values()]
    flow = [lane(pipeline, trace)]
    notes[:0] = [*_not_run(pipeline, trace, module), *not_finite(flow), *(text for text, warns in findings if warns)]
    notes += dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    data = {
        "title": title or type(pipeline).__name__,
        "facts": {
            "chunks": len(trace.chunks),
            "steps": sum(map(len, trace.chunks)),
            **({"module": _NO_MODULE} if module is None else {}),
        },
        "flow": flow,
        "chunks": _described_chunks([originals[i] for i in shown], episodes, envs or {}),
        "grids": grids,
        "notes": notes,
        "compared": [text for text, warns in findings if not warns],
        "gap": [max((gap[i] for gap in gaps if gap[i] is not None), default=None) for i in range(2)],
    }
    return Inspection(data)


def _not_run(pipeline: Any, trace: PipelineTrace, module: Any) -> list[str]:
    """Return notes on what was not run, and why."""
    kinds = [type(step.piece).__name__ for step in pipeline.plan().steps]
    notes = []
    if trace.error is not None:
        after = ", ".join(kinds[len(trace.pieces) :])
        notes.append(
            f"{trace.pieces[-1].piece} raised {type(trace.error).__name__}: {trace.error}\n"
            f"So there is no train batch on this page. {f'Not run: {after}.' if after else ''}".strip()
        )
    if module is None:
        notes.append(
            "No module was given, so it was not run, and the pieces that ask it for its memory or its values did "
            "nothing or raised: a run's batch may look different. Pass the module: inspect(episodes, module)."
        )
    return notes


def traced(pipeline: Any, episodes: Any, module: Any, *, copies: bool = True, **call: Any) -> PipelineTrace:
    """Return a trace with values."""
    call = {"batch": None, "shared_data": None, "origin": False, **call}
    return trace_pipeline(pipeline, episodes, module, copies=copies, keep_rows=_KEEP_ROWS, **call)


# -- pieces ----------------------------------------------------------------------------------------


def lane(pipeline: Any, trace: PipelineTrace, key: str = "") -> dict[str, Any]:
    """Describe a pipeline and what each of its pieces did; see `Inspection.data`, `flow`.

    Args:
        pipeline: The pipeline.
        trace: Its trace.
        key: Its name; default: its first piece's side.
    """
    pieces = {step.name: step.piece for step in pipeline.plan().steps}
    sides = {True: "learner", False: "env_to_module"}
    key = key or ("module_to_env" if pipeline.start_layout == "tensors" else sides.get(pipeline.training, "pipeline"))
    lines = []
    values: Mapping[str, Any] = trace.start_values
    recorded = {} if pipeline.start_layout == "tensors" else trace.recorded
    for traced_piece in trace.pieces:
        kind = type(pieces[traced_piece.piece])
        own = _is_own(kind)
        lines.append(
            {
                "piece": traced_piece.piece,
                "kind": kind.__name__,
                "own": own,
                "doc": _first_sentence_of(kind),
                "us": round(1e6 * traced_piece.seconds, 1),
                "error": None if traced_piece.error is None else str(traced_piece.error),
                "columns": _described_columns(traced_piece, values, recorded),
            }
        )
        values = traced_piece.values
    return {"key": key, "pieces": lines}


def not_finite(flow: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the first piece of each pipeline after which a column has NaN or infinite values.

    Args:
        flow: Pipelines as `lane` describes them.
    """
    notes = []
    for pipeline in flow:
        for piece in pipeline["pieces"]:
            sides = {
                column["name"]: (column["before"] or column["recorded"], column["after"]) for column in piece["columns"]
            }
            made = [
                name
                for name, (before, after) in sides.items()
                if after is not None and after.get("nan") and (before is None or before.get("nan") == 0)
            ]
            if made:
                notes.append(f"{', '.join(made)}: values are not finite from {piece['kind']} in {pipeline['key']} on.")
                break
    return notes


def _is_own(kind: type) -> bool:
    """True if a piece's class is not built in."""
    return not kind.__module__.startswith("epibatch.")


def _first_sentence_of(kind: type) -> str:
    """The first line of a class's docstring; "" of one that is made of its fields."""
    doc = (kind.__dict__.get("__doc__") or "").strip()
    return "" if doc.startswith(f"{kind.__name__}(") else doc.split("\n")[0]


def _changed_values(before: Any, after: Any) -> str:
    """Return how many of the values a piece changed, and the first of them, as text."""
    if before is None or after is None or before.shape != after.shape:
        return "values"
    differ = _differ(before, after)
    if not differ.any():
        return "values"
    was, now = (_short(rows[differ][0]) for rows in (before, after))
    return f"{differ.mean():.0%} of the values, for example {was} → {now}".replace("None", "not finite")


def _described_columns(
    piece: TracedPiece, values: Mapping[str, Any], recorded: Mapping[str, Any]
) -> list[dict[str, Any]]:
    changes, lines = piece.changes, []
    for name in dict.fromkeys([*piece.before, *piece.after]):
        was = name if name in values else name.partition("/")[2]
        before, after = values.get(was), piece.values.get(name)
        what = [kind for kind in changes.get(name, ()) if kind != "values"]
        if "values" in changes.get(name, ()):
            what.append(_changed_values(before, after))
        source = recorded.get(name) if what == ["added"] else None
        if source is not None and source[1] is not None and after is not None:
            changed = _changed_values(source[1].astype(after.dtype), after)
            what += [changed] if changed != "values" else []
        lines.append(
            {
                "name": name,
                "was": name,
                "what": what,
                "before": _described(piece.before.get(name), before),
                "after": _described(piece.after.get(name), after, bool(what)),
                "recorded": None if source is None else _described(*source),
            }
        )
    return lines


def _described(column: TracedColumn | None, rows: Any, changed: bool = False) -> dict[str, Any] | None:
    if column is None:
        return None
    shape = "rows of other shapes" if column.shape is None else list(column.shape)
    line: dict[str, Any] = {"layout": column.layout, "shape": shape, "dtype": column.dtype, "bytes": column.bytes}
    if rows is None or not rows.size:
        return line
    wide = rows.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    line |= {"rows": len(rows), "sampled": column.shape is not None and len(rows) < column.shape[0]}
    line |= {"nan": _short(1 - finite.size / wide.size), "zero": _short((wide == 0).mean())}
    if changed:
        row = rows[0, 0] if rows.ndim > 4 else rows[0]  # of images in sequences, the first image
        picture = _pictures(_frames(row)[:_MOST_CHANNELS]) if row.ndim in (2, 3) else None
        line["values"] = _list(rows)
        line |= {} if picture is None else {"thumb": {"planes": picture[0], "width": picture[1], "height": picture[1]}}
    if finite.size:
        line |= {"min": _short(finite.min()), "mean": _short(finite.mean()), "max": _short(finite.max())}
        low, high = finite.min() / 2, finite.max() / 2  # halves: the span of the largest floats is finite
        bars = np.bincount(
            (((finite / 2 - low) / ((high - low) or 1)) * (_BARS - 1)).round().astype(int), minlength=_BARS
        )
        line["bars"] = (bars / bars.max()).round(2).tolist()
    return line


def _short(value: Any) -> float | None:
    """A number with five digits; None if it is not finite."""
    value = float(value)
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _list(rows: Any, most: int = _VALUES) -> list[float | None]:
    return [_short(value) for value in np.ravel(rows)[:most].tolist()]


# -- cells -----------------------------------------------------------------------------------------


def _by_module(batch: Any, origin: Mapping[Any, RowOrigin]) -> dict[Any, dict[str, Any]]:
    """The columns of each module that has an origin."""
    return {key: batch.get(key, batch) for key in origin}


def leaves_of(columns: Mapping[Any, Any], prefix: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of numbers among columns and their parts, by path."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, column in columns.items():
        rows = column.data if type(column).__name__ == "PackedSequence" else column
        if isinstance(rows, Mapping):
            found |= leaves_of(rows, f"{prefix}{name}/")
        elif isinstance(rows, tuple):
            found |= leaves_of(dict(enumerate(rows)), f"{prefix}{name}/")
        elif hasattr(rows, "detach") and not getattr(rows, "is_nested", False):
            rows = rows.float() if str(rows.dtype) == "torch.bfloat16" else rows  # a type that NumPy has not
            found[f"{prefix}{name}"] = np.asarray(rows.detach().cpu())
        elif isinstance(rows, np.ndarray) and rows.dtype.kind in "biuf":
            found[f"{prefix}{name}"] = rows
    return found


def observation_rows(flat: Mapping[str, Any], axes: int) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Return the observation of each row as one vector, and the names of its entries.

    Args:
        flat: Arrays by path of their column.
        axes: Axes of the rows.
    """
    parts = [name for name in flat if name == Columns.OBS or name.startswith(f"{Columns.OBS}/")]
    rows = [flat[name].reshape(math.prod(flat[name].shape[:axes]), -1) for name in parts]
    names = [f"{n}[{k}]" if r.shape[1] > 1 else n for n, r in zip(parts, rows) for k in range(min(r.shape[1], 17))]
    return (np.concatenate(rows, 1) if rows else np.zeros((0, 0))), names


def _difference(left: Any, right: Any) -> float | None:
    """The largest difference, `NOT_FINITE` if a value is finite on one side alone; None of other shapes."""
    if left.shape != right.shape:
        return None
    left, right = left.astype(np.float64), right.astype(np.float64)
    gaps = np.abs(np.subtract(left, right, where=_differ(left, right), out=np.zeros(left.shape)))
    return _short(np.where(gaps < NOT_FINITE, gaps, NOT_FINITE).max(initial=0.0))


def _frames(rows: Any) -> Any:
    """The frames of images, uint8 [..., height, width] with an axis of channels or none, with that axis before them."""
    has_channels = rows.ndim > 2 and min(rows.shape[-3], rows.shape[-1]) <= _MOST_CHANNELS
    last = has_channels and rows.shape[-1] <= rows.shape[-3]
    return np.moveaxis(rows, -1, -3) if last else rows if has_channels else rows[..., None, :, :]


def _pictures(frames: Any) -> tuple[str, int] | None:
    """Make frames small: base64 of uint8 [frames, side, side], and the side; None if they are no pictures."""
    if frames.dtype != np.uint8 or frames.ndim != 3 or min(frames.shape[1:]) < _LEAST_PIXELS:
        return None
    side = min(_MOST_ENTRIES, *frames.shape[1:])
    at = [np.linspace(0, size - 1, side).astype(int) for size in frames.shape[1:]]
    return b64encode(np.ascontiguousarray(frames[:, at[0]][:, :, at[1]]).tobytes()).decode(), side


class _Grid:
    """The cells of one module's train batch, at most `_MOST_CELLS`.

    Args:
        trace: With origins.
        originals: The trace's chunks as they were before the pipeline ran.
        module_id: The module.
        columns: Its columns.
        shown: Number of a chunk -> its number among those that are shown; chunks of the cells are added.
        notes: Texts; more are added.
    """

    def __init__(
        self,
        trace: PipelineTrace,
        originals: Sequence[Any],
        module_id: Any,
        columns: Any,
        shown: dict[int, int],
        notes: list[str],
    ) -> None:
        origin, flat = trace.origin[module_id], leaves_of(columns)
        self.trace, self.module_id = trace, module_id
        whole = origin.chunk.shape
        rows = min(whole[0], max(1, _MOST_CELLS // max(1, math.prod(whole[1:]))))
        if rows < whole[0]:
            notes.append(f"{module_id}: the cells are the first {rows} of {whole[0]:,} rows of the batch.")
        origin = RowOrigin(origin.chunk[:rows], origin.step[:rows])
        self.whole, self.shape, self.axes, self.flat = whole, origin.chunk.shape, len(whole), flat
        self.by_cell = {
            name: column[:rows]
            for name, column in flat.items()
            if column.shape[: len(whole)] == whole and name.partition("/")[0] not in _PER_SEQUENCE
        }
        numbers, self.at = origin.chunk.ravel(), origin.step.ravel()
        chunks = [None if number < 0 else trace.chunks[number] for number in numbers.tolist()]
        self.chunks = [None if number < 0 else originals[number] for number in numbers.tolist()]
        self.episodes: dict[str, list[Any]] = {}
        for chunk in originals:
            self.episodes.setdefault(chunk.id_, []).append(chunk)
        self.chunk = [shown.setdefault(n, len(shown)) if n >= 0 else -1 for n in numbers.tolist()]
        mask = self.by_cell.get(Columns.LOSS_MASK)
        loss = np.ones(numbers.size, bool) if mask is None else mask.ravel().astype(bool)
        ends = np.array([c is not None and t == len(c) for c, t in zip(chunks, self.at.tolist())], bool)
        self.kind = np.where(numbers < 0, _PADDING, np.where(ends, _BOOTSTRAP, np.where(loss, _LOSS, _NO_LOSS)))
        self.loss_elsewhere = 0 if mask is None else int((loss & ((numbers < 0) | ends)).sum())

    def facts(
        self, acted: Mapping[Any, Any] | None, outputs: Mapping[str, Any], seen: Mapping[str, Any], module: Any
    ) -> dict[str, Any]:
        """See `Inspection.data`, `grids`.

        Args:
            acted: As for `inspect_pipeline`.
            outputs: The module's outputs in training, by name.
            seen: "obs" and "rewards" -> cell -> steps that it sees.
            module: The module of these cells.
        """
        observations, entries = observation_rows(self.by_cell, self.axes)
        narrow = observations.shape[1] <= _MOST_ENTRIES and len(observations) > 0
        columns = {name: _list(observations[:, k], _MOST_CELLS) for k, name in enumerate(entries) if narrow}
        made = {f"forward_train/{name}": rows for name, rows in leaves_of(outputs).items()}
        last_states = {  # of each sequence: they have no rows of steps
            name: rows
            for name, rows in made.items()
            if rows.ndim == self.flat.get(name.replace("forward_train/state_out", "state_in", 1), np.empty(())).ndim
        }
        made = {
            name: rows[: self.shape[0]]
            for name, rows in made.items()
            if rows.shape[: self.axes] == self.whole and name not in last_states
        }
        wide = [name for name, rows in made.items() if math.prod(rows.shape[self.axes :]) > _MOST_OUTPUTS]
        wide += [name for name, rows in self.by_cell.items() if math.prod(rows.shape[self.axes :]) > _MOST_ENTRIES]
        for name, rows in {**self.by_cell, **made}.items():
            if name.partition("/")[0] != Columns.OBS and name not in wide:
                flat = rows.reshape(self.kind.size, -1)
                for k in range(min(flat.shape[1], _MOST_OUTPUTS)):
                    columns[name if flat.shape[1] == 1 else f"{name}[{k}]"] = _list(flat[:, k], _MOST_CELLS)
        pairs = self._pairs(observations, narrow, acted, made.get("forward_train/action_dist_inputs"))
        return {
            "shape": list(self.shape),
            "rows": self.whole[0],
            "chunk": self.chunk,
            "at": self.at.tolist(),
            "kind": self.kind.tolist(),
            "columns": columns,
            "pairs": pairs,
            "entries": entries if narrow else None,
            "seen": {what: self._seen(by_step) for what, by_step in seen.items()},
            "states": self._states(module),
            "others": {
                name: list(rows.shape)
                for name, rows in {**self.flat, **last_states}.items()
                if name in wide or name not in self.by_cell
            },
            "gap": [max((pair[i] for pair in pairs if pair and pair[i] is not None), default=None) for i in (2, 5)],
        }

    def _pairs(self, observations: Any, narrow: bool, acted: Mapping[Any, Any] | None, again: Any) -> list[Any]:
        if acted is None:  # what a data set recorded is of other modules
            return [None] * self.kind.size
        recorded = self.by_cell.get(Columns.ACTION_DIST_INPUTS) if again is not None else None
        pairs: list[Any] = []
        for cell, (kind, chunk) in enumerate(zip(self.kind.tolist(), self.chunks)):
            row = acted.get((chunk.id_, int(chunk.t_started + self.at[cell]))) if chunk is not None else None
            if kind in (_PADDING, _BOOTSTRAP) or (row is None and recorded is None) or not len(observations):
                pairs.append(None)
                continue
            learned = observations[cell]
            left, right = (np.empty(0), np.empty(0))
            if recorded is not None:
                left, right = (rows.reshape(self.kind.size, -1)[cell] for rows in (recorded, again))
            images = None
            shape = self.by_cell[Columns.OBS].shape[self.axes :] if Columns.OBS in self.by_cell else ()
            if not narrow and row is not None and len(shape) > 1 and row.shape == learned.shape:
                both = [_pictures(_frames(side.reshape(shape))) for side in (row, learned)]
                images = [picture[0] for picture in both if picture is not None] if None not in both else None
            pairs.append(
                [
                    _list(row) if narrow and row is not None else None,
                    _list(learned) if narrow else None,
                    None if row is None else _difference(row, learned),
                    _list(left),
                    _list(right),
                    None if recorded is None else _difference(left, right),
                    images,
                ]
            )
        return pairs

    def _seen(self, by_cell: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
        return {str(cell): list(steps) for cell, steps in by_cell.items() if cell < self.kind.size}

    def _states(self, module: Any) -> list[Any]:
        """Of each sequence: the norm of its first state, what it equals, and what it should equal."""
        states = {n: rows for n, rows in self.flat.items() if n.partition("/")[0] == Columns.STATE_IN}
        if not states or len(self.shape) != 2:
            return []
        initial: dict[str, Any] = {}
        if hasattr(module, "get_initial_state") and not state_layout(module).random:
            with preserve_random_state():
                initial = leaves_of({Columns.STATE_IN: map_struct(to_array, initial_state(module))})
        lines: list[Any] = []
        for b in range(self.shape[0]):
            cell, row = b * self.shape[1], {name: rows[b] for name, rows in states.items()}
            norm = math.sqrt(sum(float(np.square(part.astype(np.float64)).sum()) for part in row.values()))
            chunk, at = self.chunks[cell], int(self.at[cell])
            expected, state = ("?", {}) if chunk is None else self._state_before(chunk, at, initial)
            found: Any = "?"
            if _equal_states(row, state):
                found = expected
            elif norm == 0:
                found = "zeros"
            elif chunk is not None and (steps := self._steps_with(row, chunk.id_)):
                found = min(steps, key=lambda step: abs(step - chunk.t_started - at))
            elif _equal_states(row, initial):
                found = None
            lines.append([_short(norm), found, expected])
        return lines

    def _state_before(self, chunk: Any, at: int, initial: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The recorded state from which a chunk's step began: the step that it was recorded after, and its parts."""
        before = chunk.t_started + at - 1
        if before < 0:
            noted = chunk.custom_data.get(Columns.STATE_IN)
            state = initial if noted is None else leaves_of({Columns.STATE_IN: map_struct(to_array, noted)})
            return (None if state else "?"), state
        for other in self.episodes[chunk.id_]:
            first = other.t_started - other.observations.lookback
            if Columns.STATE_OUT in other.extra_model_outputs and first <= before < other.t_started + len(other):
                part = other.get_extra_model_outputs(
                    Columns.STATE_OUT, before - other.t_started, neg_index_as_lookback=True
                )
                return before, leaves_of({Columns.STATE_IN: map_struct(np.asarray, part)})
        return "?", {}

    def _steps_with(self, state: Mapping[str, Any], id_: str) -> set[int]:
        """The steps of an episode after which this state was recorded, equal to the bit."""
        steps: set[int] = set()
        for chunk in self.episodes[id_]:
            parts = _recorded_states(chunk)
            if parts.keys() == state.keys() and all(parts[name].shape[1:] == state[name].shape for name in state):
                equal = [
                    (parts[name].astype(part.dtype) == part).reshape(len(parts[name]), -1).all(1)
                    for name, part in state.items()
                ]
                first = chunk.t_started - chunk.observations.lookback
                steps.update((np.flatnonzero(np.all(equal, 0)) + first).tolist())
        return steps

    # -- findings ----------------------------------------------------------------------------------

    def findings(self, pipeline: Any, states: Sequence[Any]) -> Iterator[tuple[str, bool]]:
        """Yield what is to be read first, and whether it is a warning.

        Args:
            pipeline: The pipeline that made the batch.
            states: As in the facts.
        """
        changed_by = partial(_changed_by, pipeline, self.trace, self.module_id)
        who, own = changed_by(Columns.LOSS_MASK)
        if self.loss_elsewhere:
            text = f"{self.loss_elsewhere} cells that are padding or bootstrap rows carry loss. {who}"
            yield f"{self.module_id}: {text}", True
        steps, hidden = (int(np.isin(self.kind, kinds).sum()) for kinds in ((_LOSS, _NO_LOSS), (_NO_LOSS,)))
        if hidden == steps:
            yield f"{self.module_id}: no step carries loss. {who}", True
        elif hidden:
            yield f"{self.module_id}: {hidden} of {steps} steps carry no loss. {who}", own
        yield from self._findings_of_states(states, changed_by)
        counts = self._counts_of_differing()
        for name, (differing, rows) in counts.items():
            if differing:
                who, _ = changed_by(name, _name_in_episode(name))
                text = f"{name} differ from the recorded ones in {differing} of {rows} rows. {who}"
                yield f"{self.module_id}: {text}", False
        if equal := ", ".join(name for name, (differing, _) in counts.items() if not differing):
            yield f"{self.module_id}: in all rows as they were recorded: {equal}.", False

    def _findings_of_states(self, states: Sequence[Any], changed_by: Any) -> Iterator[tuple[str, bool]]:
        chunks = {id(chunk): chunk for chunk in self.chunks if chunk is not None} if states else {}
        recorded = [_recorded_states(chunk) for chunk in chunks.values()]
        recorded = [parts for parts in recorded if any(len(rows) > 1 for rows in parts.values())]
        still = sum(all((rows == rows[0]).all() for rows in parts.values()) for parts in recorded)
        if still:
            text = f"in {still} of {len(recorded)} chunks the recorded state is the same after every step"
            yield f"{self.module_id}: {text}. Look for a piece that changes {Columns.STATE_OUT!r} while acting.", True
        known = [(b, found, expected) for b, (_, found, expected) in enumerate(states) if expected != "?"]
        wrong = [line for line in known if line[1] != line[2]]
        if not known:
            return
        if not wrong:
            yield f"{self.module_id}: {len(known)} of {len(states)} sequences begin with the recorded state.", False
            return
        (b, found, expected), (who, own) = wrong[0], changed_by(Columns.STATE_IN, _name_in_episode(Columns.STATE_OUT))
        equals = f"equals {_spelled_state(found)}" if found != "?" else "equals no recorded state of this episode"
        yield (
            (
                f"{self.module_id}: {len(wrong)} of {len(states)} sequences begin with another state than the recorded "
                f"one. In row b={b} it {equals}, and should equal {_spelled_state(expected)}. {who}"
            ),
            own or not who,
        )

    def _counts_of_differing(self) -> dict[str, tuple[int, int]]:
        """Of each column that the episodes hold, too: rows that differ from the recorded ones, and all rows."""
        cells_of: dict[int, list[int]] = {}
        for cell in np.flatnonzero(np.isin(self.kind, (_LOSS, _NO_LOSS))).tolist():
            cells_of.setdefault(id(self.chunks[cell]), []).append(cell)
        counts: dict[str, tuple[int, int]] = {}
        for cells in cells_of.values():
            steps = self.at[cells]
            for name, rows in _first_steps(self.chunks[cells[0]], int(steps.max()) + 1).items():
                batch = self.by_cell.get(name)
                if batch is not None and batch.shape[self.axes :] == rows.shape[1:]:
                    left = batch.reshape(self.kind.size, -1)[cells]
                    right = rows[steps].reshape(len(cells), -1).astype(left.dtype)
                    differing, count = counts.get(name, (0, 0))
                    counts[name] = differing + int(_differ(left, right).any(1).sum()), count + len(cells)
        return counts


def _spelled_state(state: Any) -> str:
    return {None: "the initial state", "zeros": "zeros"}.get(state, f"the state recorded after step {state}")


def _differ(left: Any, right: Any) -> Any:
    """Return a mask of the numbers that differ; NaN is like NaN."""
    return (left != right) & ~((left != left) & (right != right))


def _name_in_episode(column: str) -> str:
    """The name that a traced column of the episodes has, of a column of the batch."""
    name, _, part = column.partition("/")
    stored = _STORED.get(name, name)
    return f"episode.{stored}/{part}" if part else f"episode.{stored}"


def _recorded_states(chunk: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The states that were recorded after each step of a chunk, lookback first, by the names of `state_in`."""
    look = chunk.observations.lookback
    if Columns.STATE_OUT not in chunk.extra_model_outputs or not look + len(chunk):
        return {}
    steps = slice(-look, len(chunk))
    rows = chunk.get_extra_model_outputs(Columns.STATE_OUT, steps, neg_index_as_lookback=True)
    return leaves_of({Columns.STATE_IN: rows})


def _equal_states(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(right[n].astype(left[n].dtype), left[n]) for n in left)


def _first_steps(chunk: Any, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """The first steps of a chunk by the names of columns in a batch, of numbers only."""
    columns = {
        Columns.OBS: chunk.get_observations(slice(0, count)),
        Columns.ACTIONS: chunk.get_actions(slice(0, count)),
        Columns.REWARDS: chunk.get_rewards(slice(0, count)),
    }
    for name in chunk.extra_model_outputs:
        columns[name] = chunk.get_extra_model_outputs(name, slice(0, count))
    return {name: rows for name, rows in leaves_of(columns).items() if len(rows) == count}


def _changed_by(pipeline: Any, trace: PipelineTrace, module_id: Any, *columns: str) -> tuple[str, bool]:
    """Say which pieces changed columns: those of the user if there are any, or else built-in ones.

    Returns:
        A sentence, and True if a piece of the user changed one.
    """
    pieces = {step.name: step.piece for step in pipeline.plan().steps}
    writers: dict[bool, dict[str, set[str]]] = {True: {}, False: {}}
    for piece in trace.pieces:
        kind = type(pieces[piece.piece])
        own = _is_own(kind)
        for name, kinds in piece.changes.items():
            leaf = name.removeprefix(f"{module_id}/")
            about = {column for column in columns if leaf == column or leaf.startswith(f"{column}/")}
            if about and not {"layout", "dtype"}.issuperset(kinds):
                writers[own].setdefault(kind.__name__, set()).update(about)
    own = bool(writers[True])
    texts = [
        f"{kind} {'changed' if own else 'made'} {' and '.join(sorted(changed))}."
        for kind, changed in writers[own].items()
    ]
    return " ".join(texts), own


# -- probes ----------------------------------------------------------------------------------------


def _other(leaf: Any) -> Any:
    """Another value of the same type, of a Discrete space too."""
    leaf = np.asarray(leaf)
    if leaf.dtype.kind == "b":
        return ~leaf
    if leaf.dtype == np.uint8 and leaf.ndim > 1:
        return 255 - leaf
    return np.where(leaf > 0, leaf - 1, leaf + 1).astype(leaf.dtype) if leaf.dtype.kind in "iuf" else leaf


def _probed(
    pipeline: Any, episodes: Any, module: Any, trace: PipelineTrace, notes: list[str], call: Mapping[str, Any]
) -> dict[str, Any]:
    """Change one recorded step of all chunks at a time, and compare the batches.

    Returns:
        "obs" and "rewards" -> module id -> cell -> steps of its chunk that it sees.
    """
    seen: dict[str, Any] = {"obs": {}, "rewards": {}}
    cells = sum(origin.chunk.size for origin in trace.origin.values())
    if not cells:
        return seen
    if cells > _MOST_CELLS:
        notes.append(f"No probes of what each cell sees: the batch has {cells:,} cells.")
        return seen
    drawn = None
    if is_draw(episodes):
        lookback = pipeline.lookback_needed if pipeline.lookback_known else MOST_LOOKBACK
        drawn = DrawnProbes(episodes, min(lookback, MOST_LOOKBACK), pipeline.plan().rows_ahead)
        low, high = drawn.low, drawn.high
    else:
        chunks = chunks_of(episodes)
        low, high = -max(_lookback(chunk) for chunk in chunks), max(map(len, chunks))
    if (whole := 2 * high + 1 - low) > _MOST_PROBES:
        high = max(0, (_MOST_PROBES - 1 + low) // 2)
        notes.append(
            f"What cells see is shown for the first {high} steps of each chunk only. To find it, the pipeline was run "
            f"{_MOST_PROBES} times, and not once for each of {whole} steps and rewards."
        )
    base = _watched(trace.batch, trace.origin)
    call = {"batch": {}, "shared_data": {}, **{name: value for name, value in call.items() if value is not None}}
    do = "write __deepcopy__ for it"
    (numbered,) = copied("inspect", pipeline, kept=module, do=do)
    insert_numbering(numbered)

    def changed_cells(what: str, at: int) -> list[tuple[Any, int]]:
        given = episodes if drawn is None else drawn.changed(what, at, _other if what == "obs" else _one_more)
        probe, changed, arguments = copied("inspect", numbered, given, call, kept=module, do=do)
        every = chunks_of(changed) if drawn is None else ()
        for chunk in {id(chunk): chunk for chunk in every}.values():  # a data set may give one several times
            _change(chunk, what, at)
        (numbering,) = (piece for piece in probe.pieces() if isinstance(piece, NumberRows))
        with preserve_random_state():
            batch = probe(rl_module=module, episodes=changed, **arguments)
        cells = []
        for key, columns in _watched(batch, numbering.taken_from(batch)).items():
            now, then = columns[what], base[key][what]
            if now.shape == then.shape:
                cells += [(key, cell) for cell in np.flatnonzero(_differ(now, then).any(-1)).tolist()]
        return cells

    sums = drawn is not None and drawn.sums_rewards
    probes = [("obs", at) for at in range(low, high + 1)] + [("rewards", at) for at in range(0 if sums else high)]
    try:
        if drawn is not None and changed_cells("obs", drawn.high + 1):
            notes.append("No probes of what each cell sees: copies of the drawn rows give another batch.")
            return seen
        for what, at in probes:
            for key, cell in changed_cells(what, at):
                seen[what].setdefault(key, {}).setdefault(cell, []).append(at)
    except Exception as error:
        notes.append(f"A probe of what cells see failed: {type(error).__name__}: {error}")
    return seen


def _one_more(reward: Any) -> Any:
    return reward + 1


def _lookback(chunk: Any) -> int:
    """Steps before a chunk's start that are shown and probed."""
    return min(int(chunk.observations.lookback), MOST_LOOKBACK)


def _change(chunk: Any, what: str, at: int) -> None:
    """Change a chunk's observation or reward of one step, if it has the step."""
    if what == "obs" and -chunk.observations.lookback <= at <= len(chunk):
        new = map_struct(_other, chunk.get_observations(at, neg_index_as_lookback=True))
        chunk.set_observations(new_data=new, at_indices=at, neg_index_as_lookback=True)
    elif what == "rewards" and 0 <= at < len(chunk):
        chunk.set_rewards(new_data=chunk.get_rewards(at) + 1.0, at_indices=at)


def _watched(batch: Any, origin: Mapping[Any, RowOrigin]) -> dict[Any, dict[str, np.ndarray[Any, Any]]]:
    """The observations of all cells of each module, and what their rewards became, as rows of numbers."""
    found = {}
    for key, columns in _by_module(batch, origin).items():
        names, cells = (Columns.OBS, Columns.VALUE_TARGETS, Columns.REWARDS), origin[key].chunk.shape
        flat = leaves_of({name: columns[name] for name in names if name in columns})
        flat = {name: rows for name, rows in flat.items() if rows.shape[: len(cells)] == cells}
        name = Columns.VALUE_TARGETS if Columns.VALUE_TARGETS in flat else Columns.REWARDS
        rewards = flat[name].reshape(math.prod(cells), -1) if name in flat else np.zeros((0, 1))
        found[key] = {"obs": observation_rows(flat, len(cells))[0], "rewards": rewards}
    return found


# -- chunks ----------------------------------------------------------------------------------------


def _originals(chunks: Sequence[Any], episodes: Sequence[Any]) -> list[Any]:
    """The given chunks of which these are copies; a chunk that a piece made stays."""
    given = {}
    for chunk in chunks_of(episodes):
        for key in ((chunk.id_, chunk.t_started), (chunk.id_, chunk.t_started, len(chunk))):
            given[key] = chunk
    found = []
    for chunk in chunks:
        key = chunk.id_, chunk.t_started
        found.append(given.get((*key, len(chunk)), given.get(key, chunk)))
    return found


def _described_chunks(chunks: Sequence[Any], episodes: Sequence[Any], envs: Mapping[Any, int]) -> list[dict[str, Any]]:
    """Describe the chunks that cells are of, as they were given; see `Inspection.data`, `chunks`."""
    drawn = is_draw(episodes)
    parents: dict[Any, tuple[Any, Any]] = {}
    for parent in episodes if not drawn and any(chunk.agent_id is not None for chunk in chunks) else ():
        for segment in getattr(parent, "segments", ()):
            parents[segment.episode.id_, segment.episode.t_started] = parent, segment
    places: list[tuple[Any, int, list[int]]] = []  # what has a place of its own, its environment, times there
    for chunk in chunks:
        parent, segment = parents.get((chunk.id_, chunk.t_started), (chunk, None))
        look, episode = _lookback(chunk), chunk.multi_agent_episode_id or chunk.id_
        if segment is not None:
            times = [int(t) - parent.env_t_started for t in list(segment.steps)[-(len(chunk) + 1 + look) :]]
        else:
            zero = chunk.t_started if drawn else 0
            times = list(range(zero - look, zero + min(len(chunk), _MOST_CELLS) + 1))
        places.append((episode if drawn else id(parent), envs.get(episode, -1), times))
    spans: dict[Any, tuple[int, int]] = {}
    for key, _, times in places:
        low, high = spans.get(key, (times[0], times[-1]))
        spans[key] = min(low, times[0]), max(high, times[-1])
    zeros: dict[Any, int] = {}
    ends: dict[int, int] = {}
    for key, env, _ in places:
        if key not in zeros:
            zeros[key] = ends.get(env, 0) - spans[key][0]
            ends[env] = zeros[key] + spans[key][1] + 3
    lines = []
    for chunk, (key, env, times) in zip(chunks, places):
        look, episode = _lookback(chunk), chunk.multi_agent_episode_id or chunk.id_
        end = "terminated" if chunk.is_terminated else "truncated" if chunk.is_truncated else "cut"
        actions = chunk.get_actions() if len(chunk) else np.empty(0)
        rows, side = _recorded(chunk, look)
        lines.append(
            {
                "id": str(chunk.id_)[:8],
                "episode": str(episode)[:8],
                "name": str(chunk.id_),
                "env": env,
                "agent": None if chunk.agent_id is None else str(chunk.agent_id),
                "module": str(chunk.module_id or DEFAULT_MODULE_ID),
                "t0": int(chunk.t_started),
                "n": min(len(chunk), _MOST_CELLS),
                "steps": len(chunk),
                "look": look,
                "end": end,
                "x": [zeros[key] + t for t in times],
                "rewards": _list(chunk.get_rewards(), _MOST_CELLS) if len(chunk) else [],
                "actions": _list(actions, _MOST_CELLS) if getattr(actions, "ndim", 0) == 1 else None,
                "obs": rows,
                "side": side,
            }
        )
    return lines


def _recorded(chunk: Any, lookback: int) -> tuple[Any, int]:
    """The recorded observations, lookback first: lists of numbers, or pictures and the pixels of a side; or None."""
    rows = chunk.get_observations(slice(-lookback, min(len(chunk), _MOST_CELLS) + 1), neg_index_as_lookback=True)
    if isinstance(rows, np.ndarray):
        pictures = _pictures(rows if rows.ndim == 3 else _frames(rows)[:, -1]) if rows.ndim in (3, 4) else None
        if pictures is not None:
            return pictures
    flat = leaves_of({Columns.OBS: rows})
    numbers = observation_rows(flat, 1)[0]
    if not flat or numbers.shape[1] > _MOST_ENTRIES:
        return None, 0
    return [_list(row) for row in numbers], 0
