"""HDF5 files of D4RL: the steps of all episodes after each other, ends in `terminals` and `timeouts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError

from ..episodes import SingleAgentEpisode, columns_to_episodes, episodes_to_columns
from .foreign import array_columns, arrays_of, h5py, is_hdf5, new_target, reading, with_steps

_KIND, _EXTRA = "an HDF5 file of D4RL", "d4rl"
_NAMES = {
    Columns.OBS: "observations",
    Columns.NEXT_OBS: "next_observations",
    Columns.ACTIONS: "actions",
    Columns.REWARDS: "rewards",
    Columns.TERMINATEDS: "terminals",
    Columns.TRUNCATEDS: "timeouts",
}


def finds(path: str | Path) -> bool:
    """True for an HDF5 file."""
    return is_hdf5(Path(path))


def read(
    path: str | Path, *, names: Mapping[str, str | None] | None = None, max_bytes: int | None = None
) -> list[SingleAgentEpisode]:
    """Read an HDF5 file of D4RL. Groups, as `infos` and `metadata`, are left out.

    Args:
        path: The file.
        names: Names of arrays, see `columns_to_episodes`.
        max_bytes: See `epibatch.offline.parquet.read`.

    Raises:
        DataError: No file; it is damaged, leads to other files, or would take more memory.
        ColumnError: see `columns_to_episodes`.
        MissingExtraError: h5py is not installed.
    """
    library = h5py(_EXTRA)
    with reading(path, _KIND), library.File(path, "r") as file:
        arrays = arrays_of(file, Path(path), _EXTRA, max_bytes)
        columns = {name: array[()] for name, array in arrays.items() if "/" not in name and array.shape}
        known = {theirs: ours for ours, theirs in _NAMES.items() if theirs in columns}
        return columns_to_episodes(columns, {**known, **(names or {})})


def write(episodes: Iterable[Any], path: str | Path) -> None:
    """Write episodes as an HDF5 file of D4RL. Names of episodes and steps before their start are lost.

    Args:
        episodes: Episodes of one agent, or chunks of them; all but the last one have an end.
        path: The new file, `.hdf5`.

    Raises:
        DataError: The path is taken; no episode has a step, or one has several agents or no end; nested columns.
        MissingExtraError: h5py is not installed.
        StorageError: the disk is full, say.
    """
    library = h5py(_EXTRA)
    joined = columns_to_episodes(episodes_to_columns(list(with_steps(episodes, _KIND))))
    for episode in joined[:-1]:
        if not episode.is_done:
            do = "leave it out, or write it last"
            raise DataError(f"episode {episode.id_}", expected="an end, as the next one follows", found="none", do=do)
    columns = episodes_to_columns(joined)
    for name in (Columns.INFOS, Columns.T, Columns.EPS_ID):
        del columns[name]
    with new_target(path) as temporary, library.File(temporary, "w") as file:
        for name, column in array_columns(columns, "D4RL").items():
            file.create_dataset(_NAMES.get(name, name), data=column, compression="gzip")
