"""The rows that views read: in each chunk's part of an episode, or in the block of a recorder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from epibatch.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from epibatch.core.columns import Columns, canonical_column, nearest_column
from epibatch.core.errors import ColumnError, ConfigError, EpibatchWarning, UnknownNameError, nearest
from epibatch.core.rl_module.module_facts import initial_state, to_array
from epibatch.core.spaces import fill_row
from epibatch.core.structs import Form, flatten, map_struct, paths_of, unflatten

from ...episodes.chunk_table import ChunkTable
from ...episodes.rows import Rows, Windows
from ...episodes.vector_episodes import env_numbers
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.windows import check_window, window
from .view import IDS, View

_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
_MADE = (Columns.T, Columns.INFOS, *_FLAGS)
_NAMES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS, Columns.T, *_FLAGS, *IDS)


def windows_of(group: ChunkGroup, view: View, where: str, space: Any, *, newest: bool, text: bool = False) -> Windows:
    """The values of a view for rows of a batch, which lie in the episodes until they are joined.

    Args:
        group: The chunks.
        view: What is asked for; its column is known.
        where: For messages.
        space: Space of one row of the column, for columns that have none yet; or None.
        newest: True if the batch has the newest observation of each chunk, False if it has all steps.
        text: Whether entries of infos may be strings.

    Raises:
        LookbackError: a chunk has lost history that existed.
        UnknownNameError: no such column.
        ColumnError: rows of several shapes, or that are no numbers.
        ConfigError: nothing says what rows are like.
    """
    name, shifts = view.base, view.shifts
    if name not in _MADE:
        check_column(group, name, where)
        rows, batch = window(group, name, shifts, where, newest=newest)
        if rows.num_leaves:
            rows = _shown(rows, view, where)
        else:
            form, like = blank_rows(group, view, where, space)
            rows = Rows(form, [[leaf] * len(rows.counts) for leaf in like], np.zeros_like(rows.counts), rows.firsts)
        return Windows(rows, batch, shifts, single=view.is_single, fill=view.fill, where=where)
    counts = None if newest else group.counts
    check_window(group, name, min(shifts), counts, where)
    starts, firsts, stops, complete = group.reader.bounds(name, min(shifts), max(shifts), counts)
    spans = list(zip(firsts.tolist(), stops.tolist()))
    real: list[Any] | None = None
    if name == Columns.T:
        started = group.reader.starts.tolist()
        parts = [[np.arange(t + first, t + stop) for t, (first, stop) in zip(started, spans)]]
    elif name in _FLAGS:
        parts = [_flags(group, _FLAGS.index(name), spans)]
    else:
        entries, real = _entries(group, view, spans, where, text)
        parts = [entries]
    if not text:
        _check_numbers(parts[0], where)
    rows = Rows(None, parts, stops - firsts, firsts)
    batch = starts, counts, complete
    return Windows(rows, batch, shifts, single=view.is_single, fill=view.fill, where=where, real=real)


def _shown(rows: Rows, view: View, where: str) -> Rows:
    """The part of a column that a view shows. Whole rewards are float64.

    Before the first reward a view shows float64 as well, so that a network gets one type at every step. A view with a
    space shows what the episodes hold.

    Raises:
        ColumnError: the rows differ in shape, or are no numbers.
    """
    form, picked = leaf_of(rows.form, view, where)
    rows = rows.part(form, picked, as_float64=view.base == Columns.REWARDS and view.space is None)
    for i, parts in enumerate([] if rows.sound else rows.parts):
        _check_numbers([*parts, *(tail[i] for tail in rows.tails.values())], where)
    rows.check()
    return rows


def _check_numbers(arrays: list[Any], where: str) -> None:
    kinds = dict.fromkeys((array.dtype, array.shape[1:]) for array in arrays if len(array))
    if len({shape for _, shape in kinds}) > 1 or any(dtype.kind not in "biufc" for dtype, _ in kinds):
        raise _no_numbers(where, " and ".join(f"{dtype} of shape {shape}" for dtype, shape in kinds))


def check_column(group: ChunkGroup, name: str, where: str) -> None:
    """Make sure that all chunks that hold steps have a column.

    Raises:
        UnknownNameError: one has not.
    """
    reader = group.reader
    for chunk in np.flatnonzero(~reader.holds(name)).tolist():
        if reader.lengths[chunk] + reader.lookbacks[chunk]:
            raise UnknownNameError(
                f"{where}, {group.describe(chunk)}",
                expected="a column of the episodes",
                found=repr(name),
                do=nearest_column(name, [*_NAMES, *group.episodes[chunk].extra_model_outputs]),
            )


def check_infos(group: ChunkGroup, where: str) -> None:
    """Make sure that the infos of the chunks were kept.

    Raises:
        ColumnError: they were drawn from a buffer, or come from a data set, without infos.
    """
    if isinstance(group.episodes, ChunkTable) and not group.episodes.has_infos:
        raise ColumnError(
            where,
            expected="episodes with infos",
            found="drawn steps whose infos were not kept",
            do="set training(replay_buffer_config={'keep_infos': True}), or record data with their infos",
        )


def _flags(group: ChunkGroup, kind: int, spans: list[tuple[int, int]]) -> list[Any]:
    """False for all steps but the last one of a chunk that ended with it."""
    ends, lengths = group.reader.ends[kind].tolist(), group.lengths.tolist()
    out = []
    for ended, length, (first, stop) in zip(ends, lengths, spans):
        rows = np.zeros(stop - first, np.bool_)
        if ended and first < length <= stop:
            rows[length - 1 - first] = True
        out.append(rows)
    return out


def _entries(
    group: ChunkGroup, view: View, spans: list[tuple[int, int]], where: str, text: bool
) -> tuple[list[Any], list[Any]]:
    """One entry of each info dict, float64, the fill value where the dict has none; and which dicts have it."""
    path = (view.column or "").partition("/")[2]
    check_infos(group, where)
    infos = [
        episode.infos.get(slice(first, stop), neg_index_as_lookback=True) if stop > first else []
        for episode, (first, stop) in zip(group.plain_episodes(), spans)
    ]
    chunk_values = [[_entry(info, path) for info in chunk] for chunk in infos]
    masks = [np.array([value is not None for value in values], np.bool_) for values in chunk_values]
    first_value = next((value for values in chunk_values for value in values if value is not None), None)
    if first_value is None:
        _warn_if_misspelt(path, [info for chunk in infos for info in chunk], where)
    like = fill_row(view.space, 0) if first_value is None and view.space is not None else first_value
    if text and isinstance(first_value, str):
        texts = [["" if value is None else value for value in values] for values in chunk_values]
        return [np.array(values, object) for values in texts], masks
    missing = 0 if view.fill is None else view.fill
    try:
        blank = np.full(() if like is None else np.shape(like), missing)
        rows = [np.array([blank if value is None else value for value in values]) for values in chunk_values]
    except ValueError:  # lists of several lengths
        rows = [np.empty(1, object)]
    if any(len(array) and array.dtype.kind not in "biufc" for array in rows):
        entries = [value for values in chunk_values for value in values if value is not None]
        raise _no_numbers(where, f"entries {entries[:2]} of infos")
    return [(array if len(array) else blank[None][:0]).astype(np.float64) for array in rows], masks


def _warn_if_misspelt(path: str, infos: list[Any], where: str) -> None:
    """Warn if every info dict has an entry that is called nearly so, and none has this one."""
    if not infos or not all(isinstance(info, dict) and info for info in infos):
        return
    shared = [key for key in infos[0] if isinstance(key, str) and all(key in info for info in infos)]
    close = get_close_matches(path, shared, n=1, cutoff=0.75)
    if close:
        warning = EpibatchWarning(
            where,
            expected=f"an entry {path!r} in some info dict",
            found=f"{', '.join(shared)} in all of them, so the column is its fill value everywhere",
            do=f'write "infos/{close[0]}" if you mean that',
        )
        warnings.warn(warning, stacklevel=2)


def _entry(info: Any, path: str) -> Any:
    for key in path.split("/"):
        info = info.get(key) if isinstance(info, dict) else None
    return info


def _no_numbers(where: str, found: str) -> ColumnError:
    do = "give them one shape in the environment or with an earlier piece, or view one leaf of them (obs/position)"
    return ColumnError(where, expected="numbers of one shape at every step", found=found, do=do)


def leaf_of(form: Form, view: View, where: str) -> tuple[Form, list[int]]:
    """The form of what a view shows of a column, and which of the column's leaves that are.

    Raises:
        UnknownNameError: "obs/camera" of a column without a leaf of that name.
    """
    part = unflatten(form, list(range(len(paths_of(form)))))
    path = "" if view.base == Columns.INFOS else (view.column or "").partition("/")[2]
    for key in path.split("/") if path else ():
        keys = list(part) if isinstance(part, dict) else list(range(len(part))) if isinstance(part, tuple) else []
        places = {str(name): name for name in keys}
        if key not in places:
            do = nearest(key, places) if places else "leave the path out: the column is not nested here"
            raise UnknownNameError(where, expected=f"a part of {view.base!r}", found=repr(key), do=do)
        part = part[places[key]]
    picked, part_form = flatten(part)
    return part_form, picked


def blank_rows(group: ChunkGroup, view: View, where: str, space: Any) -> tuple[Form, list[Any]]:
    """Form and leaves without rows, of a column that nothing was recorded of.

    Raises:
        ConfigError: nothing says what its rows are like.
    """
    if view.space is not None:
        row = fill_row(view.space, 0)
    elif view.base == Columns.REWARDS or view.base == Columns.INFOS:
        row = np.float64(0)
    elif space is not None:
        row = fill_row(space, 0)
    elif view.base == Columns.STATE_OUT and group.rl_module is not None:
        row = map_struct(to_array, initial_state(group.rl_module))
    else:
        name = canonical_column(view.base)
        close = name if name in _NAMES else next(iter(get_close_matches(view.base, _NAMES, n=1)), None)
        hint = f"write {close!r} if you mean that; for a model output " if close else ""
        raise ConfigError(
            where,
            expected=f"the space of {view.column!r}: nothing was recorded yet that shows what it is like",
            found="none",
            do=f"{hint}View({view.column!r}, shift={view.shift!r}, space=gymnasium.spaces.Box(...))",
        )
    leaves, form = flatten(row)
    if view.space is None:
        form, picked = leaf_of(form, view, where)
        leaves = [leaves[i] for i in picked]
    return form, [np.asarray(leaf)[None][:0] for leaf in leaves]


def id_rows(group: ChunkGroup, column: str, counts: Sequence[int], where: str) -> Any:
    """Names, one per row: a list, or an array if they are ints.

    Raises:
        ColumnError: nothing says which environment or agent a chunk is of.
    """
    names = _IDS[column](group)
    if None in names:
        raise ColumnError(
            f"{where}, {group.describe(names.index(None))}",
            expected=f"chunks that know their {column!r}",
            found="one that does not: a runner of one agent records environments, an episode of several its agents",
            do=f"leave {column!r} out; 'eps_id' names the episode",
        )
    rows = [name for name, count in zip(names, counts) for _ in range(count)]
    return np.array(rows, np.int64) if all(type(name) is int for name in names) else [str(name) for name in rows]


def _agent_indices(group: ChunkGroup) -> list[Any]:
    if not group.several:
        return [0] * len(group.episodes)
    owners, episodes = group.call.chunks.owners, group.call.episodes
    orders = [list(getattr(episodes[owners[at]], "records", ())) for at in group.at.tolist()]
    agents = [episode.agent_id for episode in group.episodes]
    return [order.index(agent) if agent in order else None for order, agent in zip(orders, agents)]


_IDS: dict[str, Callable[[ChunkGroup], list[Any]]] = {
    Columns.EPS_ID: lambda group: [
        episode.id_ if episode.multi_agent_episode_id is None else episode.multi_agent_episode_id
        for episode in group.episodes
    ],
    Columns.AGENT_ID: lambda group: [
        DEFAULT_AGENT_ID if episode.agent_id is None else episode.agent_id for episode in group.episodes
    ],
    Columns.MODULE_ID: lambda group: [
        DEFAULT_MODULE_ID if episode.module_id is None else episode.module_id for episode in group.episodes
    ],
    Columns.ENV_INDEX: lambda group: env_numbers(group.episodes),
    Columns.AGENT_INDEX: _agent_indices,
}


def made_column(group: ChunkGroup, column: str, where: str) -> EpisodeColumn | None:
    """Return a column that is read from no rows: a step's number, an entry of infos, a name; None if it is none.

    Args:
        group: The chunks.
        column: Its name.
        where: For messages.

    Raises:
        ColumnError: entries of infos that are no numbers; or what `id_rows` refuses.
    """
    counts = group.counts if group.of_steps else np.ones(len(group.episodes), np.int64)
    if column in IDS:
        return EpisodeColumn(id_rows(group, column, counts.tolist(), where), counts, item_per_row=True)
    if column != Columns.T and not column.startswith(f"{Columns.INFOS}/"):
        return None
    rows = windows_of(group, View(column), where, None, newest=not group.of_steps, text=True)
    return EpisodeColumn(rows if group.of_steps else rows.joined(), group.counts if group.of_steps else None)
