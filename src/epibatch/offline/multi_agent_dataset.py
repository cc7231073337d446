"""Recorded episodes of several agents: the rows of their agents in data sets of one agent, and the rest as text."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import DataError, EpibatchError
from epibatch.core.state_codec import decode_state, encode_state

from ..episodes import MultiAgentEpisode, SingleAgentEpisode
from ..episodes.replay.sampled_episodes import LazyIds
from .data_folder import EPISODES, GROUP, folders_of_several
from .dataset_writer import DatasetWriter, names_in
from .episode_dataset import EpisodeDataset
from .episode_rows import EpisodeRows
from .parts import ColumnLayout, Running, layout_of, read_parts

_ROWS = ("observations", "actions", "rewards", "extra_model_outputs", "infos", "custom_data")
"""What the data sets of agents have of a segment's state."""
_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}|<U\d{1,4}")


class MultiAgentDataset(Sequence[MultiAgentEpisode]):
    """Episodes of several agents with fixed content.

    An item is a new episode object. The rows of each agent lie in a data set of one agent, with those of all agents
    that have the same columns.

    `read_episodes` makes data sets.

    Args:
        whole: An episode for each: its env steps, with the sums of all agents' rewards, and the rest as custom data.
        groups: The rows of agents with the same columns.

    Attributes:
        groups: The rows, as given: a data set of one agent for those with the same columns, also of episodes that a
            `filter` left out.
        path: The folder that all its episodes are in; None: it has some of them, or is in memory.
        env: Name of the environment; None: not known.
        lengths: Env steps of each episode: int64 [E].
        starts: Env step at which each episode, or part of one, begins: int64 [E].
        ends: The flags (terminated, truncated) at each episode's end: bool [2, E].
        lack_final_obs: A mask of the episodes whose last observation is a placeholder; agents have their own: bool [E].
        num_steps: The number of env steps of all episodes.
    """

    def __init__(self, whole: EpisodeDataset, groups: Sequence[EpisodeDataset]) -> None:
        self._whole, self.groups = whole, groups
        self.path = None if whole.path is None else whole.path.parent
        self.env, self.num_steps = whole.env, whole.num_steps
        self.lengths, self.starts, self.ends = whole.lengths, whole.starts, whole.ends
        self.lack_final_obs = whole.lack_final_obs

    def __len__(self) -> int:
        return len(self._whole)

    @overload
    def __getitem__(self, index: int) -> MultiAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[MultiAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> MultiAgentEpisode | list[MultiAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        custom = self._whole.about(number)["custom_data"]
        try:
            state = _unpacked(custom)
            for segment in _segments_of(state):
                if "group" in segment:
                    rows = self.groups[segment.pop("group")][segment.pop("number")].get_state()
                    segment["episode"] = {**{name: rows[name] for name in _ROWS}, **segment["episode"]}
            return MultiAgentEpisode.from_state(state)
        except (EpibatchError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            do = "look at epibatch.offline.verify(folder)"
            found = f"something else ({type(error).__name__}: {error})"
            where = f"episode {number} of {self.path or 'a data set'}"
            raise DataError(where, expected="an episode of several agents", found=found, do=do) from error

    @property
    def ids(self) -> Sequence[str]:
        """The episodes' names."""
        return LazyIds(len(self), lambda i: self._whole.about(i)["multi_agent_episode_id"])

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """The sum of the rewards of all agents in each episode: float64 [E]."""
        return self._whole.returns

    def filter(self, keep: Callable[[MultiAgentEpisode], bool] | npt.ArrayLike) -> MultiAgentDataset:
        """Return the data set of some of the episodes; see `EpisodeDataset.filter`."""
        mask = np.array([bool(keep(episode)) for episode in self]) if callable(keep) else keep
        return MultiAgentDataset(self._whole.filter(mask), self.groups)

    def split(
        self, share: float, *, seed: int | Sequence[int] | None = None
    ) -> tuple[MultiAgentDataset, MultiAgentDataset]:
        """Return two data sets; see `EpisodeDataset.split`."""
        first, second = self._whole.split(share, seed=seed)
        return MultiAgentDataset(first, self.groups), MultiAgentDataset(second, self.groups)

    def shard(self, index: int, count: int) -> MultiAgentDataset:
        """Return the data set of every `count`-th episode; see `EpisodeDataset.shard`."""
        return MultiAgentDataset(self._whole.shard(index, count), self.groups)

    def take(self, numbers: npt.ArrayLike) -> MultiAgentDataset:
        """Return the data set of some of the episodes, by number; see `EpisodeDataset.take`."""
        return MultiAgentDataset(self._whole.take(numbers), self.groups)

    @classmethod
    def in_memory(cls, episodes: Iterable[Any]) -> MultiAgentDataset:
        """Read episodes into arrays.

        Raises:
            DataError: something that is no episode of several agents with a step.
            ColumnError: a column of text or Python objects.
        """
        layouts: list[Mapping[str, ColumnLayout]] = []
        groups: list[list[SingleAgentEpisode]] = []

        def place(segment: SingleAgentEpisode) -> tuple[int, int]:
            columns = columns_of(segment)
            if columns not in layouts:
                groups.append([])
                layouts.append(columns)
            group = layouts.index(columns)
            segment.id_ = str(len(groups[group]))
            groups[group].append(segment)
            return group, len(groups[group]) - 1

        whole = [whole_of(episode, place, number) for number, episode in enumerate(episodes)]
        rows = [EpisodeRows.in_memory([part], "episodes") for part in (whole, *groups)]
        return cls(EpisodeDataset(rows[0]), [EpisodeDataset(group) for group in rows[1:]])

    @classmethod
    def of_folder(cls, path: Path) -> MultiAgentDataset:
        """Open that of a folder.

        Raises:
            DataError: it is damaged.
            CheckpointError: a link is in it.
        """
        whole, *groups = (EpisodeDataset(EpisodeRows.of_folder(folder)) for folder in folders_of_several(path))
        return cls(whole, groups)


class MultiAgentWriter:
    """Appends episodes of several agents to a folder, as `DatasetWriter` does those of one.

    Each chunk becomes an episode of its own.

    Args:
        folder: The folder.
        env: Name of the environment, for a new data set.

    Raises:
        DataError: the folder holds a damaged data set, or one of one agent, or other files.
        CheckpointError: a link is in it.
        StorageError: another process writes to it, or it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, env: str | None = None) -> None:
        self._path, self._open = Path(folder), ExitStack()
        self._is_new_folder = not self._path.exists()
        if not self._is_new_folder:
            names_in(self._path, EPISODES)
        groups = folders_of_several(self._path)[1:]
        self._groups: list[DatasetWriter] = []
        self._whole = DatasetWriter(self._path / EPISODES, env=env)
        self._open.callback(self._whole.close)
        try:
            for group in groups:
                self._add_group(group)
        except BaseException:
            self._open.close()
            raise

    def _add_group(self, path: Path) -> None:
        self._groups.append(DatasetWriter(path))
        self._open.callback(self._groups[-1].close)

    @property
    def num_parts(self) -> int:
        """Episodes that were added to the folder so far."""
        return self._whole.num_parts

    def add(self, episodes: Iterable[Any]) -> None:
        """Append episodes; they count once `commit` returns.

        Raises:
            DataError: something that is no episode of several agents.
            ColumnError: a column of text or Python objects.
            StorageError: the disk is full, say.
        """
        for episode in [episodes] if isinstance(episodes, MultiAgentEpisode) else episodes:
            self._whole.add([whole_of(episode, self._place, self.num_parts)])

    def _place(self, segment: SingleAgentEpisode) -> tuple[int, int]:
        layouts, columns = [writer.columns for writer in self._groups], columns_of(segment)
        if columns not in layouts:
            layouts.append(columns)
            self._add_group(self._path / f"{GROUP}{len(self._groups)}")
        group = layouts.index(columns)
        number = self._groups[group].num_parts
        segment.id_ = str(number)  # so that it goes on from no other one
        self._groups[group].add(segment)
        return group, number

    def commit(self) -> None:
        """Make all that was added count, the rows of agents first."""
        for writer in (*self._groups, self._whole):
            writer.commit()

    def close(self) -> None:
        """Drop what was not committed, and let others write to the folder."""
        self._open.close()
        if self._is_new_folder and not os.listdir(self._path):
            self._path.rmdir()

    def __enter__(self) -> MultiAgentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()


def columns_of(segment: SingleAgentEpisode) -> dict[str, ColumnLayout]:
    """Return what the rows of a segment are like."""
    delivery = read_parts([segment], {}, 0, Running())
    return {} if delivery is None else layout_of(delivery.columns)


def whole_of(episode: Any, place: Callable[[SingleAgentEpisode], tuple[int, int]], number: int) -> SingleAgentEpisode:
    """Return the env steps of an episode, with the sums of all agents' rewards and the rest as custom data.

    Args:
        episode: The episode.
        place: Keeps the rows of a segment; returns its group, and its number there.
        number: The number that the episode gets.

    Raises:
        DataError: it is no episode of several agents with a step.
    """
    if not isinstance(episode, MultiAgentEpisode) or episode.env_t <= episode.env_t_started:
        do = "give episodes of several agents, each with a step: [episode for episode in episodes if len(episode)]"
        found = f"{type(episode).__name__} {episode!r}"[:200]
        where = "episodes for a data set of several agents"
        raise DataError(where, expected="such an episode with a step", found=found, do=do)
    state = episode.get_state()
    steps = episode.env_t - episode.env_t_started
    rewards = np.zeros(steps)
    for segment in _segments_of(state):
        rows = SingleAgentEpisode.from_state(segment["episode"])
        if not len(rows):
            continue
        at = np.asarray(segment["env_steps"])[rows.lookback : rows.lookback + len(rows)] - episode.env_t_started
        np.add.at(rewards, np.clip(at, 0, steps - 1), np.asarray(rows.get_rewards(), np.float64))
        segment["group"], segment["number"] = place(rows)
        segment["episode"] = {name: part for name, part in segment["episode"].items() if name not in _ROWS}
    whole = SingleAgentEpisode(
        str(number),
        multi_agent_episode_id=episode.id_,
        observations=np.zeros((steps + 1, 0), np.int8),
        actions=np.zeros((steps, 0), np.int8),
        rewards=rewards,
        t_started=episode.env_t_started,
        len_lookback_buffer=0,
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
    )
    whole.custom_data.update(_packed(state))
    return whole


def _segments_of(state: Any) -> list[Any]:
    return [segment for _, record in state["agents"] for segment in record["segments"]] + list(state["past"])


def _packed(state: Any) -> dict[str, Any]:
    """A state as text, its arrays too."""
    data, arrays = encode_state(state)
    return {"state": data, "arrays": {n: [a.dtype.str, list(a.shape), a.tobytes().hex()] for n, a in arrays.items()}}


def _unpacked(packed: dict[str, Any]) -> Any:
    arrays = {}
    for name, (dtype, shape, text) in packed["arrays"].items():
        if not _DTYPE.fullmatch(dtype):
            raise ValueError(f"an array of dtype {dtype!r}")
        arrays[name] = np.frombuffer(bytes.fromhex(text), dtype).reshape(shape).copy()
    return decode_state(copy.deepcopy(packed["state"]), arrays)
