"""A column of the batch, or else the episodes' own."""

from __future__ import annotations

from typing import Any

from epibatch.core.columns import Columns, column_meant, nearest_column
from epibatch.core.errors import ColumnError

from .chunks import ChunkGroup
from .columns import EpisodeColumn
from .gather import end_flags, gather_column, latest_observations, next_observations, output_keys

__all__ = ["taken"]

_OF_EPISODES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


def taken(batch: dict[str, Any], group: ChunkGroup, column: str, piece: str) -> Any:
    """What a batch has as a column; if it has none yet, the rows of the episodes.

    In training these are all steps of all chunks, and a bootstrap row each if the pipeline has such rows: the last
    observation, a reward of 0, flags that are False, the last step again. When acting they are the newest observations.

    Args:
        batch: Columns.
        group: The running call.
        column: `obs`, `new_obs`, `actions`, `rewards`, `terminateds`, `truncateds` or the key of a model
            output; any that the batch has.
        piece: Name of the piece, for messages.

    Raises:
        ColumnError: neither has such a column; or the batch has not, and rows of episodes would come too late for it.
    """
    if column in batch:
        return batch[column]
    if group.batched:
        raise _too_late(batch, column, piece)
    if group.training is not False and column == Columns.NEXT_OBS:
        return next_observations(group)
    if group.training is not False and column in _OF_EPISODES:
        return gather_column(group, column, last=0.0 if column == Columns.REWARDS else None)
    if group.training is not False and column in _FLAGS:
        flags = end_flags(group, truncate=group.plus_one)
        return EpisodeColumn(flags[_FLAGS.index(column)], group.counts, single=True)
    if column == Columns.OBS:
        return EpisodeColumn(latest_observations(group))
    if column == Columns.ACTIONS_FOR_ENV and Columns.ACTIONS in batch:
        return batch[Columns.ACTIONS]
    outputs = output_keys(group) if group.training is not False else []
    if column in outputs:
        return gather_column(group, column)
    raise _missing(batch, group, column, piece, outputs)


def _too_late(batch: dict[str, Any], column: str, piece: str) -> ColumnError:
    known = list(map(str, batch))
    return ColumnError(
        f"{piece}, column {column!r}",
        expected="a column of the batch, which BatchIndividualItems has made arrays of",
        found=f"columns {sorted(known)}",
        do=f"{nearest_column(column, known)}; or put {piece} in front of BatchIndividualItems",
    )


def _missing(batch: dict[str, Any], group: ChunkGroup, column: str, piece: str, outputs: list[str]) -> ColumnError:
    known = [
        *map(str, batch),
        *([Columns.OBS] if group.training is False else (*_OF_EPISODES, *_FLAGS, Columns.NEXT_OBS)),
        *outputs,
    ]
    meant = column_meant(column)
    acting = group.training is False and meant in (Columns.ACTIONS, Columns.REWARDS)
    do = "put the piece into the learner pipeline; past actions and rewards are shown by PrevActionsPrevRewards"
    return ColumnError(
        f"{piece}, column {column!r}",
        expected="a column of the batch" + ("" if acting else ", or of the episodes"),
        found="none while acting, when only the newest observation is there"
        if acting
        else f"columns {sorted(set(known))}",
        do=(f"name it {meant!r}, and " if meant != column else "") + do if acting else nearest_column(column, known),
    )
