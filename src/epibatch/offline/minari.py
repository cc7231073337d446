"""Data sets of Minari, in HDF5, Arrow or Parquet, by the library `minari`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError
from epibatch.core.files import refuse_links
from epibatch.core.imports import import_extra
from epibatch.core.structs import map_struct

from ..episodes import SingleAgentEpisode, columns_to_episodes, episodes_to_columns
from .foreign import arrays_of, h5py, new_target, read_json, reading, with_steps

_KIND, _EXTRA, _ABOUT, _HDF5 = "a data set of Minari", "minari", "metadata.json", "main_data.hdf5"
_COLUMNS = {
    Columns.OBS: "observations",
    Columns.ACTIONS: "actions",
    Columns.REWARDS: "rewards",
    Columns.TERMINATEDS: "terminations",
    Columns.TRUNCATEDS: "truncations",
}


def finds(path: str | Path) -> bool:
    """True for the folder of a data set, or the folder `data` in it."""
    return _data_folder(Path(path)) is not None


def _data_folder(path: Path) -> Path | None:
    return next((folder for folder in (path / "data", path) if (folder / _ABOUT).is_file()), None)


def _library(module: str = "minari") -> Any:
    return import_extra(module, _EXTRA, "data sets of Minari")


def read(source: Any, *, infos: bool = False, max_bytes: int | None = None) -> Iterator[SingleAgentEpisode]:
    """Read a data set of Minari, one episode after the other.

    Nothing is downloaded, and no environment is made.

    Args:
        source: Its folder; the id of a local one, such as "D4RL/door/human-v2"; or a `MinariDataset`, which may be a
            part of one.
        infos: True gives the infos of each step. It takes time and memory.
        max_bytes: See `epibatch.offline.parquet.read`, of HDF5 files.

    Raises:
        DataError: There is no such data set; it is damaged, has links or no spaces, or would take more memory.
        ColumnError: see `columns_to_episodes`.
        MissingExtraError: minari is not installed.
    """
    library = _library()
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.exists():
            path = _library("minari.storage").get_dataset_path(str(source))
        folder = _data_folder(path)
        if folder is None:
            do = "give the folder of a data set, or download it: minari.download_dataset(...)"
            raise DataError(str(source), expected=f"{_KIND} that is on this computer", found="none", do=do)
        refuse_links(path)
        with reading(path, _KIND):
            source = _checked(folder, max_bytes)
            storage, indices = source, range(source.total_episodes)
    elif isinstance(source, library.MinariDataset):
        path, storage, indices = source.storage.data_path, source.storage, source.episode_indices.tolist()
    else:
        do = "give a folder, an id, or minari.load_dataset(...)"
        raise DataError("minari.read", expected=_KIND, found=repr(source), do=do)
    about = storage.get_episode_metadata(indices)
    episodes = storage.get_episodes(indices)
    for _ in indices:
        with reading(path, _KIND):
            episode = _episode(next(episodes), next(about), infos)
        if episode is not None:
            episode.observation_space, episode.action_space = storage.observation_space, storage.action_space
            yield episode


def _checked(folder: Path, max_bytes: int | None) -> Any:
    """Open a folder that may be a stranger's, with its spaces, as Minari makes an environment else."""
    about = read_json(folder / _ABOUT)
    for name in ("observation_space", "action_space"):
        if name not in about:
            do = "open it with minari.load_dataset, which makes its environment, and read that"
            raise DataError(str(folder / _ABOUT), expected=f"{name!r}", found=", ".join(about), do=do)
    if (folder / _HDF5).is_file():
        with h5py(_EXTRA).File(folder / _HDF5, "r") as file:
            arrays_of(file, folder / _HDF5, _EXTRA, max_bytes)
    return _library("minari.dataset.minari_storage").MinariStorage.read(folder)


def _episode(given: Mapping[str, Any], about: Mapping[str, Any], infos: bool) -> SingleAgentEpisode | None:
    columns = {name: given[theirs] for name, theirs in _COLUMNS.items()}
    count = len(columns[Columns.REWARDS])
    columns[Columns.EPS_ID] = np.repeat(np.array(str(about.get("eps_id", given["id"]))), count)
    columns[Columns.T] = np.arange(count) + int(about.get("t_started", 0))
    if infos and given["infos"]:
        columns[Columns.INFOS] = [map_struct(lambda rows, i=i: rows[i], given["infos"]) for i in range(count + 1)]
    found = columns_to_episodes(columns)
    return found[0] if found else None


def write(
    episodes: Iterable[Any],
    path: str | Path,
    *,
    dataset_id: str | None = None,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    env_spec: Any = None,
    data_format: str = "hdf5",
) -> None:
    """Write episodes of one agent as a data set of Minari, images without loss.

    `minari.load_dataset` finds it if the path is that of `dataset_id` in `MINARI_DATASETS_PATH`.

    Args:
        episodes: Episodes, or chunks of them; those that follow each other are joined.
        path: The new folder.
        dataset_id: Its id; default: the name of the folder.
        observation_space: Space of the observations; default: that of the first episode.
        action_space: Space of the actions, likewise.
        env_spec: Gymnasium's spec of the environment, `env.spec`.
        data_format: "hdf5", "arrow" or "parquet".

    Raises:
        DataError: The path is taken; a space is not known; no episode has a step, or one has several agents.
        MissingExtraError: minari, or what the format needs, is not installed.
        StorageError: the disk is full, say.
    """
    library, storages = _library(), _library("minari.dataset.minari_storage")
    given = list(with_steps(episodes, _KIND))
    spaces = (observation_space or given[0].observation_space, action_space or given[0].action_space)
    if None in spaces:
        do = "pass observation_space and action_space, those of the environment"
        raise DataError(f"writing {_KIND}", expected="both spaces", found=f"{spaces}", do=do)
    buffer = _library("minari.data_collector.episode_buffer").EpisodeBuffer
    joined = columns_to_episodes(episodes_to_columns(given))
    target = Path(path).absolute()  # with a relative one Minari does not find its files again
    with new_target(target) as temporary:
        temporary.mkdir()
        storage = storages.MinariStorage.new(
            temporary / "data", *spaces, env_spec, data_format=data_format, jpeg_encoding=False
        )
        storage.update_episodes(buffer(**_buffer(episode)) for episode in joined)
        storage.update_episode_metadata(
            [{"eps_id": episode.id_, "t_started": episode.t_started} for episode in joined], range(len(joined))
        )
        name = Path(path).name if dataset_id is None else dataset_id
        storage.update_metadata({"dataset_id": name, "minari_version": library.__version__})


def _buffer(episode: SingleAgentEpisode) -> dict[str, Any]:
    ends = np.zeros((2, len(episode)), np.bool_)
    ends[:, -1] = episode.is_terminated, episode.is_truncated
    rows = (episode.get_observations(), episode.get_actions(), episode.get_rewards(), *ends)
    return dict(zip(_COLUMNS.values(), rows))
