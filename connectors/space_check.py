"""Compares the first real batch of a pipeline with the spaces that its pieces say their columns have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchError, SpaceError, explain

from ..episodes.column_parts import ColumnParts
from .call import Call
from .column_spaces import KnownColumns, retyped, space_like, start_of
from .episode_column import EpisodeColumn
from .gather import gather_column, latest_observations
from .plan import Step

if TYPE_CHECKING:
    from .agent_call import AgentCall
    from .connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["SpaceCheck"]

_STORED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_HELD_TO_SPACES = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)
_NO_TIME_AXIS = (Columns.STATE_IN, Columns.NEXT_STATE_IN, Columns.STATE_OUT, Columns.SEQ_LENS)
_MODULE_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Rows(NamedTuple):
    """What one row of an array is like."""

    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class SpaceCheck:
    """Goes along with one call of a pipeline.

    What a piece gives is compared with what it says of what it really got, so a difference is the piece's own: types
    of what the environment and the module gave are taken as they are. Where nothing is declared nothing is compared.

    Args:
        pipeline: Whose call it is.
        call: The call.

    Attributes:
        done: Whether there are rows to compare, so that later calls need no check.
    """

    def __init__(self, pipeline: ConnectorPipelineV2, batch: Any, call: Call | AgentCall) -> None:
        some = call.training is False or call.grouped or bool(call.lengths.any())
        self.done = some and bool(len(call.episodes))
        self._training = call.training is not False
        self._back = pipeline.start_layout == "tensors"
        self._known: dict[Any, KnownColumns] = {}
        self._there: dict[Any, set[str]] = {}
        observations, actions = pipeline.input_observation_space, pipeline.input_action_space
        if self._back:
            actions = getattr(call.rl_module, "action_space", None)
        timed = any(step.piece.time_axis is not None for step in pipeline.plan().steps)
        if call.grouped and not self._back and not batch:
            for group, own in call.groups.items():
                entry = call.entry(own)
                spaces = _entry(observations, entry), _entry(actions, entry)
                self._known[group] = _as_stored(start_of(pipeline, spaces, timed and own.stateful), own)
        elif not call.grouped and len(call.episodes) and not (self._back and _axes_unknown(call)):
            known = start_of(pipeline, (observations, actions), (timed or self._back) and call.stateful)
            self._known[None], self._there[None] = _as_stored(known, call), set(batch)

    def stepped(self, step: Step, batch: Any, call: Call | AgentCall) -> None:
        """Compare what a piece left.

        Args:
            step: The piece.
            batch: What it left; columns by module in a call about several agents.
            call: The running call.

        Raises:
            SpaceError: rows are of another shape, nesting or type than the piece says.
        """
        if not self._known:
            return
        if not call.grouped:
            self._known[None] = self._compared(step, None, batch, None)
            return
        if not step.columnar:  # columns by key: nothing is known of them any more
            self._known = {}
            return
        if step.piece.maps_agents:
            self._map(call)
        for group, own in call.groups.items():
            if group in self._known and group in batch.groups:
                self._known[group] = self._compared(step, group, batch.groups[group], call.entry(own))

    def _map(self, call: AgentCall) -> None:
        """From groups of agents to modules: what several groups of a module know differently is unknown."""
        before, there = self._known, self._there
        self._known, self._there = {}, {}
        for group in call.groups:
            parts = [key for key in before if (key[0] if isinstance(key, tuple) else key) == group]
            if len(parts) == 1:
                self._known[group], self._there[group] = before[parts[0]], there.get(parts[0], set())

    def _compared(self, step: Step, group: Any, batch: Any, entry: Any) -> KnownColumns:
        known, there = self._known[group], self._there.get(group, set())
        self._there[group] = set(batch)
        unknown = there - known.columns.keys()  # somebody's, who did not say what they are
        known.episodes = {name: space for name, space in known.episodes.items() if name not in unknown}
        if step.piece.tries_spaces:
            return self._told_by_rows(step, known, batch)
        try:
            behind = known.behind(step.piece, entry)
        except Exception:  # a space that the piece makes nothing of: that is said where spaces are asked for
            return KnownColumns({}, {}, known.stateful, step.piece.gives or known.layout, known.timed)
        if step.piece.time_axis and Columns.STATE_IN in there:
            behind.timed = known.timed
        for name in unknown & behind.columns.keys():
            del behind.columns[name]
        if not step.columnar or (self._back and behind.timed):
            return behind
        for name in list(behind.columns):
            rows = _rows_of(name, batch.get(name), behind)
            if rows is None:
                continue
            space = self._settled(step, name, rows, known, behind)
            if space is None:
                del behind.columns[name]
            else:
                behind.columns[name] = space
        return behind

    def _told_by_rows(self, step: Step, known: KnownColumns, batch: Any) -> KnownColumns:
        """What is known behind a piece that tried itself on samples already: the observation space, and what is there.

        It is not tried once more: whoever wrote it may count, print or draw in it.
        """
        behind = KnownColumns(dict(known.columns), known.episodes, known.stateful, known.layout, known.timed)
        for name in step.piece.writes:
            before = known.columns.get(name, known.episodes.get(name))
            space = step.piece.observation_space if name == Columns.OBS else None
            behind.columns.pop(name, None)
            rows = _rows_of(name, batch.get(name), behind)
            if rows is None:
                continue
            wanted = None if space is None else _leaves_of(space)
            if wanted is not None and before is step.piece.input_observation_space and rows != wanted:
                raise _mismatch(step, name, wanted, rows, "tried")
            if space is not None and wanted == rows:
                behind.columns[name] = space
                continue
            like = space_like(*rows[""]) if "" in rows else None
            if like is not None:
                behind.columns[name] = like
        return behind

    def _alike(self, known: KnownColumns) -> Callable[[Any, Any], bool]:
        """How types are compared: those of tensors are the module's choice, within floats and within integers."""
        if self._back:
            return _equal_on_the_way_back
        return _equal if known.layout == "episodes" else _equal_in_tensors

    def _settled(self, step: Step, name: str, rows: Any, known: KnownColumns, behind: KnownColumns) -> Any:
        """The space of a column, in the types that were found; None if it is not known."""
        space = behind.columns[name]
        wanted = _leaves_of(space)
        if wanted is None:
            return None
        fits = rows.keys() == wanted.keys() and all(rows[path].shape == wanted[path].shape for path in wanted)
        alike = self._alike(behind)
        if fits and all(alike(rows[path].dtype, wanted[path].dtype) for path in wanted):
            return space
        if space is known.columns.get(name):
            if name in step.piece.writes:
                return None
            raise _mismatch(step, name, wanted, rows, "kept")
        if not _is_in(space, [*known.columns.values(), *behind.episodes.values(), step.piece.input_action_space]):
            raise _mismatch(step, name, wanted, rows, "piece")
        if fits:
            return retyped(space, rows[""].dtype) if "" in rows else None
        if self._training or name not in _HELD_TO_SPACES:
            return None
        raise _mismatch(step, name, wanted, rows, "given")


