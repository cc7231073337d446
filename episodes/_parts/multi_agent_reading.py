"""Reading and writing the columns of a multi-agent episode by env step or by each agent's own steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import EpisodeError, EpisodeIndexError, UnknownNameError, nearest
from epibatch.core.structs import flatten

from .._storage.buffer_source import NOTHING
from .._storage.indexing import Indices, note_history, position_of, positions_of
from .agent_segment import AgentRecord
from .multi_agent_columns import OF_OBSERVATIONS, AgentColumn

if TYPE_CHECKING:
    from .multi_agent_getters import MultiAgentGetters

__all__ = ["Request", "read", "write"]

_SEVERAL = (slice, list, tuple, np.ndarray, range, type(None))


@dataclass(frozen=True, slots=True)
class Request:
    """Which rows of which column.

    Args:
        name: "observations", "infos", "actions", "rewards" or "extra_model_outputs".
        indices: An int, a slice, a list of ints, or None for the whole chunk.
        neg_index_as_lookback: Whether negative indices count backwards from the chunk's start.
        env_steps: Whether indices are env steps; otherwise each agent's own.
        fill: Value of rows that do not exist; None leaves them out.
        one_hot: Whether discrete values become one-hot rows.
        return_list: Whether to give a dict for each env step.
        key: Which of the model outputs; None for all of them.
    """

    name: str
    indices: Indices
    neg_index_as_lookback: bool
    env_steps: bool = True
    fill: Any = None
    one_hot: bool = False
    return_list: bool = False
    key: str | None = None

    @property
    def several(self) -> bool:
        """Whether rows are stacked, rather than one given as it is."""
        return isinstance(self.indices, _SEVERAL)


def read(episode: MultiAgentGetters, agent_ids: Any, request: Request) -> Any:
    """The rows of each agent that has any, by agent.

    Raises:
        EpisodeIndexError: an index outside the chunk and no fill.
        EpisodeError: a list of dicts is asked for by agents' steps.
        UnknownNameError: a model output that no agent has.
    """
    if request.key is not None:
        _check_key(episode, request.key)
    records = list(_records(episode, agent_ids))
    if not request.env_steps:
        if request.return_list:
            raise EpisodeError(
                f"episode {episode.id_}, get_{request.name}",
                expected="env_steps=True for return_list=True: a dict for each env step",
                found="env_steps=False",
                do="leave one of them out",
            )
        return _present(records, request, _by_agent_steps)
    if request.return_list:
        steps = _env_steps(episode, request, True) if request.several else [_env_step(episode, request)]
        return [_present(records, request, _one, int(env_t)) for env_t in steps]
    if not request.several:
        return _present(records, request, _one, _env_step(episode, request))
    return _present(records, request, _many, _env_steps(episode, request, request.fill is not None))


def _present(records: list[tuple[Any, AgentRecord]], request: Request, of: Any, *where: Any) -> dict[Any, Any]:
    """What `of` gives for each agent, but for those of which it gives NOTHING."""
    found = ((agent, _of_outputs(record, request, of, *where)) for agent, record in records)
    return {agent: rows for agent, rows in found if rows is not NOTHING}


def _records(episode: MultiAgentGetters, agent_ids: Any) -> Iterator[tuple[Any, AgentRecord]]:
    """Agents with observations in this chunk, in their order; all, or those asked for."""
    agents = episode._agents
    wanted: Collection[Any] | None = None
    if agent_ids is not None:
        one = not isinstance(agent_ids, (list, tuple, set, frozenset, Mapping, type({}.keys())))
        wanted = [agent_ids] if one or (isinstance(agent_ids, tuple) and agent_ids in agents) else agent_ids
    for agent, record in agents.items():
        if record.segments and (wanted is None or agent in wanted):
            yield agent, record


def _of_outputs(record: AgentRecord, request: Request, of: Any, *where: Any) -> Any:
    """What `of` gives, or a dict of that for each model output if all are asked for."""
    if request.name != "extra_model_outputs" or request.key is not None:
        return of(record, request, *where)
    parts = {key: of(record, replace(request, key=key), *where) for key in _keys(record)}
    return {key: rows for key, rows in parts.items() if rows is not NOTHING} or NOTHING


def _keys(record: AgentRecord) -> list[str]:
    """The model outputs of an agent."""
    keys = dict.fromkeys(key for segment in record.segments for key in segment.episode.extra_model_outputs)
    return list({**keys, **dict.fromkeys(record.extras)})


def _check_key(episode: MultiAgentGetters, key: str) -> None:
    records = [record for record in episode._agents.values() if record.segments]
    if any(key in record.extras or key in s.episode.extra_model_outputs for record in records for s in record.segments):
        return
    if any(record.action is not NOTHING or _stepped(record) or _keys(record) for record in records):
        raise UnknownNameError(
            f"episode {episode.id_}",
            expected="the key of an extra model output of some agent",
            found=repr(key),
            do=nearest(key, {name for record in records for name in _keys(record)}),
        )


def _stepped(record: AgentRecord) -> bool:
    return any(len(segment.steps) > 1 for segment in record.segments)


# -- which rows ----------------------------------------------------------------------------------


def _total(episode: MultiAgentGetters, request: Request) -> int:
    return episode.lookback + len(episode) + (request.name in OF_OBSERVATIONS)


def _env_step(episode: MultiAgentGetters, request: Request) -> int:
    lookback, total = episode.lookback, _total(episode, request)
    position = position_of(request.indices, lookback, total, request.neg_index_as_lookback)
    note_history(position, lookback, episode.env_t_started)
    if request.fill is None and not 0 <= position < total:
        raise _outside(episode, request, total)
    return episode.env_t_started - lookback + position


def _env_steps(episode: MultiAgentGetters, request: Request, beyond: bool) -> Any:
    """Env steps asked for, as a range or an array; `beyond`: those outside the chunk too."""
    lookback, total, indices = episode.lookback, _total(episode, request), request.indices
    positions = positions_of(indices, lookback, total, request.neg_index_as_lookback, beyond)  # type: ignore[arg-type]
    base = episode.env_t_started - lookback
    if len(positions):
        first, last = int(min(positions)), int(max(positions))
        note_history(first, lookback, episode.env_t_started)
        if not beyond and (first < 0 or last >= total):
            raise _outside(episode, request, total)
    if isinstance(positions, range):
        return range(base + positions.start, base + positions.stop, positions.step)
    return positions + base


def _outside(episode: MultiAgentGetters, request: Request, total: int) -> EpisodeIndexError:
    return EpisodeIndexError(
        f"episode {episode.id_}, {request.name} by env step",
        expected=f"indices within {total} env steps ({episode.lookback} of them lookback)",
        found=repr(request.indices),
        do="ask for env steps that exist, or pass `fill=`",
    )


# -- reading -------------------------------------------------------------------------------------


def _one(record: AgentRecord, request: Request, env_t: int) -> Any:
    """An agent's row at one env step; NOTHING if there is none and no fill."""
    name, fill = request.name, request.fill
    if fill is None:
        for segment in reversed(record.segments):
            steps = segment.steps
            if env_t < steps[0]:
                continue
            row = len(steps) - 1 if steps[-1] == env_t else bisect_left(steps, env_t)
            if row == len(steps) or steps[row] != env_t:
                return NOTHING
            if name in OF_OBSERVATIONS and not request.one_hot:
                buffer = getattr(segment.episode, name)
                return buffer.get(row - buffer.lookback, neg_index_as_lookback=True)
            return AgentColumn(record, name, request.key).at(env_t, request.one_hot)
        return NOTHING
    column = AgentColumn(record, name, request.key)
    row = int(column.find([env_t])[0])
    return column.get((column.count if row < 0 else row) - column.lookback, True, fill, request.one_hot)


