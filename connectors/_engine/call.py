"""One call of a pipeline: its groups of chunks, what its pieces are told, and which call is running."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.errors import ConfigError, PipelineError, UnknownNameError, nearest

from ...episodes.multi_agent_episode import MultiAgentEpisode
from .chunks import ChunkGroup, chunk_keys
from .columns import Batch
from .grouping import (
    AgentChunk,
    AgentRows,
    RowsByModule,
    acting_rows,
    by_module,
    merged_rows,
    regrouped,
    rows_given_back,
    training_rows,
)
from .layouts import is_plain, merge_columns
from .modules import is_multi
from .sequences import merged_sequences

ADDED_LOSS_MASK = "_added_loss_mask_for_valid_episode_ts"
ROW_MAP = "memorized_map_structure"


class PipelineCall:
    """The circumstances of one pipeline call, and its groups of chunks.

    Columnar pieces run on one group after the other. Such a piece does not need code for several agents, nor for
    recurrent modules beside modules without state. Plain pieces get all episodes and one batch.

    Args:
        rl_module: The module that the batch is for, or that made it; may be None.
        episodes: A list of episodes of one kind, or a VectorEpisodes.
        explore: Whether actions are to explore.
        shared_data: A dict that pieces of several pipelines share.
        metrics: A metrics logger, or None.
        training: Whether the batch is for training; otherwise, of several agents, only those with a new observation
            count.
        plus_one: Whether every chunk has one virtual bootstrap row at its end.
        kwargs: All other keywords of the call.
        from_module: Whether the batch at its start holds the outputs of modules.
        by_hand: Whether a batch may be given that has other rows than `training` says, since a piece runs by itself, or
            in a pipeline of neither side.
        batch: The batch at the start of the call. It may be a batch by module.

    Attributes:
        piece: The plain piece that is running, if one is.
        groups: The groups by key. Episodes of one agent: None, or the module ids of a batch by module. Several agents:
            the module and the kind of spaces, and module ids once mapped.
        several: Whether the episodes have several agents.
        multi: Whether the module is a MultiRLModule.
        mapped: Whether plain pieces see `{module: {column: ...}}` instead of `{column: {key: [items]}}`.
        agent_rows: With several agents, the agents of the chunks of each group.
        acted: With several agents, for each module which of its outputs are rows of agents that are still to act.
            None: all.
        casts_to_float32: Whether arrays are made right before the piece that makes them float32.
        shown: Columns that a plain piece was shown, for those that it leaves alone.
        shown_items: Whether it was shown rows as items, and not batched arrays.
        observations_by: Piece that makes `obs` of the episodes in its own way, and `new_obs` with it; None: no piece.
        leaving: Pieces that do not make `actions_for_env`, since the pipeline does at its end.
        sharing: Pieces that may make it without a copy, since no later piece may write to it.

    Raises:
        PipelineError: single- and multi-agent episodes in one list.
        UnknownNameError: an agent's module that the MultiRLModule does not have.
        ConfigError: one module where several agents need a MultiRLModule.
    """

    piece: Any = None
    agent_rows: Mapping[Any, AgentRows] = MappingProxyType({})
    acted: Mapping[Any, np.ndarray[Any, np.dtype[np.bool_]] | None] = MappingProxyType({})
    groups: dict[Any, ChunkGroup]
    metrics: Any = None
    kwargs: Mapping[str, Any] = MappingProxyType({})
    several: bool = False
    mapped: bool = False
    casts_to_float32: bool = False
    shown_items: bool = False
    shown: Any = None
    observations_by: Any = None
    leaving: Collection[Any] = ()
    sharing: Collection[Any] = ()
    _plain: list[Any] | None = None
    _episode_keys: list[Any] | None = None
    _chunks: list[AgentChunk] | None = None

    def __init__(
        self,
        *,
        rl_module: Any,
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        training: bool = False,
        plus_one: bool = False,
        kwargs: dict[str, Any] | None = None,
        from_module: bool = False,
        by_hand: bool = False,
        batch: Mapping[Any, Any] | None = None,
    ) -> None:
        self.rl_module = rl_module
        self.episodes = episodes
        self.explore = explore
        self.shared_data: dict[str, Any] = {} if shared_data is None else shared_data
        self.training, self.by_hand = training, by_hand
        if metrics is not None:
            self.metrics = metrics
        if kwargs:
            self.kwargs = kwargs
        self.multi = is_multi(rl_module)
        if type(episodes) is list and episodes and _has_several_agents(episodes[0].__class__):
            _check_all_have_several_agents(episodes)
            self.several = True
            self.mapped, self._plus_one = from_module, plus_one
            self.groups = {}
            self._set_groups(self._first_rows(from_module))
            if batch and not from_module:
                self._map_given_batch(batch)
            return
        module = rl_module[DEFAULT_MODULE_ID] if self.multi and DEFAULT_MODULE_ID in rl_module else rl_module
        self.groups = {None: ChunkGroup(self, module, DEFAULT_MODULE_ID, episodes, plus_one)}
        if self.multi and batch:
            self.find_modules(batch)

    # -- groups of episodes of several agents -------------------------------------------------------

    def _first_rows(self, from_module: bool) -> Mapping[Any, AgentRows]:
        """The parts that the call is about, by group."""
        if self.training:
            return training_rows(self.episodes)
        if not from_module:
            return acting_rows(self.episodes)
        mapping = self.shared_data.get(ROW_MAP)
        if isinstance(mapping, RowsByModule) and mapping.are_about(self.episodes):
            self.acted = dict.fromkeys(mapping.rows)
            return mapping.rows
        if not isinstance(mapping, Mapping):
            rows = by_module(acting_rows(self.episodes).values())
            mapping = RowsByModule(rows, self.episodes, self.episode_keys)
        rows, masks = rows_given_back(self.episodes, self.episode_keys, mapping)
        self.acted = {module_id: None if all(mask) else np.array(mask, np.bool_) for module_id, mask in masks.items()}
        return rows

    def _set_groups(self, rows: Mapping[Any, AgentRows], cached: Mapping[Any, ChunkGroup] | None = None) -> None:
        """Let the call be about these parts; what is known about a group already is kept."""
        cached, before = cached or {}, self.groups
        self._chunks, self.agent_rows = None, rows
        self.groups = {key: cached[key] if key in cached else self._group(parts) for key, parts in rows.items()}
        per_sequence = {group.module_id: group.per_sequence for group in before.values() if group.per_sequence}
        for group in self.groups.values() if per_sequence else ():
            group.per_sequence = {**group.per_sequence, **per_sequence.get(group.module_id, {})}

    def _group(self, rows: AgentRows) -> ChunkGroup:
        module = self._module_of(rows)
        return ChunkGroup(self, module, rows.module_id, rows.parts, self._plus_one, rows)

    def _module_of(self, rows: AgentRows) -> Any:
        module_id = rows.module_id
        if self.rl_module is None:
            return None
        if not self.multi:
            raise ConfigError(
                "rl_module",
                expected="a MultiRLModule, since the episodes have several agents",
                found=type(self.rl_module).__name__,
                do="build it with MultiRLModuleSpec(rl_module_specs={module id: RLModuleSpec(...)})",
            )
        if module_id not in self.rl_module:
            raise UnknownNameError(
                f"episode {self.episode_keys[rows.owners[0]]!r}, agent {rows.agents[0]!r}",
                expected=f"a module of the MultiRLModule: {', '.join(map(repr, self.rl_module.keys()))}",
                found=repr(module_id),
                do="let the mapping function name one of them; " + nearest(str(module_id), self.rl_module.keys()),
            )
        return self.rl_module[module_id]

    def _map_given_batch(self, batch: Mapping[Any, Any]) -> None:
        """Let the call be about the rows of a batch that was mapped to modules before the call began."""
        modules = {segment.episode.module_id for episode in self.episodes for segment in episode.segments}
        modules = {name for name in modules if isinstance(batch.get(name), Mapping) and not is_plain(batch[name])}
        if not modules:
            return
        mapping = self.shared_data.get(ROW_MAP)
        rows = list(self.agent_rows.values())
        if not self.training and isinstance(mapping, RowsByModule) and mapping.are_about(self.episodes):
            mapped = mapping.rows
        elif modules <= {group.module_id for group in rows}:
            mapped = by_module(rows)
        else:
            mapped = by_module(training_rows(self.episodes).values())
        self.mapped = True
        self._set_groups(mapped)

    def include_idle_agents(self, keys: set[Any]) -> bool:
        """Let the call be about every agent's steps, if there are columns of agents that did not just observe.

        Returns:
            Whether it was about other chunks before.
        """
        others = bool(keys) and not keys <= {key for group in self.groups.values() for key in group.keys}
        if others:
            self._set_groups(training_rows(self.episodes, keys))
        return others

    def entry(self, group: ChunkGroup) -> Any:
        """Under which key the spaces of a group's rows stand in a Dict of spaces."""
        return group.module_id if self.mapped else group.episodes[0].agent_id

    def by_agent(self) -> dict[Any, ChunkGroup]:
        """Groups of each agent's chunks, in the order in which agents appear."""
        agents: dict[Any, AgentRows] = {}
        for place, chunk in enumerate(self.chunks):
            agent_id = chunk.episode.agent_id
            if agent_id not in agents:
                agents[agent_id] = AgentRows(chunk.key[2])
            agents[agent_id].add(chunk.owner, chunk.key[1], chunk.episode, place)
        return {agent_id: self._group(rows) for agent_id, rows in agents.items()}

    def map_to_modules(self, batch: Batch) -> None:
        """Make one group of each module's rows, whatever spaces its agents had at first.

        Raises:
            ColumnError: a column that differs in shape between agents of one module, or that some lack.
        """
        found: dict[Any, list[Any]] = {}
        for key, group in self.groups.items():
            found.setdefault(group.module_id, []).append(key)
        rows, groups, merged = {}, {}, {}
        for module_id, keys in found.items():
            parts = [self.groups[key] for key in keys]
            if len(keys) == 1:
                rows[module_id], groups[module_id] = self.agent_rows[keys[0]], parts[0]
                merged[module_id] = batch.groups[keys[0]]
                continue
            members = [self.agent_rows[key] for key in keys]
            rows[module_id] = merged_rows(members)
            group = groups[module_id] = self._group(rows[module_id])
            self._inherit(group, parts)
            places = [member.places for member in members]
            if cuts := [part.cut for part in parts if part.cut is not None]:  # of all: they have one module
                order = np.argsort(np.concatenate(places))
                group.cut = cuts[0]._replace(draws=np.concatenate([cut.draws for cut in cuts])[order])
            group.sequences = merged_sequences([part.sequences for part in parts], places, module_id)
            merged[module_id] = merge_columns([(batch.groups[key], self.groups[key]) for key in keys], places, group)
        self.mapped, batch.groups = True, merged
        self._set_groups(rows, groups)

    def _inherit(self, group: ChunkGroup, parts: Sequence[ChunkGroup]) -> None:
        """Let a group of all chunks of a module know what groups of some of them do."""
        group.plus_one = any(part.plus_one for part in parts)
        if self._plain is not None:
            with_bootstrap_step = {
                key: long for part in parts for key, long in zip(part.keys, part.with_bootstrap_step or ())
            }
            group.add_bootstrap_step([with_bootstrap_step[key] for key in group.keys])

    def keep_acting(self) -> dict[Any, np.ndarray[Any, np.dtype[np.int64]]] | None:
        """Leave out the chunks of agents that are not to act: those that ended with their newest observation.

        Returns:
            Per module the positions of the chunks that stayed; modules without any are missing. None: all stayed.
        """
        rows = self.agent_rows
        if all(all(parts.acting) for parts in rows.values()):
            return None
        indices = {key: [i for i, acts in enumerate(parts.acting) if acts] for key, parts in rows.items()}
        indices = {key: positions for key, positions in indices.items() if positions}
        full_groups = {key: group for key, group in self.groups.items() if all(rows[key].acting)}
        self._set_groups({key: rows[key].subset(positions) for key, positions in indices.items()}, full_groups)
        return {key: np.array(positions, np.int64) for key, positions in indices.items()}

    def keep_modules(self, batch: Batch, module_ids: Collection[Any]) -> None:
        """Leave out the chunks and columns of all other modules; the batch has to be mapped to modules."""
        self._set_groups({name: rows for name, rows in self.agent_rows.items() if name in module_ids}, self.groups)
        batch.groups = {module_id: batch.groups[module_id] for module_id in self.groups}

    def rows_by_module(self) -> RowsByModule:
        """Return the agent of each module's rows, for splitting the module's outputs again."""
        return RowsByModule(self.agent_rows, self.episodes, self.episode_keys)

    @property
    def episode_keys(self) -> list[Any]:
        """The keys of the episodes."""
        if self._episode_keys is None:
            self._episode_keys = [key for (key,) in chunk_keys(self.episodes)]
        return self._episode_keys

    @property
    def chunks(self) -> list[AgentChunk]:
        """All agents' chunks, in the order of episodes and agents."""
        if self._chunks is None:
            pairs = [
                (place, AgentChunk(owner, key, part))
                for rows in self.agent_rows.values()
                for place, owner, key, part in zip(rows.places, rows.owners, rows.keys(self.episode_keys), rows.parts)
            ]
            self._chunks = [chunk for _, chunk in sorted(pairs, key=itemgetter(0))]
        return self._chunks

    # -- the modules of episodes of one agent ---------------------------------------------------------

    def find_modules(self, batch: Mapping[Any, Any]) -> None:
        """Let each module that a plain batch has columns for have a group of the same chunks, if it has none yet."""
        found = [name for name in batch if name in self.rl_module and isinstance(batch[name], Mapping)]
        if not found or (not self.mapped and any(map(is_plain, batch.values()))):
            return
        group = self.groups.pop(None, None) or next(iter(self.groups.values()))
        for name in found:
            if name not in self.groups:
                self.groups[name] = group.for_module(self.rl_module[name], name)
        self.mapped = True

    def as_shown(self, batch: Batch) -> Batch:
        """Return a batch with one group per module, as plain pieces see it."""
        group = self.groups.get(None)
        if group is None or not (self.multi and group.batched):
            return batch
        return Batch({group.module_id: batch.groups[None]}, batch.loose)

    def take_keys(self, columns: Iterable[Any]) -> None:
        """Let the chunks be those that columns have keys of; for a piece that is tried without episodes.

        Args:
            columns: Plain per-episode columns, `{key: [items]}`.
        """
        keys = list(dict.fromkeys(key for column in columns for key in column))
        for group in self.groups.values():
            group.keys = keys

    # -- what plain pieces are shown ------------------------------------------------------------------

    def plain_episodes(self) -> list[Any]:
        """The episodes as a plain list, those with a bootstrap step in their place if there are."""
        if not self.several:
            return next(iter(self.groups.values())).plain_episodes()
        return list(self.episodes) if self._plain is None else self._plain

    def add_bootstrap_step(self) -> None:
        """Show plain pieces episodes that have the bootstrap row as a step, and read columns from those.

        What a plain piece writes to them reaches the batch; the episodes that were given stay as they are.
        """
        if self._plain is None:
            parts: dict[int, Any] = {}
            for group in self.groups.values():
                group.add_bootstrap_step()
                parts.update({id(part): long for part, long in zip(group.episodes, group.with_bootstrap_step or ())})
            self._plain = [episode.with_artificial_steps(parts) for episode in self.episodes] if self.several else []

    def invalidate(self, *, rewritten: bool = False) -> None:
        """Forget what is known about the episodes: a plain piece may have changed them.

        Args:
            rewritten: Whether it was one that rewrites newest observations, so that agents of a group may have come to
                differ in spaces.
        """
        if rewritten and self.several and not self.mapped:
            self._set_groups(regrouped(self.agent_rows), self.groups)
        for group in self.groups.values():
            group.invalidate()

    def key_of(self, episode: Any) -> tuple[Any, ...] | None:
        """The key of a chunk of this call; None for a stranger."""
        for group in self.groups.values():
            key = group.key_of(episode)
            if key is not None:
                return key
        return None


def _check_all_have_several_agents(episodes: Sequence[Any]) -> None:
    kinds: list[Any] = list(map(type, episodes))
    strangers = [i for i, kind in enumerate(kinds) if not _has_several_agents(kind)]
    if strangers:
        raise PipelineError(
            "episodes",
            expected="episodes of one kind, all of several agents as the first one",
            found=f"a {type(episodes[strangers[0]]).__name__} at position {strangers[0]}",
            do="run the pipeline once for each kind",
        )


@cache
def _has_several_agents(kind: Any) -> bool:
    return issubclass(kind, MultiAgentEpisode)


_RUNNING: ContextVar[PipelineCall | None] = ContextVar("epibatch_call", default=None)


def running_call() -> PipelineCall | None:
    """The call that is running in this context, if any."""
    return _RUNNING.get()


class within:  # a class: a generator's context manager takes four times as long
    """Make `call` the running one while the context is open."""

    __slots__ = ("_call", "_token")

    _token: Token[PipelineCall | None]

    def __init__(self, call: PipelineCall) -> None:
        self._call = call

    def __enter__(self) -> PipelineCall:
        self._token = _RUNNING.set(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        _RUNNING.reset(self._token)