def _axes_unknown(call: Call) -> bool:
    """Whether nobody said that a recurrent module was given a time axis, in a loop without `shared_data`, say."""
    return call.stateful and not call.shared_data.get("_added_single_ts_time_rank")


def _equal(found: Any, wanted: Any) -> bool:
    return bool(found == wanted)


def _equal_in_tensors(found: Any, wanted: Any) -> bool:
    return found == wanted or (found in _MODULE_FLOATS and wanted in _MODULE_FLOATS)


def _equal_on_the_way_back(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) or any(found.kind in kinds and wanted.kind in kinds for kinds in ("f", "iu"))


def _is_in(space: Any, spaces: Any) -> bool:
    return any(space is own for own in spaces)


def _entry(space: Any, key: Any) -> Any:
    return space.spaces.get(key) if isinstance(space, gym.spaces.Dict) else None


def _mismatch(step: Step, name: str, wanted: Any, rows: Any, source: str) -> SpaceError:
    """The error.

    Args:
        step: The piece.
        name: The column.
        wanted: What its rows should be like, by path.
        rows: What they are like.
        source: Who says so: "piece", "tried" (on samples), "given" (the pipeline's spaces), or "kept" (it is not
            said to be written).
    """
    piece = type(step.piece).__name__
    path = next(path for path in {**wanted, **rows} if wanted.get(path) != rows.get(path))
    nothing = "no such part"
    says = {
        "tried": f"{piece} made of samples of the observation space",
        "piece": f"{piece} says (recompute_column_spaces, by default from output_space or the observation space)",
        "given": "the spaces that the pipeline was given say",
        "kept": "in front of the piece, which does not say that it writes the column",
    }
    do = {
        "tried": f"let {piece}.transform give one shape and type whatever the values, or write output_space",
        "piece": f"let {piece} say what it gives, or give what it says",
        "given": "give the pipeline the spaces of these episodes: of one environment, as pieces in front leave them",
        "kept": f"add {name!r} to its `writes`, and say in recompute_column_spaces what it makes of it",
    }
    return SpaceError(
        explain(
            f"column {(name + path)!r}",
            expected=f"rows {wanted.get(path, nothing)}, as {says[source]}",
            found=f"rows {rows.get(path, nothing)}",
            do=do[source],
        )
    )


# -- what rows are like ------------------------------------------------------------------------------


