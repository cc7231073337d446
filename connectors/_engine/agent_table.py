"""A table of the observations of all agents at each env step, in all episodes of a call."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, SpaceError, UnknownNameError
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

from ...episodes._parts.agent_segment import AgentSegment
from ...episodes.reader import EpisodeReader
from ..columnar_piece import Piece
from .call import PipelineCall
from .chunks import ChunkGroup
from .layouts import join_rows

if TYPE_CHECKING:
    from ..connector_v2 import ConnectorV2

Indices = npt.NDArray[np.int64]
_NO_STEPS: Indices = np.empty(0, np.int64)


class AllAgentsPiece(Piece):
    """A piece of episodes of several agents that needs all groups at once, and so writes `run_all`."""

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Refuse episodes of one agent."""
        check_several(self, group)
        return columns


class AgentMapper(Piece):
    """A piece after which columns by agent are columns by module, or the other way round."""

    def _outputs_by_agent(self) -> tuple[Any, Any]:
        return self._recomputed()


class _TableSegment(NamedTuple):
    """An agent's life in an episode of the call.

    Args:
        owner: Position of the episode.
        segment: The life.
        steps: Env steps of its observations, lookback included; none where only the newest one counts.
        skipped: How many of its observations came before these.
    """

    owner: int
    segment: AgentSegment
    steps: Indices
    skipped: int = 0


