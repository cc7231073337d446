"""Conversion of episodes and their columns between the libraries."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np

from epibatch.core.errors import EpisodeError, NotAvailableError
from epibatch.core.structs import flatten, unflatten
from epibatch.episodes._storage.growing_column import NOTHING
from epibatch.episodes._storage.infos_buffer import InfosBuffer
from epibatch.episodes.arrays import Leaf, copied, object_leaf, owned, stacked_rows
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from epibatch.episodes.multi_agent_episode import MultiAgentEpisode
from epibatch.episodes.single_agent_episode import SingleAgentEpisode
from epibatch.episodes.vector_episodes import VectorEpisodes

from .library import rllib


@overload
def to_rllib(episodes: SingleAgentEpisode, *, numpy: bool = ..., copy: bool = ...) -> Any: ...
@overload
def to_rllib(episodes: Sequence[SingleAgentEpisode], *, numpy: bool = ..., copy: bool = ...) -> list[Any]: ...
def to_rllib(episodes: Any, *, numpy: bool = True, copy: bool = False) -> Any:
    """Convert our episodes to RLlib's.

    The result has all columns with their lookback, infos, custom data, names, spaces, times and flags. Unless `copy`,
    arrays are views of the episode's own, and infos and custom data are the same objects, so writing to
    one episode changes the other. Adding steps to one does not change the other.

    RLlib stores two things differently: a column without rows is an empty list; observations are a list while the
    newest one has another shape or type than its column. Two facts are lost: if the newest observation may still be
    replaced by one of another shape or type, and, after a piece has changed `observation_space`, the space that new
    observations are checked against.

    Args:
        episodes: An episode or chunk, a sequence of them, or a `VectorEpisodes`.
        numpy: Stacked arrays, as from RLlib's `to_numpy()`; otherwise lists of rows, as for its acting pieces
            and `add_env_step`. Numbers in such lists are NumPy's, of the columns' types.
        copy: Copy everything, so that nothing is shared.

    Returns:
        One of RLlib's `SingleAgentEpisode`, or a list of them.

    Raises:
        MissingExtraError: RLlib is not installed.
        EpisodeError: something that is no episode of ours.
        NotAvailableError: a multi-agent episode.

    Examples:
        >>> episode = SingleAgentEpisode(id_="walk")
        >>> episode.add_env_reset(0.5)
        >>> episode.add_env_step(1.5, action=1, reward=2.0, terminated=True)
        >>> theirs = to_rllib(episode)
        >>> len(theirs), theirs.get_observations(), theirs.is_terminated
        (1, array([0.5, 1.5]), True)
    """
    rllib()
    if _is_sequence(episodes):
        return [to_rllib(episode, numpy=numpy, copy=copy) for episode in episodes]
    if not isinstance(episodes, SingleAgentEpisode):
        raise _no_episode("to_rllib", episodes, "an epibatch SingleAgentEpisode", "RLlib's already")
    return to_rllib_episode(episodes, numpy=numpy, copy=copy)


def from_rllib(episodes: Any, *, copy: bool = False) -> Any:
    """Convert RLlib's episodes to ours.

    The result has all columns with their lookback, infos, custom data, names, spaces, times and flags, from RLlib's
    list mode and its numpy mode. Unless `copy`, writable arrays of the numpy mode are shared, and infos and custom
    data are the same objects, so writing to one episode changes the other. Rows of the list mode, and read-only
    arrays, which come from Ray's object store, are copied.

    A column is arrays here, so a list of Python numbers gets the type that NumPy gives it, and numbers of several
    types become one; text becomes a column of Python strings; nested lists in stacked columns become tuples; a
    dict of another class becomes a dict.

    Args:
        episodes: One of RLlib's `SingleAgentEpisode`, or a sequence of them.
        copy: Copy everything, so that nothing is shared.

    Returns:
        A `SingleAgentEpisode`, or a list of them.

    Raises:
        MissingExtraError: RLlib is not installed.
        EpisodeError: something that is no episode of RLlib's, or an episode with columns that do not fit together.
        ColumnError: rows of a column that are nested differently.
        NotAvailableError: a multi-agent episode.

    Examples:
        >>> from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibEpisode
        >>> theirs = RLlibEpisode(observations=[1, 2, 3], actions=[0, 1], rewards=[0.5, 1.5], len_lookback_buffer=1)
        >>> episode = from_rllib(theirs)
        >>> len(episode), episode.lookback, episode.get_rewards(slice(-2, None)).tolist()
        (1, 1, [0.5, 1.5])
    """
    library = rllib()
    if _is_sequence(episodes):
        return [from_rllib(episode, copy=copy) for episode in episodes]
    if not isinstance(episodes, library.SingleAgentEpisode):
        raise _no_episode("from_rllib", episodes, "a SingleAgentEpisode of RLlib's", "epibatch's already")
    return to_epibatch_episode(episodes, copy=copy)


def to_rllib_episode(episode: SingleAgentEpisode, *, numpy: bool = True, copy: bool = False, buffer: Any = None) -> Any:
    """Convert one of our episodes to RLlib's, as `to_rllib` does.

    Args:
        episode: Ours.
        numpy: True for columns as stacked arrays.
        copy: True to copy values that would be shared.
        buffer: The class of the columns' buffers; default: RLlib's own.
    """
    library = rllib()
    make = buffer or library.InfiniteLookbackBuffer
    infos, data = episode.infos.data, episode.custom_data
    theirs = library.SingleAgentEpisode(
        episode.id_,
        observations=to_rllib_buffer(make, episode.observations, numpy=numpy, copy=copy),
        observation_space=episode.observation_space,
        infos=make(copying.deepcopy(infos) if copy else list(infos), episode.infos.lookback),
        actions=to_rllib_buffer(make, episode.actions, numpy=numpy, copy=copy),
        action_space=episode.action_space,
        rewards=to_rllib_buffer(make, episode.rewards, numpy=numpy, copy=copy),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
        extra_model_outputs={
            key: to_rllib_buffer(make, column, numpy=numpy, copy=copy)
            for key, column in episode.extra_model_outputs.items()
        },
        t_started=episode.t_started,
        agent_id=episode.agent_id,
        module_id=episode.module_id,
        multi_agent_episode_id=episode.multi_agent_episode_id,
    )
    theirs.rewards.space = _rewards_space()
    theirs._custom_data = copying.deepcopy(data) if copy else data
    theirs._start_time, theirs._last_step_time = episode._start_time, episode._last_step_time
    if theirs._start_time is None:
        theirs._start_time = theirs._last_step_time
    return theirs


@lru_cache(maxsize=1)
def _rewards_space() -> Any:
    return rllib().SingleAgentEpisode().rewards.space


def to_epibatch_episode(theirs: Any, *, copy: bool = False, steps: int | None = None) -> SingleAgentEpisode:
    """Convert one of RLlib's episodes to ours, as `from_rllib` does.

    Args:
        theirs: RLlib's.
        copy: True to copy values that would be shared.
        steps: Number of its first steps to take; default: all.
    """
    episode = SingleAgentEpisode(theirs.id_ or None)
    rows = None if steps is None else steps + theirs.rewards.lookback
    num_obs = None if rows is None else rows + 1
    episode.id_ = theirs.id_
    episode.agent_id, episode.module_id = theirs.agent_id, theirs.module_id
    episode.multi_agent_episode_id = theirs.multi_agent_episode_id
    episode.is_terminated, episode.is_truncated = bool(theirs.is_terminated), bool(theirs.is_truncated)
    episode.observations = to_epibatch_column(theirs.observations, newest=True, copy=copy, rows=num_obs)
    episode.actions = to_epibatch_column(theirs.actions, copy=copy, rows=rows)
    episode.rewards = to_epibatch_column(theirs.rewards, copy=copy, rows=rows)
    episode.rewards.space = None
    infos = copying.deepcopy(theirs.infos.data) if copy else theirs.infos.data
    episode.infos = InfosBuffer(infos[:num_obs], theirs.infos.lookback)
    episode.extra_model_outputs = {
        key: to_epibatch_column(buffer, copy=copy, rows=rows) for key, buffer in theirs.extra_model_outputs.items()
    }
    episode.given_observation_space = theirs.observation_space
    episode.observation_space, episode.action_space = theirs.observation_space, theirs.action_space
    episode.t_started = theirs.t_started
    episode._custom_data = copying.deepcopy(theirs.custom_data) if copy else theirs.custom_data
    episode._start_time, episode._last_step_time = theirs._start_time, theirs._last_step_time
    episode.validate()
    return episode


def check_epibatch_episodes(where: str, episodes: Sequence[Any]) -> None:
    """Raise unless all episodes are our single-agent episodes.

    Raises:
        EpisodeError: something that is no episode of ours.
        NotAvailableError: a multi-agent episode.
    """
    for episode in episodes:
        if not isinstance(episode, SingleAgentEpisode):
            raise _no_episode(where, episode, "SingleAgentEpisodes of epibatch's", "RLlib's", _BEHIND[0])


def check_rllib_episodes(where: str, episodes: Sequence[Any]) -> None:
    """Raise unless all episodes are RLlib's single-agent episodes.

    Raises:
        EpisodeError: something that is no episode of RLlib's.
        NotAvailableError: a multi-agent episode.
    """
    cls = rllib().SingleAgentEpisode
    for episode in episodes:
        if not isinstance(episode, cls):
            raise _no_episode(where, episode, "SingleAgentEpisodes of RLlib's", "epibatch's", _BEHIND[1])


_BEHIND = ("convert them with from_rllib first", "convert them with to_rllib first")


def _is_sequence(episodes: Any) -> bool:
    return isinstance(episodes, (list, tuple, VectorEpisodes))


def _no_episode(
    where: str, found: Any, expected: str, other: str, do_then: str = "use it as it is"
) -> EpisodeError | NotAvailableError:
    """Return the error about an object that cannot be converted."""
    library = rllib()
    if isinstance(found, (MultiAgentEpisode, library.MultiAgentEpisode)):
        return NotAvailableError(
            where,
            expected="single-agent episodes",
            found=f"a multi-agent episode, {getattr(found, 'id_', '')!r}",
            do="exchange the agents' own episodes: [*episode.agent_episodes.values()]",
        )
    name, do = f"{type(found).__name__} {found!r}", "pass an episode, or a list of episodes"
    if isinstance(found, type):
        name, do = f"the class {found.__module__}.{found.__name__}", "pass an episode, an instance of the class"
    elif isinstance(found, (library.SingleAgentEpisode, SingleAgentEpisode)):
        name, do = f"{found!r}, which is {other}", do_then
    return EpisodeError(where, expected=f"{expected}, or a list of such", found=name, do=do)


# ---------------------------------------------------------------------------------------------- columns


def to_rllib_rows(column: InfiniteLookbackBuffer, *, numpy: bool = True, copy: bool = False) -> Any:
    """Return all rows of a column in the form of RLlib's buffer.

    Args:
        column: The column.
        numpy: True for stacked arrays, views of the column's; otherwise a list of rows. A column without
            rows, or with a newest row that does not fit the others yet, is always a list.
        copy: True to copy arrays that would share memory.
    """
    if not numpy or column.raw_row() is not NOTHING:
        rows = row_list(column)
        return [owned(row) for row in rows] if copy else rows
    leaves = column.rows(-column.lookback, column.len_incl_lookback() - column.lookback)
    if not leaves:
        return []
    return unflatten(column.form, [copied(leaf) for leaf in leaves] if copy else leaves)


def row_list(column: InfiniteLookbackBuffer) -> list[Any]:
    """Return the rows of a column as a list: scalars of NumPy, and views of arrays."""
    raw = column.raw_row()
    count = column.len_incl_lookback() - (raw is not NOTHING)
    leaves = column.rows(-column.lookback, count - column.lookback)
    rows: list[Any]
    if column.form is None:
        rows = list(leaves[0]) if leaves else []
    else:
        rows = [unflatten(column.form, list(row)) for row in zip(*leaves)]
    return rows if raw is NOTHING else [*rows, raw]


def to_rllib_buffer(make: Any, column: InfiniteLookbackBuffer, *, numpy: bool, copy: bool) -> Any:
    """Return RLlib's buffer with the rows, the lookback and the space of a column.

    Args:
        make: The class of the buffer.
        column: The column.
        numpy: True to stack its rows.
        copy: True to copy arrays that would share memory.
    """
    buffer = make(to_rllib_rows(column, numpy=numpy, copy=copy), 0, column.space)
    buffer.lookback = column.lookback  # its constructor takes a dict's number of keys for the number of rows
    return buffer


def to_epibatch_column(buffer: Any, *, newest: bool = False, copy: bool = False, rows: int | None = None) -> Any:
    """Return a column with the rows, the lookback and the space of RLlib's buffer.

    Args:
        buffer: RLlib's buffer.
        newest: True if its last row is an observation that may still be replaced by one of another kind.
        copy: True to copy arrays that would share memory.
        rows: Number of the first rows to take; default: all.

    Raises:
        ColumnError: rows that are nested differently.
    """
    column = InfiniteLookbackBuffer(None, 0, buffer.space)
    if isinstance(buffer.data, list) and not buffer.finalized:
        items = buffer.data[:rows]
        form, leaves, count = stacked_rows(items[:-1] if newest else items)
        if leaves is not None:
            column.replace(form, leaves, count)
        if newest and items:
            column.stage(items[-1])
    else:
        values, form = flatten(without_lists(buffer.data))
        leaves = [_leaf(value, copy)[:rows] for value in values]
        if leaves:
            column.replace(form, leaves, len(leaves[0]))
    column.provisional = newest
    column.lookback = min(buffer.lookback, column.len_incl_lookback())
    return column


def without_lists(data: Any) -> Any:
    """Return stacked rows with tuples instead of lists in their nesting, as RLlib nests lists too."""
    if isinstance(data, dict):
        return {key: without_lists(value) for key, value in data.items()}
    return tuple(map(without_lists, data)) if isinstance(data, (tuple, list)) else data


def _leaf(value: Any, copy: bool) -> Leaf:
    """Return a stacked array as the leaf of a column: the array itself if it is writable and holds no text."""
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return object_leaf(array.tolist())
    if not copy and array.flags.writeable:
        return array
    return copying.deepcopy(array) if array.dtype == object else np.array(array)
