"""Infos of a multi-agent environment that belong to no agent: those under `__common__`, by env step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from epibatch.core.errors import EpisodeIndexError

from .._storage.growing_column import NOTHING
from .agent_column import RowRequest
from .arguments import as_info
from .env_step import COMMON

CommonInfos: TypeAlias = "dict[int, dict[str, Any]]"
"""From the env step of the whole episode to the info dict that came with its observations."""


def common_info_of(infos: Mapping[Any, Any], env_t: int, id_: Any) -> CommonInfos:
    """Return the info that belongs to no agent, by its env step; {} if there is none.

    Args:
        infos: By agent.
        env_t: The env step.
        id_: The episode's name.

    Raises:
        EpisodeError: it is no dict.
    """
    return {env_t: as_info(infos[COMMON], id_)} if infos and COMMON in infos else {}


def read_common(infos: CommonInfos, request: RowRequest, steps: Any) -> Any:
    """Return the info at an env step, or a list of those at several; NOTHING if there are none.

    Args:
        infos: Infos by env step.
        request: What was asked for.
        steps: One env step, or several.
    """
    if type(steps) is int:
        return infos.get(steps, NOTHING if request.fill is None else request.fill)
    rows = [infos.get(int(env_t), request.fill) for env_t in steps]
    return [row for row in rows if row is not None] or NOTHING


def common_rows_to_write(infos: CommonInfos, new_data: Any, request: RowRequest, steps: Any, where: str) -> CommonInfos:
    """Return new infos by env step.

    Args:
        infos: The infos there are.
        new_data: An info, or a list of infos, as `read_common` returns them.
        request: Where they belong.
        steps: The same as one env step, or several.
        where: The call, for the message.

    Raises:
        EpisodeIndexError: more or fewer infos than there are at these steps.
        EpisodeError: something is no dict.
    """
    rows = list(new_data) if request.several else [new_data]
    at = [int(env_t) for env_t in (steps if request.several else [steps]) if int(env_t) in infos]
    if not at or len(at) != len(rows):
        raise EpisodeIndexError(
            f"{where}, {COMMON!r}",
            expected=f"one info for each env step that has one: {len(at)}",
            found=f"{len(rows)} for {request.indices!r}",
            do="pass what get_infos gives for the same indices",
        )
    return {env_t: as_info(row, where) for env_t, row in zip(at, rows)}