class AgentTable:
    """Rows of observations by env step and agent, so that those of one env step can be gathered by index.

    Agents that did not observe at an env step have no row there. Cuts of episodes make no difference.

    Args:
        call: What the pipeline call is about.
        agents: All agents that can be there, in the order of the table's second axis.
        piece: Name of the piece that reads the table, for messages.
        newest: Whether only the newest env step of each episode counts, as for acting; otherwise all of them.
        history: With `newest`, how many env steps before it count as well.
        only: Whether agents that are not among `agents` are left out; otherwise they are an error.

    Attributes:
        rows: int64 [env steps of all episodes, agents]: number of the row among all agents' rows; -1 where there is
            none.
        bounds: First and last env step of each episode that the table has.

    Raises:
        UnknownNameError: an agent that is not among `agents`, without `only`.
        BatchLayoutError: the call is about drawn chunks of single agents.
    """

    def __init__(
        self,
        call: PipelineCall,
        agents: Sequence[Any],
        piece: Any,
        *,
        newest: bool,
        only: bool = False,
        history: int = 0,
    ) -> None:
        for group in call.groups.values():
            check_several(piece, group, "use it in the env-to-module pipeline; drawn steps of agents have no others")
        self._call, self._newest, self._width = call, newest and not history, len(agents)
        self._acting, self._ends = newest, np.array([episode.env_t for episode in call.episodes], np.int64)
        lives = self._all_segments(history)
        first = self._ends - history if newest else self._ends.copy()
        for life in () if newest else lives:
            first[life.owner] = min(first[life.owner], life.steps[0])
        spans = self._ends - first + 1
        self._offsets = np.cumsum(spans) - spans - first
        self._size = int(spans.sum())
        self.bounds = first, self._ends
        self._own_steps = {id(life.segment.episode): life for life in lives}
        agent_ids = set(agents)
        self._segments = [life for life in lives if not only or life.segment.agent_id in agent_ids]
        self._places = places_of(piece, agents, [life.segment.agent_id for life in self._segments])
        self.rows = self._table([life.steps for life in self._segments])

    def _all_segments(self, history: int) -> list[_TableSegment]:
        """The lives that count, of all agents."""
        lives = []
        for owner, (episode, end) in enumerate(zip(self._call.episodes, self._ends.tolist())):
            for segment in (*episode.past_segments, *episode.segments):
                if self._newest and segment.steps[-1] == end:
                    lives.append(_TableSegment(owner, segment, _NO_STEPS))
                elif not self._newest and (not self._acting or segment.steps[-1] >= end - history):
                    steps = segment.env_steps
                    skipped = int(np.searchsorted(steps, end - history)) if self._acting else 0
                    lives.append(_TableSegment(owner, segment, steps[skipped:], skipped))
        return lives

    def _table(self, steps: list[Indices]) -> Indices:
        """Numbers of rows that lie one life after the other, by env step and agent."""
        table = np.full(self._size * self._width, -1, np.int64)
        if self._newest:
            owners = np.array([life.owner for life in self._segments], np.int64)
            table[owners * self._width + self._places] = np.arange(len(owners))
        elif steps:
            counts = np.array([len(life_steps) for life_steps in steps])
            shifts = np.array([self._offsets[life.owner] for life in self._segments])
            indices = np.concatenate(steps) + np.repeat(shifts, counts)
            table[indices * self._width + np.repeat(self._places, counts)] = np.arange(len(indices))
        return table.reshape(self._size, self._width)

    def env_rows(self, group: ChunkGroup) -> Indices:
        """Return the number of the table's row for each row of a module's chunks: int64, [rows]."""
        steps, owners = self.env_steps(group)
        rows: Indices = steps + self._offsets[owners]
        return rows

    def env_steps(self, group: ChunkGroup) -> tuple[Indices, Indices]:
        """The env step of each row of a module's chunks, and the position of its episode: int64, [rows] each."""
        if self._acting:
            owners = np.array(self._call.chunks.owners, np.int64)[group.at]
            return self._ends[owners], owners
        parts, counts = [], group.counts.tolist()
        lives = [self._own_steps[id(episode)] for episode in group.episodes]
        for life, count in zip(lives, counts):
            start = life.segment.episode.lookback
            parts.append(life.steps[start : start + count])
        return np.concatenate(parts), np.repeat(np.array([life.owner for life in lives], np.int64), counts)

    @property
    def empty(self) -> bool:
        """True if none of the agents has a row."""
        return not self._segments

    # -- rows of columns -----------------------------------------------------------------------

    def observations(self, numbers: Indices | None = None) -> Any:
        """All agents' observations, in the order of the table's numbers, and a row of zeros at the end.

        Args:
            numbers: Only these rows, without zeros.

        Raises:
            ColumnError: agents' observations differ in shape or nesting, or are no numbers.
        """
        lives = range(len(self._segments))
        if self._newest:
            about = self._about(lives if numbers is None else numbers.tolist())
            rows = about.reader.newest(Columns.OBS)[0]
            return rows if numbers is not None else _with_zeros(rows, about)
        about, copies = self._about(lives), self._with_bootstrap_steps()
        reader = EpisodeReader([copies.get(id(part), part) for part in about.episodes], about.episodes)
        counts = np.array([len(life.steps) for life in self._segments])
        firsts = np.array([life.skipped for life in self._segments]) - reader.lookbacks
        if numbers is None:
            found = reader.rows(Columns.OBS, firsts, firsts + counts)
            found.check()
            return _with_zeros(found.joined(), about)
        owners = np.repeat(np.arange(len(counts)), counts)[numbers]
        return reader.at(Columns.OBS, owners, (firsts - np.cumsum(counts) + counts)[owners] + numbers)

    def steps(self, name: str) -> tuple[Indices, Any, Indices]:
        """A table like `rows` of what followed the observations; what waits for its agent's next one is among it.

        Args:
            name: `actions`, `rewards`, or the key of a model output.

        Returns:
            The table; all rows and one of zeros (None if there is none); and for each, by which row of the table it
            was known: actions and outputs at their own, rewards when their agent observed again.

        Raises:
            ColumnError: agents' rows differ in shape or nesting, or are no numbers.
        """
        copies = self._with_bootstrap_steps()
        parts, steps, owners, table_rows = [], [], [], [_NO_STEPS]
        for i, life in enumerate(self._segments):
            part, count = life.segment.episode, len(life.steps) - 1
            buffer = _column(copies.get(id(part), part), name)
            pending_row = self._waiting(life, name)
            start = life.skipped - part.lookback
            if count and buffer is not None:
                parts.append(unflatten(buffer.form, buffer.rows(start, start + count)))
                owners.append(i)
            if pending_row is not None:
                parts.append(_one_row(pending_row, buffer.form if count and buffer is not None else None))
                owners.append(i)
            life_steps = life.steps[: (count if buffer is not None else 0) + (pending_row is not None)]
            steps.append(life_steps)
            table_rows.append((life.steps[1:] if name == Columns.REWARDS else life_steps) + self._offsets[life.owner])
        about = self._about(range(len(self._segments)))
        data = _with_zeros(join_rows(name, parts, owners, about), about) if parts else None
        return self._table(steps), data, np.concatenate(table_rows)

    def _waiting(self, life: _TableSegment, name: str) -> Any:
        """Return the pending action or model output of an agent; None if there is none."""
        episode, agent_id = self._call.episodes[life.owner], life.segment.agent_id
        if life.segment.ended_at is not None or name == Columns.REWARDS:
            return None
        if name == Columns.ACTIONS:
            return episode.pending_actions.get(agent_id)
        return episode.pending_extra_model_outputs.get(agent_id, {}).get(name)

    def _with_bootstrap_steps(self) -> dict[int, Any]:
        """Copies that plain pieces were shown, and may have written to, by the episodes that they are of."""
        groups = self._call.groups.values()
        return {
            id(episode): long
            for group in groups
            for episode, long in zip(group.episodes, group.with_bootstrap_step or ())
        }

    def _about(self, lives: Sequence[int]) -> ChunkGroup:
        """A call about some lives, for messages."""
        parts = [self._segments[i].segment.episode for i in lives]
        names = [self._call.episodes[self._segments[i].owner].id_ for i in lives]
        keys: list[tuple[Any, ...]] = [(name, part.agent_id, part.module_id) for name, part in zip(names, parts)]
        return ChunkGroup(self._call, None, "", parts, keys=keys)


