"""Views of other agents' columns, aligned on env steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import LookbackError
from epibatch.core.spaces import exact_fill_value
from epibatch.core.structs import flatten, unflatten

from .._engine.agent_table import AgentTable, agents_of, places_of
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .held_rows import blank_rows, leaf_of
from .view import View

Indices = npt.NDArray[np.int64]


class OtherAgents:
    """The observations and actions of other agents, for the rows of all modules of a call.

    A value is taken at the shifted env step of the row's own observation. An agent's action there is its action on
    its observation at the same env step. Agents without one are `fill`, and False in the mask.

    Args:
        piece: The piece that has the views, with `agent_ids` and `as_learner_connector`.
        call: What the pipeline call is about.

    Raises:
        SpaceError: the agents are not known.
    """

    def __init__(self, piece: Any, call: PipelineCall) -> None:
        self._piece, self._call = piece, call
        self._agents = agents_of(piece, piece.agent_ids)
        self._tables: dict[Any, AgentTable] = {}

    def add(self, columns: dict[str, Any], group: ChunkGroup, name: str, view: View) -> None:
        """Add a view's column, and its mask, to a group's rows.

        Raises:
            UnknownNameError: an agent that cannot be there.
            ColumnError: agents' rows differ in shape or nesting, or are no numbers.
            LookbackError: a chunk has lost env steps that existed.
        """
        where = f"{type(self._piece).__name__}, view {name!r}"
        table = self._table(view)
        self._check_history(table, group, view, where)
        times = None
        rows, data = table.rows, None
        if view.base == Columns.OBS and not table.empty:
            data = table.observations()
        elif not table.empty:
            rows, data, times = table.steps(view.base)
        found = self._found(table, rows, times, group, view)
        form, leaves = self._leaves(data, group, view, where)
        fill = 0 if view.fill is None else view.fill
        mask = found >= 0
        values = [_filled(leaf[found], mask, exact_fill_value(leaf.dtype, fill, where)) for leaf in leaves]
        counts = group.counts if self._piece.as_learner_connector else None
        columns[name] = EpisodeColumn(unflatten(form, values), counts)
        if view.masked:
            columns[f"{name}_mask"] = EpisodeColumn(mask, counts)

    def _table(self, view: View) -> AgentTable:
        acting = not self._piece.as_learner_connector
        places_of(self._piece, self._agents, [] if view.agent == "*" else [view.agent])
        history = view.lookback if acting else 0
        key = view.agent, history
        if key not in self._tables:
            only = view.agent != "*"
            agents = [view.agent] if only else self._agents
            self._tables[key] = AgentTable(self._call, agents, self._piece, newest=acting, only=only, history=history)
        return self._tables[key]

    def _check_history(self, table: AgentTable, group: ChunkGroup, view: View, where: str) -> None:
        """Make sure that env steps that a chunk does not hold did not happen either."""
        steps, owners = table.env_steps(group)
        low = np.array([episode.env_t_started - episode.lookback for episode in self._call.episodes], np.int64)
        missing = np.flatnonzero((steps - view.lookback < low[owners]) & (low[owners] > 0))
        if len(missing):
            owner = int(owners[missing[0]])
            raise LookbackError(
                f"{where}, episode {self._call.episode_keys[owner]!r}, a row at env step {steps[missing[0]]}",
                expected=f"{view.lookback} env steps before it",
                found=f"a chunk that begins at env step {low[owner]}, its lookback included",
                do=f"cut episodes with agent_steps={view.lookback}",
            )

    def _found(self, table: AgentTable, rows: Indices, times: Indices | None, group: ChunkGroup, view: View) -> Indices:
        """The number of the row for each value, -1 for none: [rows, others, k], without the axes that it has not."""
        steps, owners = table.env_steps(group)
        env_rows, shifts = table.env_rows(group), np.array(view.shifts)
        at = env_rows[:, None] + shifts
        first, last = (bound[owners][:, None] for bound in table.bounds)
        inside = (steps[:, None] + shifts >= first) & (steps[:, None] + shifts <= last)
        found = np.where(inside[..., None], rows[np.clip(at, 0, len(rows) - 1)], -1)  # [rows, k, agents]
        if times is not None and view.base == Columns.REWARDS and len(times):
            is_late = (found >= 0) & (times[found] > env_rows[:, None, None]) & (shifts < 0)[:, None]
            found = np.where(is_late, -1, found)
        found = found.swapaxes(1, 2)
        if view.agent == "*":
            found = found[np.arange(len(found))[:, None], self._others(group)]
        else:
            found = found[:, 0]
        picked: Indices = found[..., 0] if view.is_single else found
        return picked

    def _others(self, group: ChunkGroup) -> Indices:
        """For each row the places of all agents but its own: [rows, agents - 1]."""
        count = len(self._agents)
        others = np.array([[j for j in range(count) if j != i] for i in range(count)], np.int64).reshape(count, -1)
        places = places_of(self._piece, self._agents, [episode.agent_id for episode in group.episodes])
        row_places: Indices = places if not self._piece.as_learner_connector else np.repeat(places, group.counts)
        picked: Indices = others[row_places]
        return picked

    def _leaves(self, data: Any, group: ChunkGroup, view: View, where: str) -> tuple[Any, list[Any]]:
        """The leaves that the view shows, the last row of each being zeros."""
        if data is None:
            form, like = blank_rows(group, view, where, self._space(group, view))
            return form, [np.zeros((1, *leaf.shape[1:]), leaf.dtype) for leaf in like]
        leaves, data_form = flatten(data)
        form, picked = leaf_of(data_form, view, where)
        leaves = [leaves[i] for i in picked]
        if view.base == Columns.REWARDS and view.space is None:
            leaves = [leaf.astype(np.float64) if leaf.dtype.kind in "biu" else leaf for leaf in leaves]
        return form, leaves

    def _space(self, group: ChunkGroup, view: View) -> Any:
        """The space of a row of the other agents' column, as far as the piece knows it."""
        spaces = {Columns.OBS: self._piece.input_observation_space, Columns.ACTIONS: self._piece.input_action_space}
        space = spaces.get(view.base)
        if not isinstance(space, gym.spaces.Dict):
            return space
        agent = view.agent if view.agent != "*" else next(iter(self._agents))
        return space.spaces.get(agent)


def _filled(values: Any, mask: Any, fill: Any) -> Any:
    if not mask.all():
        values[~mask] = fill
    return values