def _many(record: AgentRecord, request: Request, steps: Any) -> Any:
    """An agent's rows at several env steps, stacked; NOTHING if there are none, and no fill or no env step."""
    if not len(steps):
        return NOTHING
    column = AgentColumn(record, request.name, request.key)
    if isinstance(steps, range) and steps.step == 1 and request.fill is None:
        return column.between(steps.start, steps.stop, request.one_hot)
    return column.at_each(steps, request.fill, request.one_hot)


def _by_agent_steps(record: AgentRecord, request: Request) -> Any:
    """An agent's rows by index of its own; NOTHING if there are none."""
    column = AgentColumn(record, request.name, request.key, latest=True)
    rows = column.get(request.indices, request.neg_index_as_lookback, request.fill, request.one_hot)
    if request.several:
        leaves = [rows] if request.name == "infos" else flatten(rows)[0]
        if not leaves or not len(leaves[0]):
            return NOTHING
    return rows


# -- writing -------------------------------------------------------------------------------------


def write(episode: MultiAgentGetters, new_data: Any, request: Request) -> None:
    """Overwrite rows of some agents.

    Args:
        episode: Where.
        new_data: For each agent as many rows as the getter with the same indices gives, or one for an int.
        request: Which rows.

    Raises:
        UnknownNameError: an agent without observations in this chunk.
        EpisodeIndexError: rows that do not exist, or another number of them.
    """
    if not isinstance(new_data, Mapping):
        raise EpisodeError(
            f"episode {episode.id_}, set_{request.name}",
            expected="new data by agent",
            found=f"{type(new_data).__name__} {new_data!r}",
            do="pass {agent: rows}",
        )
    if request.key is not None:
        _check_key(episode, request.key)
    columns = {agent: AgentColumn(_known(episode, agent), request.name, request.key, latest=not request.env_steps)
               for agent in new_data}  # fmt: skip
    chosen = {agent: _rows_to_write(episode, agent, column, request) for agent, column in columns.items()}
    for agent, column in columns.items():
        rows = chosen[agent]
        if isinstance(rows, int):
            column.write_row(rows, new_data[agent])
        else:
            column.write(rows, new_data[agent], f"episode {episode.id_}, set_{request.name}, agent {agent!r}")


