"""Groups of chunks: the chunks of one module in one call of a pipeline, and what is known about them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import COLUMNS_LEFT_OUT, Columns
from epibatch.core.kept_property import kept_property
from epibatch.core.rl_module.module_facts import is_stateful

from ...episodes.chunk_table import ChunkTable
from ...episodes.reader import EpisodeReader, reader_of
from ...episodes.vector_episodes import VectorEpisodes

if TYPE_CHECKING:
    from epibatch.core.padding import SequenceLayout

    from .call import PipelineCall
    from .sequences import RandomCut

PER_SEQUENCE = frozenset(
    (
        Columns.SEQ_LENS,
        Columns.STATE_IN,
        Columns.NEXT_STATE_IN,
        Columns.RESET_STATES,
        Columns.NEXT_RESET_STATES,
    )
)


class ChunkGroup:
    """The chunks of one module and one pair of spaces in one pipeline call. A columnar piece works on such a group.

    Episodes of one agent are one group. Episodes of several agents are one group for each module; before the mapping to
    modules, agents of one module that differ in spaces are in groups of their own.

    Args:
        call: The call.
        rl_module: The module that the rows are for, or that made them; may be None.
        module_id: Its id; "default_policy" for episodes of one agent.
        episodes: A list of episodes, or a VectorEpisodes.
        plus_one: Whether every chunk has one virtual bootstrap row at its end.
        at: Positions of the chunks among those of all agents, if the episodes have several: int64 [chunks].
        keys: One per chunk; default: they are made of the ids.

    Attributes:
        shared_data: As the call has it.
        training: Whether the batch is for training (one row per step) or for acting (one per episode).
        of_steps: Whether columns have one row per step, or may have, as a batch that is given by hand.
        several: Whether the chunks are parts of episodes of several agents.
        sequences: How the rows were laid out as `[B, T]`, once they were: as sequences, or as agents of one env step.
        per_sequence: Further columns with one row per sequence and no time axis, whatever their second axis is: name ->
            function of the group and of one row for each sequence (int64 [B], numbers among all chunks' rows) that
            gives the column as it is at those rows; None: nothing does.
        batched: Whether columns are arrays of all chunks' rows from now on, since BatchIndividualItems has run.
        ragged: Whether sequences were taken out of their padding, so that rows are steps and there is no time axis.
        with_bootstrap_step: The episodes with the bootstrap row as a step, if a plain piece was shown them.
        cut: Which sequences are to be taken, if a piece said so; otherwise the module's settings do.
        own: The chunks without the rows ahead of them that the batch has, as long as it has such rows.
    """

    # what is not known when a call begins: set on the instance once it is, so that making a group costs little
    rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
    at: npt.NDArray[np.int64]
    plus_one: bool = False
    per_sequence: Mapping[str, Callable[[ChunkGroup, Any], Any] | None] = MappingProxyType({})
    batched: bool = False
    ragged: bool = False
    sequences: SequenceLayout | None = None
    cut: RandomCut | None = None
    _plain: list[Any] | None = None
    with_bootstrap_step: list[Any] | None = None
    own: ChunkTable | None = None
    _positions: dict[int, int] | None = None

    def __init__(
        self,
        call: PipelineCall,
        rl_module: Any,
        module_id: Any,
        episodes: Sequence[Any],
        plus_one: bool = False,
        at: npt.NDArray[np.int64] | None = None,
        keys: list[tuple[Any, ...]] | None = None,
    ) -> None:
        self.call = call
        self.rl_module = rl_module
        self.module_id = module_id
        self.episodes = episodes
        self.shared_data = call.shared_data
        self.training = call.training
        self.of_steps = call.training or call.by_hand
        if plus_one:
            self.plus_one = True
        self.several = call.several
        if at is not None:
            self.at = at
        if keys is not None:
            self.keys = keys

    @property
    def explore(self) -> bool | None:
        """True if actions are to explore."""
        return self.call.explore

    def has_per_sequence(self, column: str, take: Callable[[ChunkGroup, Any], Any] | None = None) -> None:
        """Let a column have one row per sequence, see `per_sequence`."""
        self.per_sequence = {**self.per_sequence, column: take}

    def for_module(self, rl_module: Any, module_id: Any) -> ChunkGroup:
        """The same chunks for another module."""
        out = copy.copy(self)
        out.rl_module, out.module_id = rl_module, module_id
        out.__dict__.pop("stateful", None)
        return out

    @property
    def left_out(self) -> Collection[str]:
        """Columns that the learner pipeline is not to make for the module, since nothing reads them."""
        by_module = self.shared_data.get(COLUMNS_LEFT_OUT)
        return by_module.get(self.module_id, ()) if by_module else ()

    @kept_property
    def stateful(self) -> bool:
        """True if the module is recurrent."""
        return is_stateful(self.rl_module)

    def is_per_sequence(self, column: str) -> bool:
        """True if a column has one row per sequence, and no time axis, where the batch consists of sequences."""
        return column in PER_SEQUENCE or column in self.per_sequence

    @kept_property
    def reader(self) -> EpisodeReader:
        """Reads rows of all chunks, wherever they are stored."""
        episodes, long = self.episodes, self.with_bootstrap_step
        if long is not None:
            return EpisodeReader(long, episodes)
        if not self.training and type(episodes) is list:  # newest rows: one each, whatever block they are in
            return EpisodeReader(episodes)
        return reader_of(episodes)

    def use(self, episodes: Sequence[Any]) -> None:
        """Be about other chunks from now on, of which none was shown to a plain piece."""
        self.episodes, self._plain, self._positions = episodes, None, None
        self.__dict__.pop("keys", None)
        self.invalidate()

    def invalidate(self) -> None:
        """Forget what is known about the episodes: a plain piece may have changed them."""
        self.__dict__.pop("reader", None)
        self.__dict__.pop("counts", None)

    @kept_property
    def keys(self) -> list[tuple[Any, ...]]:
        """One key per chunk, in the order of `episodes`."""
        call = self.call
        if not self.several:
            return chunk_keys(self.episodes)
        return list(call.chunks.keys(self.at, self.module_id, call.episode_keys))

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Steps of each chunk: int64, shape [number of chunks]."""
        return self.reader.table.lengths

    @kept_property
    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows that each chunk has in a train batch: its steps, and the bootstrap row if there is one."""
        return self.lengths + 1 if self.plus_one else self.lengths

    @property
    def expected_rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows that each chunk has in every column: sequences after padding, steps before, 1 when acting."""
        if self.rows is not None:
            return self.rows
        return self.counts if self.of_steps else np.ones(len(self.episodes), np.int64)

    def plain_episodes(self) -> list[Any]:
        """The episodes as a plain list, for pieces that do not declare to be columnar."""
        if self._plain is None:
            episodes = self.episodes
            if type(episodes) is VectorEpisodes:
                self._plain = episodes.views_of_all()
            else:
                self._plain = episodes if type(episodes) is list else list(episodes)
            if isinstance(episodes, ChunkTable):  # what is written to these objects does not reach the store
                self.episodes = self._plain
                self.invalidate()
        return self._plain

    def leave_out_ahead(self, columns: dict[str, Any]) -> dict[str, Any]:
        """The columns without the rows ahead of the chunks' own; from now on the group is about those alone."""
        own = self.own
        if own is None:
            return columns
        sizes, lengths, self.own = self.counts, own.lengths, None
        keep = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) < np.repeat(lengths, sizes)
        shown = type(self.episodes) is list
        self.use([part[:length] for part, length in zip(self.episodes, lengths.tolist())] if shown else own)
        return {name: column.kept(keep, lengths) for name, column in columns.items()}

    def add_bootstrap_step(self, episodes: list[Any] | None = None) -> None:
        """Show plain pieces episodes that have the bootstrap row as a step, and read columns from those.

        What a plain piece writes to them reaches the batch; the episodes that were given stay as they are.

        Args:
            episodes: Those with a bootstrap step, if they were made already.
        """
        if self.with_bootstrap_step is None:
            long = episodes or [episode.with_artificial_step() for episode in self.episodes]
            self.with_bootstrap_step = self._plain = long
            self._positions = None
            self.invalidate()

    def add_bootstrap_rows(self) -> None:
        """Let every chunk have one virtual bootstrap row at its end."""
        self.plus_one = True
        self.__dict__.pop("counts", None)

    def key_of(self, episode: Any) -> tuple[Any, ...] | None:
        """The key of an episode object of this group; None for a stranger."""
        if self._positions is None:
            self._positions = {id(item): i for i, item in enumerate(self.plain_episodes())}
        position = self._positions.get(id(episode))
        return None if position is None else self.keys[position]

    def describe(self, chunk: int) -> str:
        """Name a chunk for an error message."""
        episode_key, *agent = self.keys[chunk]
        place = f", agent {agent[0]!r}" if agent else f" (chunk {chunk} of {len(self.episodes)})"
        return f"episode {episode_key!r}{place}"

    def piece_for(self, piece: Any) -> Any:
        """A piece, or its copy for the spaces of these chunks' agents (or of their module) if it depends on spaces."""
        if not (self.several and piece.uses_spaces):
            return piece
        agents = getattr(self.episodes, "agents", None)
        agent_id = self.episodes[0].agent_id if agents is None else agents[0]
        return piece.parts.of(self.module_id if self.call.mapped else agent_id)


