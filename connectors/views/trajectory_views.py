"""Adds columns some steps away from each row, for acting and for training out of one declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, EpibatchError, PipelineError, SpaceError, UnknownNameError, nearest
from epibatch.core.spaces import exact_fill_value, get_base_struct_from_space, map_space
from epibatch.core.structs import map_struct

from ...episodes.rows import Windows
from .._engine.agent_table import check_agent_ids, check_several
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch, EpisodeColumn
from .._engine.sequences import layout_of
from .._engine.windows import check_window
from ..authoring.column_paths import ColumnPath
from ..columnar_piece import Piece
from ..tensor_step import TensorStep
from .held_rows import check_infos, id_rows, windows_of
from .other_agents import OtherAgents
from .view import IDS, View, as_views


def stacked_space(space: Any, view: View) -> Any:
    """Return the space of a view of a column.

    Args:
        space: The column's space.
        view: One shift leaves the space as it is, but for the fill value; several put an axis before each leaf.

    Raises:
        ColumnError: the type of a part of the space cannot hold the fill value.
        SpaceError: a part of the space has no such stack (Text, Graph, Sequence).
        UnknownNameError: the view is of a part that the space does not have.

    Examples:
        >>> space = stacked_space(gym.spaces.Box(1, 2, (3,)), View("obs", "-1:0"))
        >>> space.shape, float(space.low.min()), float(space.high.max())
        ((2, 3), 0.0, 2.0)
    """
    for key in (view.column or "").split("/")[1:]:
        parts = _parts(space)
        if key not in parts:
            where = f"the view {view.column!r} of {space}"
            raise UnknownNameError(where, expected="a part of it", found=repr(key), do=nearest(key, parts))
        space = parts[key]
    count = None if view.is_single else len(view.shifts)
    return map_space(partial(_stacked, count, 0 if view.fill is None else view.fill), space)


def _parts(space: Any) -> dict[str, Any]:
    struct = get_base_struct_from_space(space)
    named = struct.items() if isinstance(struct, dict) else enumerate(struct) if isinstance(struct, tuple) else ()
    return {str(key): part for key, part in named}


def _stacked(count: int | None, fill: float, space: Any) -> Any:
    if isinstance(space, gym.spaces.Box):
        lead = () if count is None else (count,)
        value = exact_fill_value(np.dtype(space.dtype), fill, "a view of the observations")
        low, high = np.minimum(space.low, value), np.maximum(space.high, value)
        shape = (*lead, *space.shape)
        return gym.spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=low.dtype.type)
    if count is None and isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return space
    if isinstance(space, gym.spaces.Discrete) and space.start == 0:
        return gym.spaces.MultiDiscrete([int(space.n)] * int(count or 1))
    if isinstance(space, gym.spaces.MultiDiscrete):
        nvec = np.broadcast_to(space.nvec, (int(count or 1), *space.shape))
        return gym.spaces.MultiDiscrete(np.array(nvec))
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary([int(count or 1), *space.shape])
    raise SpaceError(
        "a view of the observations",
        expected="Box, MultiDiscrete, MultiBinary or Discrete from 0 on, or Dicts and Tuples of these",
        found=repr(space),
        do="bring the observations to numbers with an earlier piece (FlattenObservations)",
    )


_OWN_ROWS = (
    *(Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK, Columns.SEQ_LENS),
    *(Columns.STATE_IN, Columns.STATE_OUT, Columns.INFOS, Columns.ADVANTAGES, Columns.VALUE_TARGETS),
)


class TrajectoryViews(Piece):
    """Adds a column for each view: the value of another step for every row, such as the reward before.

    Put pieces with the same views into both pipelines. The module is then trained on the values that it acted on,
    wherever episodes were cut. Chunks keep as many earlier steps as the views reach back. Values before an episode's
    start are the view's `fill`. Positive shifts are for training. After a chunk's last step there is one observation,
    so the next observation of the last row is real. All other values there are `fill`, even if the episode continues
    in another chunk. The bootstrap row is the step after the last one, so values before it are real.

    A view named `obs` replaces the observations, and the observation space that the module is built for is stacked:
    View("obs", "-3:0") is frame stacking on a new first axis, [rows, 4, ...].

    Ranges and lists are not copied before the batch is made (a window of 50 steps is 50 times its column).

    Args:
        views: Name of the new column -> View, or a dict of its arguments.
        per_module: Module id -> views that only this module's rows have; the one module of one agent is
            "default_policy".
        agent_ids: For views of other agents: all agents that can be there, in the order that is kept; default: those of
            the observation spaces.
        as_learner_connector: Whether the batch is for training; default: if no view is for acting.

    Raises:
        ConfigError: invalid views, no view for this side, or a name that the pipeline itself needs.
        LookbackError: a chunk starts in the middle of an episode and keeps too few steps before it.
        UnknownNameError: a column that the episodes do not have.
        ColumnError: rows of several shapes, or that are no numbers; or of a type that cannot hold a view's `fill`.
        PipelineError: the piece comes after the one that adds the time axis; or before it, with views that
            recurrent modules get once per sequence.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[0, 1, 2], actions=[7, 8], rewards=[0.5, 1.5],
        ...                              len_lookback_buffer=0)
        >>> views = {"prev_rewards": View("rewards", -1), "next_actions": View("actions", 1)}
        >>> TrajectoryViews(views=views)(batch={}, episodes=[episode])
        {'prev_rewards': {('e',): [np.float64(1.5)]}}
        >>> batch = TrajectoryViews(views=views, as_learner_connector=True)(batch={}, episodes=[episode])
        >>> {name: column["e",][0].tolist() for name, column in batch.items()}
        {'prev_rewards': [0.0, 0.5], 'next_actions': [8, 0]}
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    needs_episodes: ClassVar[bool] = True
    uses_spaces: ClassVar[bool] = True
    views: Mapping[str, Any] | None = None
    per_module: Mapping[str, Mapping[str, Any]] | None = None
    multi_agent: bool = False
    agent_ids: Sequence[Any] | None = None
    as_learner_connector: bool | None = None
    declared = False
    """True if a config has put the piece there, since modules declare its views; no argument."""

    def __post_init__(self) -> None:
        """Make views of the data, and check them."""
        self.agent_ids = check_agent_ids(self, self.agent_ids)
        self.views = self._views = as_views(self.views or {}, "TrajectoryViews.views")
        self.per_module = self._per_module = {
            module_id: as_views(module_views, f"TrajectoryViews.per_module[{module_id!r}]")
            for module_id, module_views in (self.per_module or {}).items()
        }
        all_views = self._all_views()
        if self.as_learner_connector is None:
            self.as_learner_connector = not any(view.act for _, view in all_views)
        self._check(all_views)
        self.per_sequence = all(view.per_sequence for _, view in all_views)
        self._declare()

    def take_side(self, training: bool) -> None:
        """See `ConnectorV2.take_side`."""
        super().take_side(training)
        self._declare()

    def _all_views(self) -> list[tuple[str, View]]:
        return [view for views in (self._views, *self._per_module.values()) for view in views.items()]

    def _declare(self) -> None:
        """Declare what the batches of this side get."""
        all_views = self._all_views()
        if not any(self._is_for_this_side(view) for _, view in all_views):
            side = "train batches" if self.as_learner_connector else "batches to act on"
            other = "env-to-module" if self.as_learner_connector else "learner"
            do = f"put the piece into the {other} pipeline only"
            found = f"none: {', '.join(name for name, _ in all_views)} are for the other side"
            raise ConfigError("TrajectoryViews", expected=f"a view that {side} have", found=found, do=do)
        side_views = [(name, view) for name, view in all_views if self._is_for_this_side(view)]
        self.lookback = max((view.lookback for _, view in side_views), default=0)
        names = [column for name, view in side_views for column in (name, *([f"{name}_mask"] if view.masked else []))]
        self.writes = tuple(dict.fromkeys(names))  # type: ignore[misc]
        self.removes = (Columns.OBS,) if Columns.OBS in self.writes else ()

    def _is_for_this_side(self, view: View) -> bool:
        return view.train if self.as_learner_connector else bool(view.act)

    def _check(self, views: list[tuple[str, View]]) -> None:
        """Refuse what no batch can have."""
        if not views:
            do = 'pass views={"prev_rewards": View("rewards", shift=-1)}'
            raise ConfigError("TrajectoryViews.views", expected="at least one view", found="none", do=do)
        for name, view in views:
            where = f"TrajectoryViews, view {name!r}"
            is_same = view.column == name and view.shifts == (0,) and view.is_single
            if name in _OWN_ROWS and not (is_same or (name == view.column == Columns.INFOS)):
                do = f"give the view another name, such as 'view_of_{name}'"
                raise ConfigError(where, expected="a column of its own", found=f"{name!r}", do=do)
            if view.column == Columns.INFOS and name != Columns.INFOS:
                do = f'call it "infos", or view one entry as numbers: {name!r}: View("infos/speed", ...)'
                raise ConfigError(where, expected="whole infos under their own name", found=repr(name), do=do)
            if name == Columns.OBS and (view.base != Columns.OBS or view.agent is not None or view.per_sequence):
                do = 'give the view another name; View("obs", ...) may replace the observations'
                raise ConfigError(where, expected="observations", found=repr(view), do=do)
        if len({view.per_sequence for _, view in views}) > 1:
            do = "make two pieces: those with per_sequence=True go after AddTimeDimToBatchAndZeroPad"
            found = f"both: {', '.join(f'{name} {view.per_sequence}' for name, view in views)}"
            raise ConfigError("TrajectoryViews", expected="per_sequence alike in all", found=found, do=do)
        if any(Columns.OBS in module_views for module_views in self._per_module.values()):
            do = "put it into views, which are those of all modules"
            raise ConfigError("TrajectoryViews.per_module", expected="no view 'obs'", found="one", do=do)

    def to_dict(self) -> dict[str, Any]:
        """The arguments as plain data, spaces of views as dicts.

        Raises:
            SpaceError: a view has a space of a kind that has no dict.
        """
        out: dict[str, Any] = {"views": {name: view.to_dict() for name, view in self._views.items()}}
        if self._per_module:
            out["per_module"] = {
                module_id: {name: view.to_dict() for name, view in views.items()}
                for module_id, views in self._per_module.items()
            }
        if self.agent_ids is not None:
            out["agent_ids"] = self.agent_ids
        return {**out, "as_learner_connector": True} if self.as_learner_connector else out

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of the view named `obs`, if there is one; otherwise the one before."""
        view = self._views.get(Columns.OBS)
        if view is None or not self._is_for_this_side(view):
            return input_observation_space
        return stacked_space(input_observation_space, view)

    def clone(self, *, share_state: bool = False) -> Any:
        """See `ConnectorV2.clone`; views that modules declare are declared in the clone, too."""
        clone = super().clone(share_state=share_state)
        clone.declared = self.declared
        return clone

    # -- columns -------------------------------------------------------------------------------

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the columns."""
        for name, view in self.views_of(group).items():
            if view.agent is not None:
                check_several(self, group)
            elif self._is_for_this_side(view):
                try:
                    self._add(columns, name, view, group)
                except (UnknownNameError, ConfigError) as error:
                    raise self._removable(error, name) from None
        return columns

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Add the columns to every module's batch, those of other agents last."""
        batch = super().run_all(batch, call)
        others = None
        for key, group in call.groups.items():
            for name, view in self.views_of(group).items():
                if view.agent is not None and self._is_for_this_side(view):
                    others = others or OtherAgents(self, call)
                    try:
                        others.add(batch.groups.setdefault(key, {}), group, name, view)
                    except (UnknownNameError, ConfigError) as error:
                        raise self._removable(error, name) from None
        return batch

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """True if all views are of earlier observations, actions and rewards."""
        known = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
        views = [view for part in (self._views, *self._per_module.values()) for view in part.values()]
        others = (view for view in views if view.base not in known or view.per_sequence or view.agent)
        return not any(map(self._is_for_this_side, others))

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the columns."""
        for name, view in self.views_of(step.group).items():
            if self._is_for_this_side(view):
                columns = {**columns, **self._of_tensors(name, view, step)}
        return columns

    def _of_tensors(self, name: str, view: View, step: TensorStep) -> dict[str, Any]:
        import torch

        rows, known = step.window(view.base, view.lookback, self._space_of(view))
        at = view.lookback + view.shifts[0] if view.is_single else [view.lookback + shift for shift in view.shifts]
        fill = 0 if view.fill is None else view.fill
        path = ColumnPath(view.base, tuple((view.column or "").split("/")[1:]))

        def shown(leaf: Any) -> Any:
            mask = known.reshape(*known.shape, *[1] * (leaf.ndim - 2))
            return torch.where(mask, leaf, torch.as_tensor(fill, dtype=leaf.dtype))[:, at]

        out = {name: map_struct(shown, path.part(rows))}
        return {**out, f"{name}_mask": known[:, at]} if view.masked else out

    def _removable(self, error: EpibatchError, name: str) -> EpibatchError:
        """The error, which says how an algorithm gets rid of the view if it was given while it ran."""
        if self.declared:
            error.args = (f"{error}\n            or, if add_view gave the view: algo.remove_view({name!r})",)
        return error

    def views_of(self, group: ChunkGroup) -> dict[str, View]:
        """All views that rows of a group have.

        Raises:
            ConfigError: there is one module, and views are for others.
        """
        if not group.several and self._per_module and DEFAULT_MODULE_ID not in self._per_module:
            raise ConfigError(
                "TrajectoryViews.per_module",
                expected=f"views of {DEFAULT_MODULE_ID!r}, the module of episodes of one agent",
                found=", ".join(map(repr, self._per_module)),
                do="pass them as views; per_module is for several agents",
            )
        return {**self._views, **self._per_module.get(group.module_id, {})}

    def _add(self, batch: dict[str, Any], name: str, view: View, group: ChunkGroup) -> None:
        where = f"TrajectoryViews, view {name!r}"
        self._check_place(view, group, where)
        training = self.as_learner_connector
        counts = group.counts if training else np.ones(len(group.episodes), np.int64)
        if view.base in IDS:
            rows = id_rows(group, view.base, counts.tolist(), where)
            batch[name] = EpisodeColumn(rows, counts if training or isinstance(rows, list) else None, item_per_row=True)
        elif view.column == Columns.INFOS:
            batch[name] = EpisodeColumn(_infos(group, view, training, where), counts, item_per_row=True)
        else:
            self._add_window(batch, name, view, group, where)

    def _add_window(self, batch: dict[str, Any], name: str, view: View, group: ChunkGroup, where: str) -> None:
        """Add the values, and their mask."""
        training = self.as_learner_connector

        def windows(chunks: ChunkGroup) -> Windows:
            return windows_of(chunks, view, where, self._space_of(view), newest=not training)

        rows, mask = windows(group), f"{name}_mask"
        if training and view.per_sequence and group.stateful:
            layout = layout_of(group)
            at, per_chunk = layout.first_rows, np.bincount(layout.sequence_chunks, minlength=len(group.counts))
            batch[name] = EpisodeColumn(rows.at(at), per_chunk)
            group.has_per_sequence(name, lambda chunks, at: windows(chunks).at(at))
            if view.masked:
                batch[mask] = EpisodeColumn(rows.mask()[at], per_chunk)
                group.has_per_sequence(mask, lambda chunks, at: windows(chunks).mask()[at])
            return
        counts = group.counts if training else None
        batch[name] = EpisodeColumn(rows if training else rows.joined(), counts)
        if view.masked:
            batch[mask] = EpisodeColumn(rows.mask(), counts)
        for column in (name, mask) if view.per_sequence and not training else ():
            group.has_per_sequence(column)

    def _space_of(self, view: View) -> Any:
        if view.base == Columns.OBS:
            return self.input_observation_space
        return self.input_action_space if view.base == Columns.ACTIONS else None

    def _check_place(self, view: View, group: ChunkGroup, where: str) -> None:
        """Make sure that a recurrent module's time axis is added at the right side of this piece."""
        if group.call.by_hand or not group.stateful:
            return
        added = group.rows is not None if group.training else "_added_single_ts_time_rank" in group.shared_data
        if added != view.per_sequence:
            side = "after" if view.per_sequence else "before"
            raise PipelineError(
                where,
                expected=f"to stand {side} AddTimeDimToBatchAndZeroPad, as per_sequence is {view.per_sequence}",
                found="the other side of it",
                do=f"put views with per_sequence={view.per_sequence} into a piece of their own {side} it",
            )


def _infos(group: ChunkGroup, view: View, training: bool | None, where: str) -> list[Any]:
    """Whole info dicts; an empty one where there is none."""
    (shift,) = view.shifts
    out: list[Any] = []
    firsts = np.zeros_like(group.lengths) if training else group.lengths
    counts = group.counts if training else np.ones_like(firsts)
    check_infos(group, where)
    check_window(group, view.base, shift, group.counts if training else None, where)
    for episode, length, first, count in zip(group.plain_episodes(), group.lengths, firsts + shift, counts):
        for at in range(first, first + count):
            has_info = -episode.infos.lookback <= at <= length
            out.append(episode.infos.get(at, neg_index_as_lookback=True) if has_info else {})
    return out
