"""The facts of how episodes became a batch, as data and as a page."""

from __future__ import annotations

import json
import math
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError
from epibatch.core.files import replace_file
from epibatch.core.runtime import preserve_random_state
from epibatch.core.structs import map_struct

from .._engine.batch_items import single_agent_episode_iterator
from ..pipeline_copies import copied
from .drawings import draw_batch, draw_episodes
from .drawn_probes import DrawnProbes
from .origin import NumberRows, RowOrigin, insert_numbering
from .trace import PipelineTrace, TracedColumn, TracedPiece, trace_pipeline

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2

_KEEP_ROWS, _MOST_CELLS, _MOST_PROBES = 1024, 4096, 64
_MOST_ENTRIES = 16
"""Entries of an observation that are shown as numbers, and pixels on a side of one that is shown as a picture."""
_MOST_OUTPUTS, _MOST_CHANNELS, _LEAST_PIXELS = 8, 4, 4
_VALUES, _BARS, _MOST_LOOKBACK = 32, 12, 16
_PADDING, _LOSS, _BOOTSTRAP, _NO_LOSS = range(4)
_NO_VALUES: Mapping[str, Any] = {}
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
PAGE_DATA = "/*DATA*/null"
"""What the page's template has in the place of the data."""


class Inspection:
    """The facts of how episodes became a batch: plain dicts, lists, numbers and text in `data`.

    Args:
        data: The facts.

    Attributes:
        data: `title`; `facts`: name -> value; `notes`: texts, the most important first; `gap`: the largest difference
            between acting and learning, [of observations, of module outputs], None where it is not known; and

            `parting`, of an algorithm: None, or `acting` and `learning`, the names of the pieces after which the
            observation of a step is no longer the same on both sides (None: not this side), and `text`.

            `flow`: a dict per pipeline. `key`: its name. `pieces`: dicts with `piece`, `kind` (class), `own` (True: not
            built in), `doc`, `us` (microseconds), `error` (text or None) and `columns`: dicts with `name`, `was` (name
            before), `what` (kinds of changes), `before` and `after`. These are None or dicts with `layout`, `shape` (or
            a text), `dtype`, `bytes`, and for numbers `rows` (of which the moments are), `sampled` (True: not all),
            `nan` (share that is not finite), `zero` (share), `min`, `mean`, `max`, `bars` (histogram, highest 1), and
            of a column that the piece changed `values` (the first few).

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
            first state, step after which it was recorded, None (initial) or "?"]. `others`: column that is not
            shown per cell -> shape.
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
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(path), self._page().encode())
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

        Example:
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
        return f"Inspection({pieces} pieces, {len(self.data['chunks'])} chunks, {cells} cells)"


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
    shown: dict[int, int] = {}
    grids = {
        key: _Grid(trace, key, columns, shown, notes).facts(
            acted, made.get(key, {}), {what: found.get(key, {}) for what, found in seen.items()}
        )
        for key, columns in by_module.items()
    }
    gaps = [grid.pop("gap") for grid in grids.values()]
    if trace.error is not None:
        notes.insert(0, f"{trace.pieces[-1].piece} raised {type(trace.error).__name__}: {trace.error}")
    notes += dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    data = {
        "title": title or type(pipeline).__name__,
        "facts": {"chunks": len(trace.chunks), "steps": sum(map(len, trace.chunks))},
        "flow": [lane(pipeline, trace)],
        "chunks": _described_chunks([trace.chunks[i] for i in shown], episodes, envs or {}),
        "grids": grids,
        "notes": notes,
        "gap": [max((gap[i] for gap in gaps if gap[i] is not None), default=None) for i in range(2)],
    }
    return Inspection(data)


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
    lines, values = [], _NO_VALUES
    for traced_piece in trace.pieces:
        kind = type(pieces[traced_piece.piece])
        own = not kind.__module__.startswith("epibatch.")
        lines.append(
            {
                "piece": traced_piece.piece,
                "kind": kind.__name__,
                "own": own,
                "doc": (kind.__doc__ or "").strip().split("\n")[0],
                "us": round(1e6 * traced_piece.seconds, 1),
                "error": None if traced_piece.error is None else str(traced_piece.error),
                "columns": _described_columns(traced_piece, values),
            }
        )
        values = traced_piece.values
    return {"key": key, "pieces": lines}


def _described_columns(piece: TracedPiece, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    changes, lines = piece.changes, []
    for name in dict.fromkeys([*piece.before, *piece.after]):
        was = name if name in values else name.partition("/")[2]
        before, after = values.get(was), piece.values.get(name)
        what = [kind for kind in changes.get(name, ()) if kind != "values"]
        if "values" in changes.get(name, ()):
            same = before is not None and after is not None and before.shape == after.shape
            part = float((before != after).mean()) if same and before is not None else 0.0
            what.append(f"{part:.0%} of the values" if part else "values")
        lines.append(
            {
                "name": name,
                "was": name,
                "what": what,
                "before": _described(piece.before.get(name), before),
                "after": _described(piece.after.get(name), after, bool(what)),
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
    line |= {"values": _list(rows)} if changed else {}
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
    gaps = np.abs(left.astype(np.float64) - right.astype(np.float64)) if left.shape == right.shape else np.empty(0)
    return _short(gaps.max()) if gaps.size else None


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
        module_id: The module.
        columns: Its columns.
        shown: Number of a chunk -> its number among those that are shown; chunks of the cells are added.
        notes: Texts; more are added.
    """

    def __init__(
        self, trace: PipelineTrace, module_id: Any, columns: Any, shown: dict[int, int], notes: list[str]
    ) -> None:
        origin, flat = trace.origin[module_id], leaves_of(columns)
        whole = origin.chunk.shape
        rows = min(whole[0], max(1, _MOST_CELLS // max(1, math.prod(whole[1:]))))
        if rows < whole[0]:
            notes.append(f"{module_id}: the cells are the first {rows} of {whole[0]:,} rows of the batch.")
        origin = RowOrigin(origin.chunk[:rows], origin.step[:rows])
        self.whole, self.shape, self.axes, self.flat = whole, origin.chunk.shape, len(whole), flat
        self.by_cell = {name: column[:rows] for name, column in flat.items() if column.shape[: len(whole)] == whole}
        numbers, self.at = origin.chunk.ravel(), origin.step.ravel()
        self.chunks = [None if number < 0 else trace.chunks[number] for number in numbers.tolist()]
        self.chunk = [shown.setdefault(n, len(shown)) if n >= 0 else -1 for n in numbers.tolist()]
        mask = self.by_cell.get(Columns.LOSS_MASK)
        loss = np.ones(numbers.size, bool) if mask is None else mask.ravel().astype(bool)
        ends = np.array([c is not None and t == len(c) for c, t in zip(self.chunks, self.at.tolist())], bool)
        self.kind = np.where(numbers < 0, _PADDING, np.where(ends, _BOOTSTRAP, np.where(loss, _LOSS, _NO_LOSS)))
        no_steps = int((loss & ((numbers < 0) | ends)).sum())
        if mask is not None and no_steps:
            notes.append(
                f"{module_id}: {no_steps} cells that are padding or bootstrap rows carry loss. "
                f"Look for the piece that changes {Columns.LOSS_MASK!r}."
            )
        if not (self.kind == _LOSS).any():
            notes.append(f"{module_id}: no step carries loss.")

    def facts(
        self, acted: Mapping[Any, Any] | None, outputs: Mapping[str, Any], seen: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Inspection.data`, `grids`.

        Args:
            acted: As for `inspect_pipeline`.
            outputs: The module's outputs in training, by name.
            seen: "obs" and "rewards" -> cell -> steps that it sees.
        """
        observations, entries = observation_rows(self.by_cell, self.axes)
        narrow = observations.shape[1] <= _MOST_ENTRIES and len(observations) > 0
        columns = {name: _list(observations[:, k], _MOST_CELLS) for k, name in enumerate(entries) if narrow}
        made = {f"forward_train/{name}": rows for name, rows in leaves_of(outputs).items()}
        made = {name: rows[: self.shape[0]] for name, rows in made.items() if rows.shape[: self.axes] == self.whole}
        wide = [name for name, rows in made.items() if math.prod(rows.shape[self.axes :]) > _MOST_OUTPUTS]
        wide += [name for name, rows in self.by_cell.items() if math.prod(rows.shape[self.axes :]) > _MOST_ENTRIES]
        for name, rows in {**self.by_cell, **made}.items():
            if name.partition("/")[0] not in (Columns.OBS, Columns.STATE_IN) and name not in wide:
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
            "states": self._states(),
            "others": {
                name: list(rows.shape) for name, rows in self.flat.items() if name in wide or name not in self.by_cell
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
            if not narrow and row is not None and Columns.OBS in self.by_cell and row.shape == learned.shape:
                shape = self.by_cell[Columns.OBS].shape[self.axes :]
                both = [_pictures(_frames(side.reshape(shape))) for side in (row, learned)]
                images = [picture[0] for picture in both if picture is not None] if None not in both else None
            pairs.append(
                [
                    _list(row) if narrow and row is not None else None,
                    _list(learned) if narrow else None,
                    None if row is None else _difference(row, learned),
                    _list(left),
                    _list(right),
                    _difference(left, right),
                    images,
                ]
            )
        return pairs

    def _seen(self, by_cell: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
        return {str(cell): list(steps) for cell, steps in by_cell.items() if cell < self.kind.size}

    def _states(self) -> list[Any]:
        """Of each sequence: the norm of its first state, and the step after which it was recorded."""
        states = {n: rows for n, rows in self.flat.items() if n.partition("/")[0] == Columns.STATE_IN}
        lines: list[Any] = []
        for b in range(self.shape[0] if states and len(self.shape) == 2 else 0):
            first = b * self.shape[1]
            row = {name.partition("/")[2]: rows[b] for name, rows in states.items()}
            norm = math.sqrt(sum(float(np.square(part).sum()) for part in row.values()))
            chunk, before, step = self.chunks[first], int(self.at[first]) - 1, None if norm == 0 else "?"
            known = chunk is not None and Columns.STATE_OUT in chunk.extra_model_outputs
            if norm and known and before >= -chunk.observations.lookback:
                stored = chunk.get_extra_model_outputs(Columns.STATE_OUT, before, neg_index_as_lookback=True)
                parts = leaves_of(stored if isinstance(stored, Mapping) else {"": stored})
                if row.keys() == parts.keys() and all(np.allclose(parts[k], row[k], atol=1e-6) for k in row):
                    step = chunk.t_started + before
            lines.append([_short(norm), step])
        return lines


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
    if _are_drawn(episodes):
        lookback = pipeline.lookback_needed if pipeline.lookback_known else _MOST_LOOKBACK
        drawn = DrawnProbes(episodes, min(lookback, _MOST_LOOKBACK), pipeline.plan().rows_ahead)
        low, high = drawn.low, drawn.high
    else:
        chunks = list(single_agent_episode_iterator(episodes, agents_that_stepped_only=False))
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
        every = () if drawn is not None else single_agent_episode_iterator(changed, agents_that_stepped_only=False)
        for chunk in {id(chunk): chunk for chunk in every}.values():  # a data set may give one several times
            _change(chunk, what, at)
        (numbering,) = (piece for piece in probe.pieces() if isinstance(piece, NumberRows))
        with preserve_random_state():
            batch = probe(rl_module=module, episodes=changed, **arguments)
        cells = []
        for key, columns in _watched(batch, numbering.taken_from(batch)).items():
            now, then = columns[what], base[key][what]
            if now.shape == then.shape:
                differ = ((now != then) & ~(np.isnan(now) & np.isnan(then))).any(-1)
                cells += [(key, cell) for cell in np.flatnonzero(differ).tolist()]
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


def _are_drawn(episodes: Any) -> bool:
    """True if the chunks are tables of rows of a store, as replay and data sets draw them."""
    return hasattr(episodes, "stores") or hasattr(episodes, "by_module")


def _one_more(reward: Any) -> Any:
    return reward + 1


def _lookback(chunk: Any) -> int:
    """Steps before a chunk's start that are shown and probed."""
    return min(int(chunk.observations.lookback), _MOST_LOOKBACK)


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
        flat, cells = leaves_of(columns), origin[key].chunk.shape
        flat = {name: rows.astype(np.float64) for name, rows in flat.items() if rows.shape[: len(cells)] == cells}
        name = Columns.VALUE_TARGETS if Columns.VALUE_TARGETS in flat else Columns.REWARDS
        rewards = flat[name].reshape(math.prod(cells), -1) if name in flat else np.zeros((0, 1))
        found[key] = {"obs": observation_rows(flat, len(cells))[0], "rewards": rewards}
    return found


# -- chunks ----------------------------------------------------------------------------------------


def _described_chunks(chunks: Sequence[Any], episodes: Sequence[Any], envs: Mapping[Any, int]) -> list[dict[str, Any]]:
    """Describe the chunks that cells are of, as they were given; see `Inspection.data`, `chunks`."""
    drawn = _are_drawn(episodes)
    if not drawn:
        every = single_agent_episode_iterator(episodes, agents_that_stepped_only=False)
        given = {(chunk.id_, chunk.t_started): chunk for chunk in every}
        chunks = [given.get((chunk.id_, chunk.t_started), chunk) for chunk in chunks]
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
