"""Tables of LeRobot's data sets, version 3: states, actions and rewards. Videos and images are not read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError, EpibatchWarning, NotAvailableError
from epibatch.core.files import refuse_links

from ..episodes import SingleAgentEpisode, columns_to_episodes
from .foreign import files_of, nest, read_json, reading
from .tables import read_tables, renamed, step_columns

_KIND, _ABOUT = "a data set of LeRobot, version 3", Path("meta", "info.json")
_NAMES = {"frame_index": Columns.T, "next.reward": Columns.REWARDS, "next.done": Columns.TERMINATEDS}
_LEFT_OUT = ("timestamp", "index")


def finds(path: str | Path) -> bool:
    """True for a folder with `meta/info.json`."""
    return (Path(path) / _ABOUT).is_file()


def read(
    path: str | Path, *, names: Mapping[str, str | None] | None = None, max_bytes: int | None = None
) -> list[SingleAgentEpisode]:
    """Read the tables of a data set of LeRobot.

    Observations are `observation.state`, or a dict if there are several. Without rewards they are 0. An episode ends
    with its last step: terminated if `next.done` says so, else truncated. LeRobot has no final observations, so the
    last one is a placeholder.

    Args:
        path: The folder.
        names: Names of columns, see `columns_to_episodes`.
        max_bytes: See `epibatch.offline.parquet.read`.

    Raises:
        DataError: No such data set, or of another version; a file is damaged or missing, or takes too much memory.
        CheckpointError: A link is in the folder.
        ColumnError: see `columns_to_episodes`.
        MissingExtraError: pyarrow is not installed.

    Warns:
        EpibatchWarning: Videos or images are left out.
    """
    place = Path(path)
    refuse_links(place)
    files = files_of(place / "data", (".parquet",), "tables of LeRobot")
    with reading(place, _KIND):
        about = read_json(place / _ABOUT)
        if not str(about["codebase_version"]).startswith("v3"):
            do = "convert it with LeRobot's convert_dataset_v21_to_v30"
            raise DataError(str(place / _ABOUT), expected="version 3", found=about["codebase_version"], do=do)
        seen = [name for name, feature in about["features"].items() if feature["dtype"] in ("video", "image")]
    if seen:
        found, do = ", ".join(seen), "decode them with LeRobot if you need them"
        warnings.warn(EpibatchWarning(str(place), expected="tables", found=found, do=do), stacklevel=2)
    table = read_tables(files, max_bytes)
    with reading(place, _KIND):
        if table.num_rows != about["total_frames"]:
            do, found = "copy all files of the data set", f"{table.num_rows}"
            raise DataError(str(place / "data"), expected=f"{about['total_frames']} rows", found=found, do=do)
        given = {**_NAMES, **dict.fromkeys((*_LEFT_OUT, *seen)), **(names or {})}
        present = {
            name: target for name, target in given.items() if name in table.schema.names or name in (names or {})
        }
        columns = nest(step_columns(renamed(table, present)))
        observation = columns.get("observation")
        if isinstance(observation, dict) and len(observation) == 1:
            (columns["observation"],) = observation.values()
        columns.setdefault(Columns.REWARDS, np.zeros(table.num_rows, np.float32))
        last = np.append(np.diff(columns["episode_index"]) != 0, True)
        columns[Columns.TRUNCATEDS] = last & ~columns.get(Columns.TERMINATEDS, np.zeros_like(last)).reshape(-1)
        return columns_to_episodes(columns)


def write(episodes: Iterable[Any], path: str | Path) -> None:
    """Raise an error, as data sets of LeRobot are only read.

    Raises:
        NotAvailableError: always.
    """
    raise NotAvailableError(
        f"writing {path}", expected="a format that is written", found="lerobot", do='use format="parquet"'
    )