def chunk_keys(episodes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Key each chunk by its episode's id, or by id and position where an id occurs twice.

    Args:
        episodes: The chunks of one call; their ids are never changed.

    Returns:
        One tuple per chunk, all different.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> chunk_keys([SingleAgentEpisode(id_=name) for name in ("a", "b", "a")])
        [('a_0',), ('b',), ('a_2',)]
    """
    return [(name,) for name in numbered(episode_ids(episodes))]


def episode_ids(episodes: Sequence[Any]) -> list[Any]:
    """Return the id of each chunk's episode, without making objects of a VectorEpisodes."""
    return getattr(episodes, "ids", None) or [episode.id_ for episode in episodes]


def numbered(names: Sequence[Any]) -> Sequence[Any]:
    """Return unique names. Names that occur more than once get their position as a suffix.

    Examples:
        >>> numbered(["a", "a", "a_1"])
        ['a_0', 'a_1_', 'a_1']
    """
    if len(set(names)) == len(names):
        return names
    counts = Counter(names)
    unique_names = {name for name, count in counts.items() if count == 1}
    out: list[Any] = []
    for i, name in enumerate(names):
        if counts[name] > 1:
            name = f"{name}_{i}"
            while name in unique_names:
                name += "_"
            unique_names.add(name)
        out.append(name)
    return out
