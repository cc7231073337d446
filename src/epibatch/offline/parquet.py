"""Parquet files with a row for each step, which pandas, polars and Hugging Face `datasets` read without epibatch.

A row has `eps_id`, `t`, `obs`, `actions`, `rewards`, `terminateds`, `truncateds` and the model outputs. Nested columns
are columns with dots in their names, as `obs.camera` or `obs.0`. Rows of several axes are lists of a fixed length. The
final observation of an episode is a row more, in which only `eps_id`, `t` and `obs` have values; without these rows,
`frame.dropna(subset=["actions"])`, the table has a row for each step. The metadata of the schema has, under the key
`epibatch`, the spaces and the nesting; that of a field has the shape of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError, SpaceError
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.structs import Form, form_of, map_struct, unflatten

from ..episodes import SingleAgentEpisode, columns_to_episodes, episodes_to_columns
from ..episodes.flat_columns import codes_of
from ..episodes.store import Flags
from . import lerobot, minari, rllib
from .foreign import batches_of, dotted_names, files_of, nest, new_target, reading, with_steps
from .tables import arrow, read_tables, renamed, step_columns, table_of, write_tables

_KIND, _KEY = "Parquet files of episodes", "epibatch"
_IN_FINAL_ROWS = (Columns.EPS_ID, Columns.T, Columns.OBS)
_SPACES = ("observation_space", "action_space")


def finds(path: str | Path) -> bool:
    """True for a Parquet file, or a folder with some, that no other format claims."""
    place = Path(path)
    some = place.suffix == ".parquet" if place.is_file() else next(place.rglob("*.parquet"), None) is not None
    return some and not any(other.finds(place) for other in (minari, rllib, lerobot))


def write(episodes: Iterable[Any], path: str | Path) -> None:
    """Write episodes of one agent to a Parquet file, or to a file in a new folder.

    Args:
        episodes: Episodes, or chunks of them; chunks that follow each other are one episode when read.
        path: A path that ends in `.parquet` becomes a file, another one a folder.

    Raises:
        DataError: The path is taken; no episode has a step, or one has several agents; a column has complex numbers
            or rows without a number, or another type than before.
        MissingExtraError: pyarrow is not installed.
        StorageError: the disk is full, say.
    """
    with new_target(path) as temporary:
        file = temporary
        if Path(path).suffix != ".parquet":
            temporary.mkdir()
            file = temporary / "episodes-00000.parquet"
        write_tables(map(_table, batches_of(with_steps(episodes, _KIND))), file)


def _table(episodes: Sequence[Any]) -> Any:
    """Return the steps of episodes, and their final observations, as a table."""
    columns = episodes_to_columns(episodes)
    final_obs = columns.pop(Columns.NEXT_OBS)
    del columns[Columns.INFOS]
    columns = {name: columns[name] for name in (*_IN_FINAL_ROWS, *columns)}
    last = np.array([len(episode) for episode in episodes]).cumsum() - 1
    finals = {
        Columns.EPS_ID: columns[Columns.EPS_ID][last],
        Columns.T: columns[Columns.T][last] + 1,
        Columns.OBS: map_struct(lambda leaf: leaf[last], final_obs),
    }
    forms = {name: form_of(column) for name, column in columns.items()}
    forms = {name: form for name, form in forms.items() if form is not None or "." in name}
    about = {_KEY: json.dumps({"version": 1, "forms": forms, **_spaces(episodes[0])})}
    tables = [table_of(columns, about), table_of(finals, about)]
    steps = np.arange(len(columns[Columns.T]))
    order = np.insert(steps, last + 1, len(steps) + np.arange(len(last)))
    return arrow().concat_tables(tables, promote_options="default").take(order)


def _spaces(episode: SingleAgentEpisode) -> dict[str, Any]:
    found = {}
    for name in _SPACES:
        try:
            found[name] = space_to_dict(getattr(episode, name))
        except SpaceError:  # none, or one that cannot be described
            continue
    return found


def read(
    path: str | Path, *, names: Mapping[str, str | None] | None = None, max_bytes: int | None = None
) -> list[SingleAgentEpisode]:
    """Read Parquet files with a row for each step: ours, or others with columns of known names.

    Args:
        path: A file, or a folder with files of the same columns.
        names: Names of columns, each with the name that it stands for, see `columns_to_episodes`; None leaves one out.
        max_bytes: Bytes that the data may take in memory; default: 1 GiB, or 200 times the files if that is more.

    Raises:
        DataError: No file; a file is damaged, would take more memory, or has other columns than the first one; a value
            is missing; a type that is no number; an episode without its final row, where others have theirs.
        ColumnError: see `columns_to_episodes`.
        MissingExtraError: pyarrow is not installed.
    """
    table = read_tables(files_of(path, (".parquet",), "Parquet files"), max_bytes)
    with reading(path, _KIND):
        table = renamed(table, names or {})
        about = json.loads((table.schema.metadata or {}).get(_KEY.encode(), b"{}"))
        actions = [name for name in table.schema.names if name.partition(".")[0] == Columns.ACTIONS]
        if actions and table.column(actions[0]).null_count:
            columns = _with_final_rows(table, table.column(actions[0]).is_null().to_numpy())
        else:
            columns = step_columns(table)
        nested = {}
        for name, form in about.get("forms", {}).items():
            paths = dotted_names(name, _form(form))
            if paths and columns.keys() >= set(paths):
                nested[name] = unflatten(_form(form), [columns.pop(path) for path in paths])
        episodes = columns_to_episodes({**nest(columns), **nested})
        spaces = [space_from_dict(about[name]) if name in about else None for name in _SPACES]
    for episode in episodes:
        episode.observation_space, episode.action_space = spaces
    return episodes


def _with_final_rows(table: Any, final: Flags) -> dict[str, Any]:
    """Return the columns of a table in the order of its episodes; those of observations with the final ones."""
    if missing := [name for name in (Columns.EPS_ID, Columns.T) if name not in table.schema.names]:
        do = "fill in the actions, or add eps_id and t"
        expected, found = "eps_id and t, as rows without actions are final observations", f"no {missing[0]}"
        raise DataError("columns of the table", expected=expected, found=found, do=do)
    keys = step_columns(table.select([Columns.EPS_ID, Columns.T]))
    codes, ids = codes_of(keys[Columns.EPS_ID])
    order = np.lexsort((~final, keys[Columns.T], codes))
    codes, t, final = codes[order], keys[Columns.T][order], final[order]
    follows = codes[1:] == codes[:-1]
    lacking = ~final & ~np.append(follows, False)
    if lacking.any():
        episode, do = ids[int(codes[lacking.argmax()])], "add the row, or remove those of the other episodes"
        found = "none, where other episodes have one"
        raise DataError(f"episode {episode}", expected="a row with the final observation", found=found, do=do)
    twice = final & np.append(follows & (t[1:] == t[:-1]), False)  # the first row of the next chunk has it too
    order, final = order[~twice], final[~twice]
    if len(order) < table.num_rows or (order[1:] < order[:-1]).any():
        table = table.take(order)
    names = [name for name in table.schema.names if name.partition(".")[0] == Columns.OBS]
    return {**step_columns(table, ~final), **step_columns(table.select(names))}


def _form(form: Any) -> Form:
    """Return a form that was text: lists are tuples."""
    return None if form is None else (form[0], tuple(form[1]), tuple(map(_form, form[2])))
