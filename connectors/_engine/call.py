"""One call of a pipeline: its groups of chunks, what its pieces are told, and which call is running."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core import DEFAULT_MODULE_ID, ROW_MAP
from epibatch.core.errors import ConfigError, PipelineError, UnknownNameError, nearest
from epibatch.core.rl_module.module_facts import is_multi

from ...episodes.chunk_table import ChunkTable
from ...episodes.chunks_by_module import ChunksByModule
from ...episodes.multi_agent_episode import MultiAgentEpisode
from .chunks import ChunkGroup, chunk_keys
from .columns import Batch
from .grouping import (
    AgentChunks,
    Ints,
    Key,
    RowsByModule,
    acting_chunks,
    by_module,
    by_spaces,
    chunks_given_back,
    chunks_of_modules,
    order_of,
    training_chunks,
)
from .layouts import is_plain, merge_columns
from .sequences import merged_sequences

ADDED_LOSS_MASK = "_added_loss_mask_for_valid_episode_ts"


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
        drawn: Whether they are chunks of single agents, which are grouped by module already.
        multi: Whether the module is a MultiRLModule.
        mapped: Whether plain pieces see `{module: {column: ...}}` instead of `{column: {key: [items]}}`.
        chunks: With several agents, those of all agents; a group has the positions of its own among them.
        still_acting: With several agents, a mask of the rows of each module's outputs that are of agents that are
            still to act: bool [rows]; None: all.
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
    chunks: AgentChunks
    still_acting: Mapping[Any, npt.NDArray[np.bool_] | None] = MappingProxyType({})
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
        self.drawn = isinstance(episodes, ChunksByModule)
        if self.drawn or (type(episodes) is list and episodes and _has_several_agents(episodes[0].__class__)):
            _check_all_have_several_agents(episodes)
            self.several = True
            self.mapped, self._plus_one = from_module, plus_one
            self.groups = {}
            self._begin(*self._chunks_by_group(from_module, batch))
            return
        module = rl_module[DEFAULT_MODULE_ID] if self.multi and DEFAULT_MODULE_ID in rl_module else rl_module
        self.groups = {None: ChunkGroup(self, module, DEFAULT_MODULE_ID, episodes, plus_one)}
        if self.multi and batch:
            self.find_modules(batch)

    # -- groups of episodes of several agents -------------------------------------------------------

    def _chunks_by_group(
        self, from_module: bool, batch: Mapping[Any, Any] | None
    ) -> tuple[AgentChunks, Mapping[Any, Ints]]:
        """All agents' chunks, and the positions of those of each group: by module if the batch at the start is so."""
        mapping = self.shared_data.get(ROW_MAP)
        if from_module and not self.training:
            return self._chunks_of_outputs(mapping)
        if isinstance(self.episodes, ChunksByModule):
            return chunks_of_modules(self.episodes)
        chunks, groups = training_chunks(self.episodes) if self.training else acting_chunks(self.episodes)
        if not batch or from_module or not (given := self._modules_in(batch)):
            return chunks, groups
        self.mapped = True
        if not self.training and isinstance(mapping, RowsByModule) and mapping.are_about(self.episodes):
            return mapping.chunks, mapping.groups
        if not given <= {module_id for module_id, _ in groups}:
            chunks, groups = training_chunks(self.episodes)
        return chunks, by_module(groups)

    def _modules_in(self, batch: Mapping[Any, Any]) -> set[Any]:
        """The modules that a batch has rows of, as it was mapped to modules before the call began."""
        names = {name for name, value in batch.items() if isinstance(value, Mapping) and not is_plain(value)}
        return names and names & {part.episode.module_id for episode in self.episodes for part in episode.segments}

    def _chunks_of_outputs(self, mapping: Any) -> tuple[AgentChunks, Mapping[Any, Ints]]:
        """The chunks of agents that are still to act, by module."""
        if isinstance(mapping, RowsByModule) and mapping.are_about(self.episodes):
            self.still_acting = dict.fromkeys(mapping.groups)
            return mapping.chunks, mapping.groups
        if not isinstance(mapping, Mapping):
            chunks, groups = acting_chunks(self.episodes)
            mapping = RowsByModule(chunks, by_module(groups), self.episodes, self.episode_keys)
        chunks, places = chunks_given_back(self.episodes, self.episode_keys, mapping)
        self.still_acting = {module_id: None if (at >= 0).all() else at >= 0 for module_id, at in places.items()}
        return chunks, {module_id: at[at >= 0] for module_id, at in places.items() if (at >= 0).any()}

    def _begin(self, chunks: AgentChunks, groups: Mapping[Any, Ints]) -> None:
        """Use these chunks, in these groups."""
        per_sequence = {group.module_id: group.per_sequence for group in self.groups.values()}
        self.chunks = chunks
        self.groups = {key: self._group(at, key if self.mapped else key[0]) for key, at in groups.items()}
        for group in self.groups.values() if per_sequence else ():
            group.per_sequence = per_sequence.get(group.module_id, group.per_sequence)

    def _group(self, at: Ints, module_id: Any) -> ChunkGroup:
        module = None if self.rl_module is None else self._module(module_id, at)
        return ChunkGroup(self, module, module_id, self.chunks.of(at, module_id), self._plus_one, at)

    def _picked(self, members: Sequence[ChunkGroup], order: Ints) -> ChunkGroup:
        """A group of chunks of other groups of its module, which has what these groups know about them.

        Args:
            members: The other groups.
            order: Positions among all their chunks, one group after the other: int64.
        """
        group = self._group(np.concatenate([member.at for member in members])[order], members[0].module_id)
        group.plus_one = any(member.plus_one for member in members)
        for member in members:
            group.per_sequence = {**group.per_sequence, **member.per_sequence}
        if any(member.rows is not None for member in members):
            group.rows = np.concatenate([member.expected_rows for member in members])[order]
        if cuts := [member.cut for member in members if member.cut is not None]:  # of all: they have one module
            group.cut = cuts[0]._replace(draws=np.concatenate([cut.draws for cut in cuts])[order])
        if self._plain is not None:
            long = [episode for member in members for episode in member.with_bootstrap_step or ()]
            group.add_bootstrap_step([long[i] for i in order.tolist()])
        return group

    def _module(self, module_id: Any, at: Ints) -> Any:
        """The module of that name, for these chunks."""
        if not self.multi:
            raise ConfigError(
                "rl_module",
                expected="a MultiRLModule, since the episodes have several agents",
                found=type(self.rl_module).__name__,
                do="build it with MultiRLModuleSpec(rl_module_specs={module id: RLModuleSpec(...)})",
            )
        if module_id in self.rl_module:
            return self.rl_module[module_id]
        raise UnknownNameError(
            "episode {!r}, agent {!r}".format(*self.chunks.keys(at, module_id, self.episode_keys)[0]),
            expected=f"a module of the MultiRLModule: {', '.join(map(repr, self.rl_module.keys()))}",
            found=repr(module_id),
            do="let the mapping function name one of them; " + nearest(str(module_id), self.rl_module.keys()),
        )

    def include_idle_agents(self, keys: set[Any]) -> bool:
        """Use all agents' steps if the batch has columns of agents without a new observation.

        Args:
            keys: Of the batch's columns.

        Returns:
            True if there were other chunks before.
        """
        others = bool(keys) and not keys <= {key for group in self.groups.values() for key in group.keys}
        if others:
            self._begin(*training_chunks(self.episodes, keys))
        return others

    def by_agent(self) -> dict[Any, ChunkGroup]:
        """Groups of each agent's chunks, in the order in which agents appear."""
        agents: dict[Any, list[int]] = {}
        for place in np.sort(np.concatenate([group.at for group in self.groups.values()])).tolist():
            agents.setdefault(self.chunks.parts[place].agent_id, []).append(place)
        parts = self.chunks.parts
        return {agent_id: self._group(np.array(at), parts[at[0]].module_id) for agent_id, at in agents.items()}

    def map_to_modules(self, batch: Batch) -> None:
        """Make one group of each module's rows, whatever spaces its agents had at first.

        Raises:
            ColumnError: a column that differs in shape between agents of one module, or that some lack.
        """
        keys: dict[Any, list[Any]] = {}
        for key, group in self.groups.items():
            keys.setdefault(group.module_id, []).append(key)
        groups, columns = {}, {}
        for module_id, (first, *others) in keys.items():
            groups[module_id], columns[module_id] = self.groups[first], batch.groups[first]
            if others:
                members = [self.groups[key] for key in (first, *others)]
                order = order_of(members)
                group = groups[module_id] = self._picked(members, order)
                group.sequences = merged_sequences([member.sequences for member in members], order, module_id)
                parts = [batch.groups[key] for key in (first, *others)]
                columns[module_id] = merge_columns(parts, members, order, group)
        self.mapped, self.groups, batch.groups = True, groups, columns

    def keep_acting(self, batch: Batch) -> None:
        """Leave out the rows of agents that are not to act: those that ended with their newest observation."""
        if all(self.chunks.acting):
            return
        acting = np.array(self.chunks.acting)
        kept = {key: np.flatnonzero(acting[group.at]) for key, group in self.groups.items()}
        kept = {key: rows for key, rows in kept.items() if len(rows)}
        self.groups = {key: self._picked([self.groups[key]], rows) for key, rows in kept.items()}
        batch.keep(kept)

    def keep_modules(self, batch: Batch, module_ids: Collection[Any]) -> None:
        """Leave out the chunks and columns of all other modules; the batch has to be mapped to modules."""
        self.groups = {name: group for name, group in self.groups.items() if name in module_ids}
        batch.groups = {module_id: batch.groups[module_id] for module_id in self.groups}

    def rows_by_module(self) -> RowsByModule:
        """Return the agent of each module's rows, for splitting the module's outputs again."""
        groups = {key: group.at for key, group in self.groups.items()}
        return RowsByModule(self.chunks, groups, self.episodes, self.episode_keys)

    def _by_spaces(self) -> None:
        """Split groups whose chunks have come to differ in spaces."""
        groups = {}
        for key, group in self.groups.items():
            members = by_spaces([()] * len(group.episodes), group.episodes)
            if len(members) < 2:
                groups[key] = group
            else:
                groups.update({(*key, kind): self._picked([group], at) for (_, kind), at in members.items()})
        self.groups = groups

    @property
    def episode_keys(self) -> list[Any]:
        """The keys of the episodes."""
        if self._episode_keys is None:
            self._episode_keys = [key for (key,) in chunk_keys(self.episodes)]
        return self._episode_keys

    @property
    def keys(self) -> list[Key]:
        """The keys of all groups' chunks, in the order of episodes and agents."""
        keys = [key for group in self.groups.values() for key in group.keys]
        return [keys[i] for i in order_of(self.groups.values()).tolist()]

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

    def name_module(self, batch: Batch) -> Batch:
        """Show what is batched of one agent by module from now on, as a MultiRLModule takes it."""
        if self.multi and None in self.groups and self.groups[None].batched:
            group = self.groups.pop(None)
            self.groups[group.module_id], batch.groups = group, {group.module_id: batch.groups.pop(None)}
            self.mapped = True
        return batch

    def take_keys(self, columns: Iterable[Any]) -> None:
        """Let the chunks be those that columns have keys of; for a piece that is tried without episodes.

        Args:
            columns: Plain per-episode columns, `{key: [items]}`.
        """
        keys = list(dict.fromkeys(key for column in columns for key in column))
        for group in self.groups.values():
            group.keys = keys

    # -- rows ahead of drawn chunks -------------------------------------------------------------------

    def have_rows_ahead(self, steps: int) -> None:
        """Let drawn chunks have up to so many rows more, as far as their episodes go, until a piece leaves them out."""
        for group in self.groups.values():
            if isinstance(group.episodes, ChunkTable):
                own = group.episodes
                group.use(own.with_ahead(steps))
                group.own = own if own is not group.episodes else None

    # -- what plain pieces are shown ------------------------------------------------------------------

    def plain_episodes(self) -> list[Any]:
        """The episodes as a plain list, those with a bootstrap step in their place if there are."""
        if not self.several:
            return next(iter(self.groups.values())).plain_episodes()
        if self.drawn:
            return [episode for group in self.groups.values() for episode in group.plain_episodes()]
        return list(self.episodes) if self._plain is None else self._plain

    def with_hook(self) -> Sequence[Any]:
        """The episodes that hooks of pieces are about: those that were drawn, or those that begin while acting."""
        if self.training:
            is_table = isinstance(self.episodes, (ChunkTable, ChunksByModule))
            return self.episodes if is_table and getattr(self.episodes, "device", None) is None else ()
        return [episode for episode in self.plain_episodes() if not (episode.env_t if self.several else episode.t)]

    def add_bootstrap_step(self) -> None:
        """Show plain pieces episodes that have the bootstrap row as a step, and read columns from those.

        What a plain piece writes to them reaches the batch; the episodes that were given stay as they are.
        """
        if self._plain is None:
            parts: dict[int, Any] = {}
            whole = self.episodes if self.several and not self.drawn else ()
            for group in self.groups.values():
                group.add_bootstrap_step()
                parts.update({id(part): long for part, long in zip(group.episodes, group.with_bootstrap_step or ())})
            self._plain = [episode.with_artificial_steps(parts) for episode in whole]

    def invalidate(self, *, rewritten: bool = False) -> None:
        """Forget what is known about the episodes: a plain piece may have changed them.

        Args:
            rewritten: Whether it was one that rewrites newest observations, so that agents of a group may have come to
                differ in spaces.
        """
        if rewritten and self.several and not self.mapped:
            self._by_spaces()
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
    kinds: list[Any] = list(map(type, episodes)) if type(episodes) is list else []
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