def _known(episode: MultiAgentGetters, agent: Any) -> AgentRecord:
    record = episode._agents.get(agent)
    if record is None or not record.segments:
        known = [str(one) for one, its in episode._agents.items() if its.segments]
        raise UnknownNameError(
            f"episode {episode.id_}",
            expected="an agent with observations in this chunk",
            found=repr(agent),
            do=nearest(str(agent), known),
        )
    return record


def _rows_to_write(episode: MultiAgentGetters, agent: Any, column: AgentColumn, request: Request) -> Any:
    """Absolute rows of a column: an int, or several."""
    if request.env_steps:
        wanted = _env_steps(episode, request, False) if request.several else [_env_step(episode, request)]
        rows = column.find(wanted)
        rows = rows[rows >= 0]
        if request.several:
            return rows
        exists = len(rows) > 0
    else:
        places = column.lookback, column.count, request.neg_index_as_lookback
        if request.several:
            several = positions_of(request.indices, *places, False)  # type: ignore[arg-type]
            if not len(several) or (min(several) >= 0 and max(several) < column.count):
                return several
            exists = False
        else:
            rows = np.array([position_of(request.indices, *places)])
            exists = bool(0 <= rows[0] < column.count)
    if not exists:
        raise EpisodeIndexError(
            f"episode {episode.id_}, set_{request.name}, agent {agent!r}",
            expected=f"{'env' if request.env_steps else 'agent'} steps at which the agent has a row",
            found=repr(request.indices),
            do="ask the getter with the same indices which agents have rows there",
        )
    return int(rows[0])
