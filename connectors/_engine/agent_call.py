"""What one call about episodes of several agents is about: one call per module, and which chunk is in which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from epibatch.core.errors import BatchLayoutError, ConfigError, PipelineError, UnknownNameError, nearest

from ...episodes.multi_agent_episode import MultiAgentEpisode
from .agent_batch import AgentBatch, merge_columns
from .agent_chunks import (
    AgentChunk,
    AgentRows,
    RowsByModule,
    acting_rows,
    merged_rows,
    regrouped,
    rows_given_back,
    training_rows,
)
from .call import Call
from .chunk_keys import chunk_keys
from .layouts import is_plain
from .lengthened import with_lengthened_parts
from .modules import is_multi
from .sequences import merged_sequences

__all__ = ["AgentCall", "call_class"]

ROWS = "memorized_map_structure"


class AgentCall:
    """The circumstances of one pipeline call about episodes of several agents.

    Each module has a `Call` of its own, about its agents' chunks alone, on which columnar pieces run one after
    the other; so a piece need not know about several agents, and a recurrent module beside one without state is
    nothing special. Plain pieces are shown the whole: the multi-agent episodes, and one batch.

    Args:
        rl_module: A MultiRLModule, or None.
        episodes: Multi-agent episodes.
        explore: Whether actions are to explore.
        shared_data: A dict that pieces of several pipelines share.
        metrics: A metrics logger, or None.
        training: Whether the batch is for training; otherwise only agents with a new observation count.
        plus_one: Whether every chunk has one virtual bootstrap row at its end.
        kwargs: Whatever else the caller passed.
        from_module: Whether the batch at its start is what modules gave, module by module.
        learning: Where `training` is None, whether pieces make train batches, of every agent's steps.
        batch: What the call starts from. A batch by module is gone on with.

    Attributes:
        piece: The plain piece that is running, if one is.
        groups: Calls about chunks of one module and of the same spaces; once mapped, module id -> its call.
        rows: Whose the rows of each group are.
        mapped: Whether plain pieces see `{module: {column: ...}}` instead of `{column: {key: [items]}}`.
        acted: Which of a module's outputs are rows of agents that are still to act, by module.

    Raises:
        UnknownNameError: an agent's module that the MultiRLModule does not have.
        ConfigError: one module where several agents need a MultiRLModule.
    """

    grouped: Literal[True] = True

    def __init__(
        self,
        *,
        rl_module: Any,
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        training: bool | None = None,
        plus_one: bool = False,
        kwargs: dict[str, Any] | None = None,
        from_module: bool = False,
        learning: bool = False,
        batch: Mapping[Any, Any] | None = None,
    ) -> None:
        self.rl_module = rl_module
        self.episodes = episodes
        self.explore = explore
        self.shared_data: dict[str, Any] = {} if shared_data is None else shared_data
        self.metrics = metrics
        self.training = training
        self.kwargs = kwargs or {}
        self._plus_one = plus_one
        self._learning = learning
        self.piece: Any = None
        self.mapped = from_module
        self.shown_items = False
        self.acted: dict[Any, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._plain: list[Any] | None = None
        self._episode_keys: list[Any] | None = None
        self._chunks: list[AgentChunk] | None = None
        self.groups: dict[Any, Call] = {}
        self._set_rows(self._rows_of(from_module))
        if batch and not from_module:
            self._go_on_by_module(batch)

    def _rows_of(self, from_module: bool) -> dict[Any, AgentRows]:
        """The parts that the call is about, by group."""
        if self.training or self._learning:
            return training_rows(self.episodes)
        if not from_module:
            return acting_rows(self.episodes)
        known = self.shared_data.get(ROWS)
        if isinstance(known, RowsByModule) and known.are_about(self.episodes):
            self.acted = {module_id: np.ones(len(own), np.bool_) for module_id, own in known.rows.items()}
            return known.rows
        if not isinstance(known, Mapping):
            known = RowsByModule(_by_module(acting_rows(self.episodes)), self.episodes, self.episode_keys)
        rows, acted = rows_given_back(self.episodes, self.episode_keys, known)
        self.acted = {module_id: np.array(own, np.bool_) for module_id, own in acted.items()}
        return rows

    def _set_rows(self, rows: dict[Any, AgentRows], calls: Mapping[Any, Call] | None = None) -> None:
        """Let the call be about these parts; groups that have a call already keep it."""
        known = calls or {}
        per_sequence = {call.module_id: call.per_sequence for call in self.groups.values()}
        self.rows, self._chunks = rows, None
        self.groups = {group: known[group] if group in known else self._call(own) for group, own in rows.items()}
        for call in self.groups.values():
            call.per_sequence |= per_sequence.get(call.module_id, {})

    def _go_on_by_module(self, batch: Mapping[Any, Any]) -> None:
        """Let the call be about the rows of a batch that was mapped to modules before the call began."""
        modules = {segment.episode.module_id for episode in self.episodes for segment in episode.segments}
        modules = {name for name in modules if isinstance(batch.get(name), Mapping) and not is_plain(batch[name])}
        if not modules:
            return
        known, learning = self.shared_data.get(ROWS), self.training or self._learning
        if not learning and isinstance(known, RowsByModule) and known.are_about(self.episodes):
            rows = known.rows
        elif modules <= {own.module_id for own in self.rows.values()}:
            rows = _by_module(self.rows)
        else:
            rows = _by_module(training_rows(self.episodes))
        self.mapped = True
        self._set_rows(rows)

    def _admit(self, batch: Mapping[Any, Any]) -> None:
        """Let the call be about every agent's steps, if a batch has columns of agents that did not just observe."""
        keys = {key for column in batch.values() if is_plain(column) for key in column}
        if keys and not keys <= {key for call in self.groups.values() for key in call.keys}:
            self._set_rows(training_rows(self.episodes, keys))

    def set_explore(self, explore: bool | None) -> None:
        """Set whether actions are to explore."""
        self.explore = explore
        for call in self.groups.values():
            call.explore = explore

    @property
    def episode_keys(self) -> list[Any]:
        """The keys of the episodes."""
        if self._episode_keys is None:
            self._episode_keys = [key for (key,) in chunk_keys(self.episodes)]
        return self._episode_keys

    @property
    def chunks(self) -> list[AgentChunk]:
        """All chunks, in the order of episodes and agents."""
        if self._chunks is None:
            placed = [
                (place, AgentChunk(owner, key, part))
                for own in self.rows.values()
                for place, owner, key, part in zip(own.places, own.owners, own.keys(self.episode_keys), own.parts)
            ]
            self._chunks = [chunk for _, chunk in sorted(placed, key=itemgetter(0))]
        return self._chunks

    def _call(self, rows: AgentRows) -> Call:
        return Call(
            rl_module=self._module(rows),
            episodes=rows.parts,
            explore=self.explore,
            shared_data=self.shared_data,
            metrics=self.metrics,
            training=self.training,
            plus_one=self._plus_one,
            kwargs=self.kwargs,
            keys=lambda: rows.keys(self.episode_keys),
            module_id=rows.module_id,
        )

    def _module(self, rows: AgentRows) -> Any:
        module_id = rows.module_id
        if self.rl_module is None:
            return None
        if not is_multi(self.rl_module):
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

    def entry(self, own: Call) -> Any:
        """Under which key the spaces of a group's rows stand in a Dict of spaces."""
        return own.module_id if self.mapped else own.episodes[0].agent_id

    def by_agent(self) -> dict[Any, Call]:
        """A call about each agent's chunks, in the order in which agents appear."""
        agents: dict[Any, AgentRows] = {}
        for place, chunk in enumerate(self.chunks):
            agent_id = chunk.episode.agent_id
            if agent_id not in agents:
                agents[agent_id] = AgentRows(chunk.key[2])
            agents[agent_id].add(chunk.owner, chunk.key[1], chunk.episode, place)
        return {agent_id: self._call(own) for agent_id, own in agents.items()}

    def map_to_modules(self, batch: AgentBatch) -> None:
        """Make one group of each module's rows, whatever spaces its agents had at first.

        Raises:
            ColumnError: a column that differs in shape between agents of one module, or that some lack.
        """
        by_module: dict[Any, list[Any]] = {}
        for group, own in self.rows.items():
            by_module.setdefault(own.module_id, []).append(group)
        rows, calls, merged = {}, {}, {}
        for module_id, groups in by_module.items():
            if len(groups) == 1:
                rows[module_id], calls[module_id] = self.rows[groups[0]], self.groups[groups[0]]
                merged[module_id] = batch.groups[groups[0]]
                continue
            parts = [self.rows[group] for group in groups]
            rows[module_id] = merged_rows(parts)
            calls[module_id] = self._call(rows[module_id])
            self._go_on(calls[module_id], [self.groups[group] for group in groups])
            calls[module_id].sequences = merged_sequences(
                [self.groups[group].sequences for group in groups], [own.places for own in parts], module_id
            )
            columns = [(batch.groups[group], self.groups[group]) for group in groups]
            merged[module_id] = merge_columns(columns, [own.places for own in parts], calls[module_id])
        self.mapped, batch.groups = True, merged
        self._set_rows(rows, calls)

    def _go_on(self, call: Call, parts: Sequence[Call]) -> None:
        """Let a call about all chunks of a module know what those about some of them do."""
        call.plus_one = any(part.plus_one for part in parts)
        call.halves_floats = any(part.halves_floats for part in parts)
        if self._plain is not None:
            shown = {key: long for part in parts for key, long in zip(part.keys, part.lengthened or ())}
            call.lengthen([shown[key] for key in call.keys])

    def keep_acting(self) -> dict[Any, np.ndarray[Any, np.dtype[np.int64]]] | None:
        """Leave out the chunks of agents that are not to act: those that ended with their newest observation.

        Returns:
            Per module the positions of the chunks that stayed; modules without any are missing. None: all stayed.
        """
        if all(all(own.acting) for own in self.rows.values()):
            return None
        kept: dict[Any, list[int]] = {}
        for module_id, own in self.rows.items():
            positions = [i for i, acts in enumerate(own.acting) if acts]
            if positions:
                kept[module_id] = positions
        calls = {module_id: call for module_id, call in self.groups.items() if all(self.rows[module_id].acting)}
        self._set_rows({module_id: self.rows[module_id].taken(own) for module_id, own in kept.items()}, calls)
        return {module_id: np.array(own, np.int64) for module_id, own in kept.items()}

    def keep_modules(self, batch: AgentBatch, module_ids: Collection[Any]) -> None:
        """Leave out the chunks and columns of all other modules; the batch has to be mapped to modules."""
        self._set_rows({name: own for name, own in self.rows.items() if name in module_ids}, self.groups)
        batch.groups = {module_id: batch.groups[module_id] for module_id in self.groups}

    def rows_by_module(self) -> RowsByModule:
        """Whose each module's rows are, for the way back."""
        return RowsByModule(self.rows, self.episodes, self.episode_keys)

    # -- what plain pieces are shown, and what becomes of it ---------------------------------------

    def plain_episodes(self) -> list[Any]:
        """The episodes as a plain list, lengthened ones in their place if there are."""
        if self._plain is not None:
            return self._plain
        return self.episodes if type(self.episodes) is list else list(self.episodes)

    def lengthen(self) -> None:
        """Show plain pieces episodes whose agents have the bootstrap row as a step, and read columns from those."""
        if self._plain is None:
            parts: dict[int, Any] = {}
            for call in self.groups.values():
                call.lengthen()
                parts.update({id(given): long for given, long in zip(call.episodes, call.lengthened or ())})
            self._plain = [with_lengthened_parts(episode, parts) for episode in self.episodes]

    def look_again(self, *, rewritten: bool = False) -> None:
        """Forget what is known about the episodes: a plain piece may have changed them.

        Args:
            rewritten: Whether it was one that rewrites newest observations, so that agents of a group may have come to
                differ in spaces.
        """
        if rewritten and not self.mapped:
            halves = self.halves_floats
            self._set_rows(regrouped(self.rows), self.groups)
            self.halves_floats = halves
        for call in self.groups.values():
            call.look_again()

    def key_of(self, episode: Any) -> tuple[Any, ...] | None:
        """The key of an agent's part of an episode of this call; None for a stranger."""
        for call in self.groups.values():
            key = call.key_of(episode)
            if key is not None:
                return key
        return None

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Steps of each chunk, module by module: int64, shape [number of chunks]."""
        return np.concatenate([np.empty(0, np.int64), *(call.lengths for call in self.groups.values())])

    def describe(self, chunk: int) -> str:
        """Name a chunk for an error message."""
        episode_key, agent_id, _ = self.chunks[chunk].key
        return f"episode {episode_key!r}, agent {agent_id!r}"

    @property
    def halves_floats(self) -> bool:
        """Whether arrays are made right in front of the piece that makes them float32."""
        return any(call.halves_floats for call in self.groups.values())

    @halves_floats.setter
    def halves_floats(self, halves: bool) -> None:
        for call in self.groups.values():
            call.halves_floats = halves

    def to_plain(self, batch: Any) -> dict[str, Any]:
        """The batch as plain pieces and the pipeline's caller see it."""
        if not isinstance(batch, AgentBatch):
            plain: dict[str, Any] = dict(batch)
            return plain
        if not batch.groups:
            return dict(batch.loose)
        self.shown_items = batch.holds_items()
        return batch.by_module(self.groups) if self.mapped else batch.by_key(self.groups, self.chunks)

    def to_columns(self, batch: Mapping[Any, Any]) -> AgentBatch:
        """The batch that columnar pieces work on, from a plain one.

        Raises:
            BatchLayoutError: a key that is no chunk of this call, or not the modules that were given rows.
        """
        if not self.mapped:
            if self.training is None:
                self._admit(batch)
            return AgentBatch.of_keys(batch, self.groups)
        if self.acted and not self.shown_items:
            self._check_modules(batch)
            gone = self.acted.keys() - self.groups.keys()  # all of its agents have ended since
            batch = {name: value for name, value in batch.items() if name not in gone}
        return AgentBatch.of_modules(batch, self.groups, items=self.shown_items)

    def _check_modules(self, batch: Mapping[Any, Any]) -> None:
        strangers = [name for name in batch if name not in self.acted and isinstance(batch[name], Mapping)]
        missing = [name for name in self.groups if name not in batch]
        if strangers or missing:
            where = "outputs of the modules"
            expected = f"those of modules that were given rows: {', '.join(sorted(map(repr, self.acted)))}"
            found, do = f"none of {missing and missing[0]!r}", "let forward return outputs of every module in its batch"
            if strangers:
                found, do = repr(strangers[0]), "let forward return outputs of the modules in its batch only"
                do += f"; {nearest(str(strangers[0]), map(str, self.acted))}"
            raise BatchLayoutError(where, expected=expected, found=found, do=do)


