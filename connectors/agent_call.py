"""What one call about episodes of several agents is about: one call per module, and which chunk is in which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from epibatch.core.errors import BatchLayoutError, ConfigError, PipelineError, UnknownNameError, explain, nearest

from ..episodes.multi_agent_episode import MultiAgentEpisode
from .acting_module import is_multi
from .agent_batch import AgentBatch, merge_columns
from .agent_chunks import AgentChunk, acting_chunks, chunks_of_rows, training_chunks
from .call import Call
from .lengthened import with_lengthened_parts
from .space_kinds import SpaceKinds

__all__ = ["AgentCall", "call_about"]

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

    Attributes:
        groups: Calls about chunks of one module and of the same spaces; once mapped, module id -> its call.
        chunks: All chunks, in the order of episodes and agents.
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
    ) -> None:
        self.rl_module = rl_module
        self.episodes = episodes
        self.explore = explore
        self.shared_data: dict[str, Any] = {} if shared_data is None else shared_data
        self.metrics = metrics
        self.training = training
        self.kwargs = kwargs or {}
        self._plus_one = plus_one
        self.mapped = from_module
        self.shown_items = False
        self.acted: dict[Any, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._plain: list[Any] | None = None
        self._set_chunks(self._chunks(from_module))

    def _chunks(self, from_module: bool) -> list[AgentChunk]:
        if self.training:
            return training_chunks(self.episodes)
        rows = self.shared_data.get(ROWS) if from_module else None
        if not isinstance(rows, Mapping):
            chunks = acting_chunks(self.episodes)
            return still_acting(chunks, self.episodes) if from_module else chunks
        out: list[AgentChunk] = []
        for module_id, chunks_or_none in chunks_of_rows(self.episodes, rows):
            self.acted[module_id] = np.array([chunk is not None for chunk in chunks_or_none], np.bool_)
            out += [chunk for chunk in chunks_or_none if chunk is not None]
        places = [{agent_id: i for i, agent_id in enumerate(one.get_agents_to_act())} for one in self.episodes]
        return sorted(out, key=lambda chunk: (chunk.owner, places[chunk.owner][chunk.key[1]]))

    def _set_chunks(self, chunks: list[AgentChunk]) -> None:
        self.chunks = chunks
        grouped: dict[Any, list[AgentChunk]] = {}
        kinds = SpaceKinds()
        for chunk in chunks:
            group = chunk.key[2] if self.mapped else (chunk.key[2], kinds.of(chunk.episode))
            grouped.setdefault(group, []).append(chunk)
        self.groups = {group: self._call(own) for group, own in grouped.items()}

    def _call(self, chunks: list[AgentChunk]) -> Call:
        module_id = chunks[0].key[2]
        return Call(
            rl_module=self._module(module_id, chunks[0]),
            episodes=[chunk.episode for chunk in chunks],
            explore=self.explore,
            shared_data=self.shared_data,
            metrics=self.metrics,
            training=self.training,
            plus_one=self._plus_one,
            kwargs=self.kwargs,
            keys=[chunk.key for chunk in chunks],
            module_id=module_id,
        )

    def _module(self, module_id: Any, chunk: AgentChunk) -> Any:
        if self.rl_module is None:
            return None
        if not is_multi(self.rl_module):
            raise ConfigError(
                explain(
                    "rl_module",
                    expected="a MultiRLModule, since the episodes have several agents",
                    found=type(self.rl_module).__name__,
                    do="build it with MultiRLModuleSpec(rl_module_specs={module id: RLModuleSpec(...)})",
                )
            )
        if module_id not in self.rl_module:
            raise UnknownNameError(
                explain(
                    f"episode {chunk.key[0]!r}, agent {chunk.key[1]!r}",
                    expected=f"a module of the MultiRLModule: {', '.join(map(repr, self.rl_module.keys()))}",
                    found=repr(module_id),
                    do="let the mapping function name one of them; " + nearest(module_id, self.rl_module.keys()),
                )
            )
        return self.rl_module[module_id]

    def entry(self, own: Call) -> Any:
        """Under which key the spaces of a group's rows stand in a Dict of spaces."""
        return own.module_id if self.mapped else own.episodes[0].agent_id

    def by_agent(self) -> dict[Any, Call]:
        """A call about each agent's chunks, in the order in which agents appear."""
        chunks: dict[Any, list[AgentChunk]] = {}
        for chunk in self.chunks:
            chunks.setdefault(chunk.episode.agent_id, []).append(chunk)
        return {agent_id: self._call(own) for agent_id, own in chunks.items()}

    def map_to_modules(self, batch: AgentBatch) -> None:
        """Make one group of each module's rows, whatever spaces its agents had at first.

        Raises:
            ColumnError: a column that differs in shape between agents of one module, or that some lack.
        """
        by_module: dict[Any, list[Any]] = {}
        for chunk_group, call in self.groups.items():
            by_module.setdefault(call.module_id, []).append(chunk_group)
        merged, calls = {}, {}
        for module_id, own in by_module.items():
            if len(own) == 1:
                merged[module_id], calls[module_id] = batch.groups[own[0]], self.groups[own[0]]
                continue
            chunks = [chunk for chunk in self.chunks if chunk.key[2] == module_id]
            calls[module_id] = self._call(chunks)
            parts = [(batch.groups[group], self.groups[group]) for group in own]
            self._go_on(calls[module_id], [call for _, call in parts])
            merged[module_id] = merge_columns(parts, calls[module_id])
        self.mapped, self.groups, batch.groups = True, calls, merged

    def _go_on(self, call: Call, parts: Sequence[Call]) -> None:
        """Let a call about all chunks of a module know what those about some of them do."""
        call.plus_one = any(part.plus_one for part in parts)
        call.halves_floats = any(part.halves_floats for part in parts)
        if self._plain is not None:
            shown = {key: long for part in parts for key, long in zip(part.keys, part.lengthened or ())}
            call.lengthen([shown[key] for key in call.keys])

    def keep_acting(self) -> dict[Any, np.ndarray[Any, np.dtype[np.int64]]]:
        """Leave out the chunks of agents that are not to act: those that ended with their newest observation.

        Returns:
            Per module the positions of the chunks that stayed; modules without any are missing.
        """
        to_act = [set(episode.get_agents_to_act()) for episode in self.episodes]
        kept: dict[Any, list[int]] = {}
        position: dict[Any, int] = dict.fromkeys(self.groups, 0)
        chunks = []
        for chunk in self.chunks:
            _, agent_id, module_id = chunk.key
            if agent_id in to_act[chunk.owner]:
                kept.setdefault(module_id, []).append(position[module_id])
                chunks.append(chunk)
            position[module_id] += 1
        if len(chunks) < len(self.chunks):
            self._set_chunks(chunks)
        return {module_id: np.array(own, np.int64) for module_id, own in kept.items()}

    def keep_modules(self, batch: AgentBatch, module_ids: Collection[Any]) -> None:
        """Leave out the chunks and columns of all other modules; the batch has to be mapped to modules."""
        self.groups = {module_id: call for module_id, call in self.groups.items() if module_id in module_ids}
        self.chunks = [chunk for chunk in self.chunks if chunk.key[2] in module_ids]
        batch.groups = {module_id: batch.groups[module_id] for module_id in self.groups}

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

    def look_again(self) -> None:
        """Forget what is known about the episodes: a plain piece may have changed them."""
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
        self.shown_items = batch.holds_items()
        return batch.by_module(self.groups) if self.mapped else batch.by_key(self.groups, self.chunks)

    def to_columns(self, batch: Mapping[Any, Any]) -> AgentBatch:
        """The batch that columnar pieces work on, from a plain one.

        Raises:
            BatchLayoutError: a key that is no chunk of this call.
        """
        if not self.mapped:
            return AgentBatch.of_keys(batch, self.groups)
        if self.acted and not self.shown_items:
            self._check_modules(batch)
            gone = self.acted.keys() - self.groups.keys()  # all of its agents have ended since
            batch = {name: value for name, value in batch.items() if name not in gone}
        return AgentBatch.of_modules(batch, self.groups, items=self.shown_items)

    def _check_modules(self, batch: Mapping[Any, Any]) -> None:
        strangers = [name for name in batch if name not in self.acted and isinstance(batch[name], Mapping)]
        if strangers:
            raise BatchLayoutError(
                explain(
                    "outputs of the modules",
                    expected=f"those of modules that were given rows: {sorted(map(repr, self.acted))}",
                    found=repr(strangers[0]),
                    do="let forward return outputs of the modules in its batch only; "
                    + nearest(strangers[0], list(self.acted)),
                )
            )