def _column(episode: Any, name: str) -> Any:
    """The column of an episode; None for an output that it does not have."""
    if name in (Columns.ACTIONS, Columns.REWARDS):
        return episode.actions if name == Columns.ACTIONS else episode.rewards
    return episode.extra_model_outputs.get(name)


def _one_row(row: Any, form: Any) -> Any:
    if form is None:
        return map_struct(lambda leaf: np.asarray(leaf)[None], row)
    return unflatten(form, [np.asarray(leaf)[None] for leaf in flatten_like(form, row)])


def _with_zeros(rows: Any, about: ChunkGroup) -> Any:
    leaves, form = flatten(rows)
    if any(leaf.dtype.kind not in "biufc" for leaf in leaves):
        raise ColumnError(
            f"rows of {len(about.episodes)} agents",
            expected="numbers, of one shape for all agents",
            found=f"types {sorted({str(leaf.dtype) for leaf in leaves})}",
            do="bring them to vectors of one length with earlier pieces (FlattenObservations, PadObservations)",
        )
    zeros = [np.zeros((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    return unflatten(form, [np.concatenate([leaf, zero]) for leaf, zero in zip(leaves, zeros)])


def check_agent_ids(piece: ConnectorV2, agent_ids: Sequence[Any] | None) -> list[Any] | None:
    """The agents that a piece was given, as a list.

    Raises:
        ConfigError: no list of agents that differ.
    """
    if agent_ids is None:
        return None
    if isinstance(agent_ids, (list, tuple)) and agent_ids and len(dict.fromkeys(agent_ids)) == len(agent_ids):
        return list(agent_ids)
    raise ConfigError(
        f"{type(piece).__name__}.agent_ids",
        expected="a list of agents, each once",
        found=repr(agent_ids),
        do="name all agents that can be there, in the order that is to be kept",
    )


def agents_of(piece: Any, agent_ids: list[Any] | None) -> list[Any]:
    """Return all agents that can be there, in their order.

    Args:
        piece: A piece with Dict spaces by agent, or an agent's copy of such a piece.
        agent_ids: The agents that were passed to the piece; default: the entries of its observation space.

    Raises:
        SpaceError: neither says which agents there are.
    """
    if agent_ids is not None:
        return agent_ids
    space = (piece.agent_template or piece).input_observation_space
    if isinstance(space, gym.spaces.Dict):
        return list(space.spaces)
    raise SpaceError(
        type(piece).__name__,
        expected="the agents that can be there",
        found=f"observation space {space}, which is not by agent",
        do="pass agent_ids=[...], or give the pipeline a Dict of all agents' observation spaces",
    )


def places_of(piece: Any, agents: Sequence[Any], found: Sequence[Any]) -> npt.NDArray[np.int64]:
    """The place of each agent among all.

    Raises:
        UnknownNameError: an agent that is not among them.
    """
    places = {agent: i for i, agent in enumerate(agents)}
    try:
        return np.array([places[agent] for agent in found], np.int64)
    except KeyError as error:
        stranger = error.args[0]
        raise UnknownNameError(
            type(piece).__name__,
            expected=f"the agents {', '.join(map(repr, agents))}",
            found=repr(stranger),
            do=f"{_meant(stranger, agents)}name it in agent_ids, or in the environment's possible agents",
        ) from None


def _meant(stranger: Any, agents: Sequence[Any]) -> str:
    """Return a hint at the agent that was meant. Quotes distinguish a string from an int."""
    named = {str(agent): agent for agent in agents}
    kinds = {type(agent).__name__ for agent in agents}
    if str(stranger) in named and len(kinds) == 1:
        return f"write {named[str(stranger)]!r}: ids are of type {kinds.pop()} here, not {type(stranger).__name__}; or "
    close = get_close_matches(str(stranger), named, n=1)
    return f"did you mean {named[close[0]]!r}? Or " if close else ""


def check_several(piece: Any, group: ChunkGroup, do: str = "leave this piece out: there are no other agents") -> None:
    """Refuse episodes of one agent each, and drawn chunks of such episodes.

    Raises:
        BatchLayoutError: they are.
    """
    if not group.several or group.call.drawn:
        raise BatchLayoutError(
            type(piece).__name__,
            expected="multi-agent episodes",
            found=f"{len(group.episodes)} episodes of one agent each",
            do=do,
        )
