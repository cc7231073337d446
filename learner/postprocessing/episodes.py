"""Adding a bootstrap step to episodes, and removing it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.core.padding import check_counts
from epibatch.core.structs import map_struct

if TYPE_CHECKING:
    from ...episodes.single_agent_episode import SingleAgentEpisode

__all__ = [
    "add_one_ts_to_episodes_and_truncate",
    "remove_last_ts_from_data",
    "remove_last_ts_from_episodes_and_restore_truncateds",
]


def add_one_ts_to_episodes_and_truncate(episodes: Sequence[SingleAgentEpisode]) -> list[bool]:
    """Lengthen every episode, in place, by one step that repeats its last row with reward 0.

    An episode that did not terminate is truncated afterwards. A placeholder of a missing terminal observation becomes
    the observation before it. This changes the episodes themselves. In a learner pipeline
    `AddOneTsToEpisodesAndTruncate` adds the same rows only to the batch.

    Args:
        episodes: Chunks with at least one step each.

    Returns:
        `is_truncated` of every episode before the call, for
        `remove_last_ts_from_episodes_and_restore_truncateds`.

    Raises:
        EpisodeError: an episode has no step to repeat; no episode was changed.
    """
    for episode in episodes:
        _check_length(episode, 1, "add_one_ts_to_episodes_and_truncate")
    truncateds = [episode.is_truncated for episode in episodes]
    for episode in episodes:
        if episode.lacks_final_obs:
            episode.observations.set(episode.observations.get(-2), at_indices=-1)
        for column in (episode.observations, episode.infos, episode.actions, *episode.extra_model_outputs.values()):
            column.append(column.get(-1))
        episode.rewards.append(map_struct(np.zeros_like, episode.rewards.get(-1)))
        episode.is_truncated = episode.is_truncated or not episode.is_terminated
    return truncateds


def remove_last_ts_from_episodes_and_restore_truncateds(
    episodes: Sequence[SingleAgentEpisode], orig_truncateds: Sequence[bool]
) -> None:
    """Undo `add_one_ts_to_episodes_and_truncate`, in place.

    Args:
        episodes: The lengthened episodes.
        orig_truncateds: The result of that function.

    Raises:
        EpisodeError: an episode has no step, or the flags differ in number from the episodes.
    """
    if len(orig_truncateds) != len(episodes):
        raise EpisodeError(
            "remove_last_ts_from_episodes_and_restore_truncateds",
            expected=f"{len(episodes)} flags, one per episode",
            found=f"{len(orig_truncateds)}",
            do="pass what add_one_ts_to_episodes_and_truncate returned for these episodes",
        )
    for episode in episodes:
        _check_length(episode, 1, "remove_last_ts_from_episodes_and_restore_truncateds")
    for episode, truncated in zip(episodes, orig_truncateds):
        columns = (episode.observations, episode.infos, episode.actions, episode.rewards)
        for column in (*columns, *episode.extra_model_outputs.values()):
            column.pop()
        episode.is_truncated = truncated


def remove_last_ts_from_data(episode_lens: Sequence[int], *data: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Remove the last row of every episode from concatenated rows.

    Args:
        episode_lens: Rows per episode, the last row included.
        *data: Arrays [sum(episode_lens), ...].

    Raises:
        ColumnError: an array has another number of rows, or an episode has none.

    Examples:
        >>> remove_last_ts_from_data([3, 2], np.arange(5))
        (array([0, 1, 3]),)
    """
    counts = check_counts(episode_lens)
    keep = np.ones(int(counts.sum()), np.bool_)
    for rows in (len(array) for array in data):
        if rows != len(keep) or (counts == 0).any():
            raise ColumnError(
                "remove_last_ts_from_data",
                expected=f"{len(keep)} rows, and at least one per episode",
                found=f"{rows} rows, episode lengths {counts.tolist()}",
                do="pass the lengths with the added step",
            )
    keep[np.cumsum(counts) - 1] = False
    return tuple(array[keep] for array in data)


def _check_length(episode: SingleAgentEpisode, least: int, where: str) -> None:
    if len(episode) < least:
        raise EpisodeError(
            f"{where}, episode {episode.id_}",
            expected=f"at least {least} step",
            found=f"{len(episode)} steps",
            do="leave chunks without a step out",
        )