def call_about(episodes: Sequence[Any], *, from_module: bool = False, **circumstances: Any) -> Call | AgentCall:
    """The call about some episodes: of one agent each, or of several.

    Args:
        episodes: A list of episodes of one kind, or a VectorEpisodes.
        from_module: Whether the batch at its start is what modules gave, module by module.
        **circumstances: As `Call` takes them.

    Raises:
        PipelineError: single- and multi-agent episodes in one list.
    """
    if type(episodes) is not list or not episodes or not isinstance(episodes[0], MultiAgentEpisode):
        return Call(episodes=episodes, **circumstances)
    strangers = [i for i, episode in enumerate(episodes) if not isinstance(episode, MultiAgentEpisode)]
    if strangers:
        raise PipelineError(
            explain(
                "episodes",
                expected="episodes of one kind, all of several agents as the first one",
                found=f"a {type(episodes[strangers[0]]).__name__} at position {strangers[0]}",
                do="run the pipeline once for each kind",
            )
        )
    return AgentCall(episodes=episodes, from_module=from_module, **circumstances)


def still_acting(chunks: list[AgentChunk], episodes: Sequence[Any]) -> list[AgentChunk]:
    """The chunks whose agents are to act."""
    to_act = [set(episode.get_agents_to_act()) for episode in episodes]
    return [chunk for chunk in chunks if chunk.key[1] in to_act[chunk.owner]]
