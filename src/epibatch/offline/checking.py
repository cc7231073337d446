"""Faults in the content of recorded episodes: gaps, values that are no numbers or outside their space, flags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, ColumnError, DataError
from epibatch.core.spaces import get_base_struct_from_space, integer_limits
from epibatch.core.structs import flatten_like, paths_of

from ..episodes.reader import reader_of
from ..episodes.store import Flags, Leaf
from .data_folder import is_data_set
from .episode_dataset import EpisodeDataset
from .formats import OWN, read_episodes
from .multi_agent_dataset import MultiAgentDataset
from .parts import REQUIRED
from .verifying import verify

_OUTSIDE_BOX = "outside Box"
_AT_ONCE = 65_536
"""Rows of a column that are looked at together."""


class DataFault(NamedTuple):
    """A kind of fault in recorded episodes, and the first place of it.

    Args:
        kind: The fault, in words.
        column: The column, with the path of the part of it; "": the fault is one of whole episodes.
        number: The steps, or episodes, that have it.
        episode: Id of the first episode that has it.
        step: The step of that episode, counted from the episode's beginning.
        is_error: False: data of this kind can be learned from, as the episodes that a log was writing when it ended.
    """

    kind: str
    column: str
    number: int
    episode: str
    step: int
    is_error: bool = True

    def __str__(self) -> str:
        level = "error" if self.is_error else "warning"
        subject = f"{self.column}: " if self.column else ""
        unit = "steps" if self.column else "episodes"
        place = f"first in episode {self.episode!r} at step {self.step:,}"
        return f"{level}: {subject}{self.kind} ({unit}: {self.number:,}; {place})"


def check_episodes(dataset: Any, observation_space: Any = None, action_space: Any = None) -> list[DataFault]:
    """Return the faults in the content of recorded episodes, each kind once, with its number and first place.

    Errors are: steps that are missing within an episode, or there twice; an episode that goes on after it was
    terminated or truncated; a final observation that is missing though the episode was not terminated; NaN and
    infinite numbers; values outside their space. Warnings are: an episode that begins later than at step 0; one that
    ends without a flag; and `actions` outside a Box, which may be a module's before they were scaled and clipped.

    If the data has `actions_for_env`, the actions as the environment got them, only these are compared with the space.

    Of several agents, flags and time are those of whole episodes; the columns are those of each agent, whose steps are
    counted. Agents with the same columns share a line.

    Args:
        dataset: A data set, or what `read_episodes` takes.
        observation_space: Space of the observations; None: the one that the data set names, if it does.
        action_space: Space of the actions, likewise.

    Raises:
        DataError: there are no data, or they are damaged.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="a", observations=[0.0, float("nan"), 2.0], actions=[5, 6],
        ...                              rewards=[1.0, 2.0], terminated=True, len_lookback_buffer=0)
        >>> for fault in check_episodes([episode]):
        ...     print(fault)
        error: obs: NaN or infinite (steps: 1; first in episode 'a' at step 1)
    """
    data = read_episodes(dataset)
    found = list(_faults_of_episodes(data))
    for rows in data.groups if isinstance(data, MultiAgentDataset) else [data]:
        outputs = reader_of(rows).outputs
        acted = Columns.ACTIONS_FOR_ENV if Columns.ACTIONS_FOR_ENV in outputs else Columns.ACTIONS
        spaces = {Columns.OBS: rows.observation_space if observation_space is None else observation_space}
        spaces[acted] = rows.action_space if action_space is None else action_space
        for name in (*REQUIRED, *outputs):
            found += _faults_of_column(rows, name, spaces.get(name))
    return found


def fault_lines(path: Path, format: str | None = None) -> list[str]:
    """Return the faults of the files of recorded data, and those that `check_episodes` finds in them, a line each.

    Args:
        path: The folder or file.
        format: Its format; None: what it looks like.

    Raises:
        DataError: nothing is there.
        UnknownNameError: there is no such format.
        MissingExtraError: the format needs a package that is not installed.
    """
    is_own = format in (None, OWN) and is_data_set(path)
    lines = [f"error: {sentence}" for sentence in verify(path)] if is_own else []
    try:
        return lines + [str(fault) for fault in check_episodes(read_episodes(path, format))]
    except (CheckpointError, ColumnError, DataError) as error:
        if not path.exists():
            raise
        return lines or [f"error: {error}"]


def _faults_of_episodes(data: EpisodeDataset | MultiAgentDataset) -> Iterator[DataFault]:
    ids = np.asarray(list(data.ids))
    _, numbers = np.unique(ids, return_inverse=True)
    order = np.lexsort((data.starts, numbers))
    same = np.append(numbers[order][1:] == numbers[order][:-1], False)  # the next one has the same id
    starts, ends = data.starts[order], (data.starts + data.lengths)[order]
    next_starts = np.append(starts[1:], 0)
    terminated, truncated = data.ends[:, order]
    is_done = terminated | truncated
    is_first = np.insert(~same[:-1], 0, True)
    for kind, mask, steps, is_error in (
        ("later steps are there, but not the next ones", same & (next_starts > ends), ends, True),
        ("steps are there twice", same & (next_starts < ends), next_starts, True),
        ("goes on after it was terminated or truncated", same & is_done & (next_starts >= ends), ends, True),
        ("not terminated, and its final observation is missing", data.lack_final_obs[order] & ~terminated, ends, True),
        ("begins later than at step 0", is_first & (starts > 0), starts, False),
        ("ends without being terminated or truncated", ~same & ~is_done, ends, False),
    ):
        if mask.any():
            at = np.flatnonzero(mask)[order[mask].argmin()]
            yield DataFault(kind, "", int(mask.sum()), str(ids[order[at]]), int(steps[at]), is_error)


def _faults_of_column(data: EpisodeDataset, name: str, space: Any) -> list[DataFault]:
    counts: dict[tuple[str, str], int] = {}
    places: dict[tuple[str, str], tuple[str, int]] = {}
    for part in _in_blocks(data):
        reader = reader_of(part)
        rows = reader.rows(name, 0, reader.lengths + (name == Columns.OBS))
        ends = rows.counts.cumsum()
        leaves = [rows.leaf(i) for i in range(rows.num_leaves)]
        spaces: list[Any] = [None] * len(leaves)
        nesting = None
        try:
            spaces = spaces if space is None else flatten_like(rows.form, get_base_struct_from_space(space))
        except ColumnError as error:
            nesting = f"another nesting than its space: {error.found} in place of {error.expected}"
        for path, leaf, leaf_space in zip(paths_of(rows.form), leaves, spaces):
            masks = {} if nesting is None else {nesting: np.ones(len(leaf), np.bool_)}
            for kind, mask in {**masks, **_faulty_rows(leaf, leaf_space)}.items():
                if not mask.any():
                    continue
                key = kind, name + path
                row = int(mask.argmax())
                chunk = int(ends.searchsorted(row, "right"))
                step = row - int(ends[chunk] - rows.counts[chunk]) + int(reader.starts[chunk])
                places.setdefault(key, (_name_of(part, chunk), step))
                counts[key] = counts.get(key, 0) + int(mask.sum())
    may_be_outside = name == Columns.ACTIONS
    return [
        DataFault(*key, count, *places[key], is_error=not (may_be_outside and key[0].startswith(_OUTSIDE_BOX)))
        for key, count in counts.items()
    ]


def _name_of(data: EpisodeDataset, number: int) -> str:
    about = data.about(number)
    whole = about.get("multi_agent_episode_id")
    return str(about["id"]) if whole is None else f"{whole}, agent {about['agent_id']}"


def _in_blocks(data: EpisodeDataset) -> Iterator[EpisodeDataset]:
    """Some of the episodes at a time."""
    blocks = (data.lengths + 1).cumsum() // _AT_ONCE
    return map(data.take, np.split(np.arange(len(data)), np.flatnonzero(np.diff(blocks)) + 1))


def _faulty_rows(leaf: Leaf, space: gym.Space[Any] | None) -> dict[str, Flags]:
    """The rows that have a fault, by its kind: bool [R]."""
    found = {} if leaf.dtype.kind not in "fc" else {"NaN or infinite": _rows_with(~np.isfinite(leaf))}
    kinds = gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary
    if not isinstance(space, (gym.spaces.Box, *kinds)):
        return found
    shape = space.shape or ()
    if [size for size in leaf.shape[1:] if size != 1] != [size for size in shape if size != 1]:
        found[f"of shape {leaf.shape[1:]}, outside {_short(space)}"] = np.ones(len(leaf), np.bool_)
        return found
    values = leaf.reshape(len(leaf), *shape)
    if isinstance(space, gym.spaces.Box):
        outside = (values < space.low) | (values > space.high)
    else:
        first, after = integer_limits(space) or (0, 0)
        outside = (values < first) | (values >= after)
        if values.dtype.kind == "f":
            outside |= np.isfinite(values) & (values != np.floor(values))
    return {**found, f"outside {_short(space)}": _rows_with(outside)}


def _rows_with(mask: Any) -> Flags:
    flags: Flags = mask.reshape(len(mask), -1).any(1)
    return flags


def _short(space: gym.Space[Any]) -> str:
    """A space as text, without long arrays of bounds."""
    text = str(space)
    return text if len(text) <= 80 else f"{type(space).__name__} of shape {space.shape}"