def call_class(episodes: Sequence[Any], **several: Any) -> Callable[..., Call | AgentCall]:
    """The class of a call about some episodes: of one agent each, or of several.

    Args:
        episodes: A list of episodes of one kind, or a VectorEpisodes.
        **several: What an `AgentCall` is given besides what a `Call` takes.

    Raises:
        PipelineError: single- and multi-agent episodes in one list.
    """
    if type(episodes) is not list or not episodes:
        return Call
    first: Any = type(episodes[0])
    if not _has_several_agents(first):
        return Call
    strangers = [i for i, own in enumerate(map(_has_several_agents, map(type, episodes))) if not own]
    if strangers:
        raise PipelineError(
            "episodes",
            expected="episodes of one kind, all of several agents as the first one",
            found=f"a {type(episodes[strangers[0]]).__name__} at position {strangers[0]}",
            do="run the pipeline once for each kind",
        )
    return partial(AgentCall, **several)


@cache
def _has_several_agents(kind: type) -> bool:
    return issubclass(kind, MultiAgentEpisode)


def _by_module(groups: Mapping[Any, AgentRows]) -> dict[Any, AgentRows]:
    """The parts of each module, whatever their spaces."""
    by_module: dict[Any, list[AgentRows]] = {}
    for own in groups.values():
        by_module.setdefault(own.module_id, []).append(own)
    return {module_id: merged_rows(own) for module_id, own in by_module.items()}
