"""Reading and writing of recorded episodes in any format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.checkpoints import is_checkpoint, load_state
from epibatch.core.columns import Columns
from epibatch.core.errors import DataError, UnknownNameError, nearest
from epibatch.core.files import LOCK
from epibatch.core.restoring import restoring

from ..episodes import MultiAgentEpisode, SingleAgentEpisode
from ..episodes.replay.lanes import Lanes
from ..episodes.replay.sampled_episodes import SampledEpisodes
from .data_folder import EPISODES, is_data_set
from .dataset_writer import DatasetWriter
from .episode_dataset import EpisodeDataset
from .episode_rows import EpisodeRows, no_step
from .foreign import batches_of
from .multi_agent_dataset import MultiAgentDataset, MultiAgentWriter
from .parts import no_episodes

OWN = "epibatch"
OTHERS = ("parquet", "minari", "rllib", "tensordict", "d4rl", "lerobot")
"""Names of formats; each is a module of this package with functions `read`, `write` and `finds`."""
_OF_OBJECTS = ("minari",)
"""Formats, called as their libraries, that read objects of the library too."""


def read_episodes(source: Any, format: str | None = None, **options: Any) -> EpisodeDataset | MultiAgentDataset:
    """Open recorded episodes as a data set: an `EpisodeDataset`, or of several agents a `MultiAgentDataset`.

    A folder that `write_episodes` wrote is read where it lies; other sources are read into memory.

    Args:
        source: The path of recorded data, or of a replay buffer that `save_to_path` wrote, of one agent; or episodes: a
            list, or what a runner's `sample` returned; or a `MinariDataset`; with `format="minari"` the id of one.
        format: `"epibatch"` or another format's name; None: what the path looks like.
        options: What the format takes.

    Raises:
        DataError: nothing is there, or it is of no format that is known, or damaged, or without episodes.
        UnknownNameError: there is no such format.
        MissingExtraError: the format needs a package that is not installed.
        ColumnError: episodes whose columns differ, or have text or Python objects.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0], terminated=True,
        ...                              len_lookback_buffer=0)
        >>> len(read_episodes([episode, episode]))
        2
    """
    if isinstance(source, (EpisodeDataset, MultiAgentDataset)):
        return source
    if not isinstance(source, (str, os.PathLike)):
        owner = type(source).__module__.partition(".")[0] if format is None else _known(format)
        episodes = _module(owner).read(source, **options) if owner in _OF_OBJECTS else source
        return _in_memory(episodes, "episodes")
    path = Path(source)
    if format is None and is_checkpoint(path):
        return _in_memory(_held_by_buffer(path), str(path))
    name = _format_of(path) if format is None else _known(format)
    if name == OWN and (path / EPISODES).is_dir():
        return MultiAgentDataset.of_folder(path.absolute())
    if name == OWN:
        return EpisodeDataset(EpisodeRows.of_folder(path.absolute()))
    return _in_memory(_module(name).read(path, **options), str(path))


def write_episodes(
    episodes: Iterable[Any], target: str | os.PathLike[str], format: str | None = None, *, append: bool = False,
    env: str | None = None, **options: Any,
) -> None:  # fmt: skip
    """Write episodes to a new data set, or add them to one.

    Chunks of one episode that follow each other become one episode. If this raises an error, the target is as it was.

    Args:
        episodes: A list, a data set, what a runner's `sample` returned, or what gives episodes one by one.
        target: The folder, or file, as the format has it.
        format: `"epibatch"`, which None means too, or another format's name.
        append: True: the target may be a data set in the format `"epibatch"`, which gets more episodes.
        env: Name of the environment, in a new data set in the format `"epibatch"`.
        options: What another format takes.

    Raises:
        DataError: the target is there already, or holds something else, or no episode has a step.
        ColumnError: episodes whose columns differ, or have text or Python objects.
        UnknownNameError: there is no such format.
        MissingExtraError: the format needs a package that is not installed.
        StorageError: the disk is full, say.

    Examples:
        >>> import tempfile
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0], terminated=True,
        ...                              len_lookback_buffer=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_episodes([episode], folder + "/data")
        ...     read_episodes(folder + "/data")[0].equals(episode)
        True
    """
    path, name = Path(target), OWN if format is None else _known(format)
    is_there = path.exists() and not (path.is_dir() and not set(os.listdir(path)) - {LOCK})
    if is_there and not (append and name == OWN):
        do = "choose another path, or pass append=True" if name == OWN else "choose another path"
        raise DataError(str(path), expected="a path where nothing is", found="something", do=do)
    if name != OWN:
        _module(name).write(episodes, path, **options)
        return
    parts = _in_parts(episodes)
    first = next(parts, [])
    with writer_for(first, path, env) as writer:
        for part in chain([first], parts):
            writer.add(part)
        if not writer.num_parts:
            raise no_step("episodes to write")


def writer_for(episodes: Sequence[Any], folder: Path, env: str | None) -> DatasetWriter | MultiAgentWriter:
    """Open a data set for episodes such as these."""
    return (MultiAgentWriter if _has_several_agents(episodes) else DatasetWriter)(folder, env=env)


def _has_several_agents(episodes: Sequence[Any]) -> bool:
    return len(episodes) > 0 and isinstance(episodes[0], MultiAgentEpisode)


def _in_memory(episodes: Iterable[Any], where: str) -> EpisodeDataset | MultiAgentDataset:
    parts = _in_parts(episodes)
    first = next(parts, [])
    if _has_several_agents(first):
        return MultiAgentDataset.in_memory(episode for part in chain([first], parts) for episode in part)
    return EpisodeDataset(EpisodeRows.in_memory(chain([first], parts), where))


def _in_parts(episodes: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """Episodes as they are if their rows are in memory, else some of them at a time."""
    if isinstance(episodes, (SingleAgentEpisode, MultiAgentEpisode)):
        episodes = [episodes]
    if not isinstance(episodes, Iterable):
        raise no_episodes(episodes)
    if isinstance(episodes, Sequence) and not isinstance(episodes, EpisodeDataset):
        return iter([episodes])
    return batches_of(episodes)


def _held_by_buffer(path: Path) -> SampledEpisodes:
    """Return the episodes that a saved replay buffer holds, as far as it holds them."""
    state = load_state(path)
    if not isinstance(state, dict) or not isinstance(state.get("lanes"), dict):
        do = "give the folder of an EpisodeReplayBuffer, or of a data set"
        raise DataError(str(path), expected="a replay buffer of one agent", found="another checkpoint", do=do)
    with restoring(str(path), "lanes"):
        held = state["lanes"]
        rows = min(int(held["rows_per_lane"]), max(2, *np.asarray(held["written"]).tolist()))
        lanes = Lanes.from_state({**held, "rows_per_lane": rows}, keep_infos=Columns.INFOS in held["columns"])
    places = lanes.newest()
    life = lanes.lives_of(places)
    begins = (places == life.first) & (life.last > life.first)
    return SampledEpisodes(lanes, places[begins], (life.last - life.first)[begins], hidden=())


def _known(name: str) -> str:
    names = (OWN, *OTHERS)
    if name not in names:
        raise UnknownNameError(
            "format", expected="a format of recorded data", found=repr(name), do=nearest(name, names)
        )
    return name


def _module(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


def _format_of(path: Path) -> str:
    if not path.exists():
        do = f"look at the path; a relative one begins at {Path.cwd()}"
        raise DataError(str(path), expected="recorded data", found="nothing", do=do)
    if is_data_set(path):
        return OWN
    found = [name for name in OTHERS if _module(name).finds(path)]
    if len(found) != 1:
        raise DataError(
            str(path),
            expected=f"recorded data in one of the formats {', '.join((OWN, *OTHERS))}",
            found="what looks like " + (" and ".join(found) or "none of them"),
            do="name the format: read_episodes(path, format=...)",
        )
    return found[0]