def _leaves_of(space: Any, path: str = "") -> dict[str, Rows] | None:
    """The leaves of a space by path; None if rows of it are no arrays of one shape."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        found: dict[str, Rows] = {}
        for key, part in parts:
            own = _leaves_of(part, f"{path}/{key}")
            if own is None:
                return None
            found.update(own)
        return found
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return None
    return {path: Rows(tuple(space.shape or ()), np.dtype(space.dtype))}


def _rows_of(name: str, column: Any, known: KnownColumns) -> dict[str, Rows] | None:
    """What rows of a column are like, by path; None if it has none, or they are no arrays of one shape."""
    axes = 2 if known.timed and name not in _NO_TIME_AXIS else 1
    if isinstance(column, EpisodeColumn):
        if column.holds_objects:
            return None
        parts = column.parts
        if parts is not None and not isinstance(parts, ColumnParts):
            return None  # rows that are put together only later
        if parts is not None:
            return None if axes != 1 else _of_lazy(parts)
        column = column.data  # arrays already
    elif column is None or isinstance(column, list):
        return None
    return _of_struct(column, axes)


def _of_struct(struct: Any, axes: int) -> dict[str, Rows] | None:
    """Rows of each leaf of nested arrays or tensors."""
    rows = {path: _of_leaf(leaf, axes) for path, leaf in _named_leaves(struct)}
    found = {path: own for path, own in rows.items() if own is not None}
    return found if rows and len(found) == len(rows) else None


def _named_leaves(struct: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(struct, (dict, tuple)):
        for key, part in struct.items() if isinstance(struct, dict) else enumerate(struct):
            yield from _named_leaves(part, f"{path}/{key}")
    else:
        yield path, struct


def _paths_of_form(form: Any, path: str = "") -> list[str]:
    if form is None:
        return [path]
    keys = form[1] if form[0] == "dict" else range(len(form[2]))
    return [one for key, part in zip(keys, form[2]) for one in _paths_of_form(part, f"{path}/{key}")]


def _of_parts(parts: Any) -> Rows | None:
    filled = [part for part in parts if len(part)]
    if not filled or any(part.dtype.hasobject for part in filled):
        return None
    return Rows(filled[0].shape[1:], np.result_type(*{part.dtype for part in filled}))


def _of_leaf(leaf: Any, axes: int) -> Rows | None:
    shape = getattr(leaf, "shape", None)
    if shape is None or len(shape) < axes or 0 in shape[:axes]:
        return None
    try:
        dtype = leaf.dtype if isinstance(leaf, np.ndarray) else np.dtype(str(leaf.dtype).removeprefix("torch."))
    except TypeError:  # bfloat16, which NumPy has not
        return None
    return None if dtype.hasobject else Rows(tuple(shape[axes:]), dtype)


def _as_stored(known: KnownColumns, call: Call) -> KnownColumns:
    """The same with the types in which the episodes hold their columns; what they do not hold like that is unknown."""
    for name in _STORED:
        space = known.episodes.get(name)
        wanted = None if space is None else _leaves_of(space)
        if wanted is None:
            continue
        try:
            rows = _stored_rows(call, name)
        except EpibatchError:  # which the piece that takes them will say
            rows = None
        if rows is None or rows == wanted:
            continue
        same = rows.keys() == wanted.keys() and all(rows[path].shape == wanted[path].shape for path in wanted)
        if same:
            other = retyped(space, rows[""].dtype) if "" in rows else None
            if other is None:
                del known.episodes[name]
            else:
                known.episodes[name] = other
        elif name not in _HELD_TO_SPACES:
            del known.episodes[name]
    return known


def _stored_rows(call: Call, name: str) -> dict[str, Rows] | None:
    """What rows of a column of the episodes are like, by path."""
    vector = call.vector
    if call.training is False:
        return _of_struct(latest_observations(call), 1) if name == Columns.OBS else None
    if vector is not None:
        form, leaves, _ = vector.rows_of(name, [(0, min(1, length)) for length in call.lengths.tolist()])
        return _of_leaves(form, leaves)
    parts = gather_column(call, name).parts
    return _of_lazy(parts) if isinstance(parts, ColumnParts) else None


def _of_lazy(parts: ColumnParts) -> dict[str, Rows] | None:
    rows = [Rows(*own) for own in parts.rows_are_like()]
    return dict(zip(_paths_of_form(parts.form), rows)) if rows else None


def _of_leaves(form: Any, leaves: Any) -> dict[str, Rows] | None:
    """Rows of each leaf, of which each chunk has an array."""
    rows = [_of_parts(parts) for parts in leaves]
    return None if None in rows or not rows else dict(zip(_paths_of_form(form), rows))  # type: ignore[arg-type]
