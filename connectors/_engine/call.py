"""What one call of a pipeline is about: its episodes, their keys, and who may read what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.column_use import COLUMNS_LEFT_OUT
from epibatch.core.columns import Columns

from ...episodes._storage.column_parts import lengths_of
from ...episodes._storage.whole_block import whole_block
from ...episodes.vector_episodes import VectorEpisodes
from .chunk_keys import chunk_keys
from .lengthened import lengthened
from .modules import is_stateful

if TYPE_CHECKING:
    from epibatch.core.padding import PaddedLayout

    from .agent_call import AgentCall
    from .sequences import RandomCut

__all__ = ["ADDED_LOSS_MASK", "PER_SEQUENCE", "Call", "running_call", "within"]

ADDED_LOSS_MASK = "_added_loss_mask_for_valid_episode_ts"
PER_SEQUENCE = frozenset(
    (
        Columns.SEQ_LENS,
        Columns.STATE_IN,
        Columns.NEXT_STATE_IN,
        Columns.RESET_STATES,
        Columns.NEXT_RESET_STATES,
    )
)


class Call:
    """The circumstances of one pipeline call, made once and handed to every columnar piece.

    Args:
        rl_module: The module that the batch is for, or that made it; may be None.
        episodes: A list of episodes, or a VectorEpisodes.
        explore: Whether actions are to explore.
        shared_data: A dict that pieces of several pipelines share.
        metrics: A metrics logger, or None.
        training: Whether the batch is for training (one row per step) or for acting (one per
            episode); None where a piece runs by itself.
        plus_one: Whether every chunk has one virtual bootstrap row at its end.
        kwargs: Whatever else the caller passed.
        keys: Makes one key per episode, when one is needed; default: they are made of the ids.
        module_id: Whose rows these are, if the call is one module's part of one about several agents.

    Attributes:
        halves_floats: Whether arrays are made right in front of the piece that makes them float32.
        sequences: How the rows were laid out as `[B, T]`, once they were: as sequences, or as agents of one env step.
        per_sequence: Further columns with one row per sequence and no time axis, whatever their second axis is: name ->
            function of the call and of one row for each sequence (int64 [B], numbers among all chunks' rows) that gives
            the column as it is at those rows; None: nothing does.
        batched: Whether columns are arrays of all chunks' rows from now on, since BatchIndividualItems has run.
        ragged: Whether sequences were taken out of their padding, so that rows are steps and there is no time axis.
        cut: Which sequences are to be taken, if a piece said so; otherwise the module's settings do.
        handed_out: Columns that plain pieces are shown, each with the items that they were given.
        piece: The plain piece that is running, if one is.
    """

    grouped: Literal[False] = False

    # what is not known when a call begins: set on the instance once it is, so that making a call costs little
    rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
    piece: Any = None
    halves_floats: bool = False
    batched: bool = False
    ragged: bool = False
    sequences: PaddedLayout | None = None
    cut: RandomCut | None = None
    _keys: list[tuple[Any, ...]] | None = None
    _lengths: np.ndarray[Any, np.dtype[np.int64]] | None = None
    _plain: list[Any] | None = None
    _lengthened: list[Any] | None = None
    _positions: dict[int, int] | None = None
    _vector: VectorEpisodes | None = None
    _looked: bool = False
    _stateful: bool | None = None

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
        keys: Callable[[], list[tuple[Any, ...]]] | None = None,
        module_id: Any = None,
    ) -> None:
        self.rl_module = rl_module
        self.episodes = episodes
        self.explore = explore
        self.shared_data: dict[str, Any] = {} if shared_data is None else shared_data
        self.metrics = metrics
        self.training = training
        self.plus_one = plus_one
        self.kwargs = kwargs or {}
        self.module_id = module_id
        self._make_keys = keys
        self.handed_out: dict[str, Any] = {}
        self.per_sequence: dict[str, Callable[[Call, Any], Any] | None] = {}

    @property
    def left_out(self) -> Collection[str]:
        """Columns that the learner pipeline is not to make for the module, since nothing reads them."""
        by_module = self.shared_data.get(COLUMNS_LEFT_OUT)
        return by_module.get(DEFAULT_MODULE_ID if self.module_id is None else self.module_id, ()) if by_module else ()

    @property
    def stateful(self) -> bool:
        """Whether the module is recurrent."""
        if self._stateful is None:
            self._stateful = is_stateful(self.rl_module)
        return self._stateful

    def is_per_sequence(self, column: str) -> bool:
        """Whether a column has one row per sequence, and no time axis, where the batch consists of sequences."""
        return column in PER_SEQUENCE or column in self.per_sequence

    @contextmanager
    def about_module(self, module_id: Any) -> Iterator[None]:
        """Let the call be about one module of its MultiRLModule while the context is open."""
        modules, stateful = self.rl_module, self._stateful
        self.rl_module, self._stateful = modules[module_id], None
        try:
            yield
        finally:
            self.rl_module, self._stateful = modules, stateful

    def set_explore(self, explore: bool | None) -> None:
        """Set whether actions are to explore."""
        self.explore = explore

    @property
    def vector(self) -> VectorEpisodes | None:
        """The episodes, if whole columns can be read from a block."""
        if not self._looked:
            self._looked = True
            self._vector = whole_block(self.episodes) if self._lengthened is None else None
        return self._vector

    def look_again(self, *, rewritten: bool = False) -> None:
        """Forget what is known about the episodes: a plain piece may have changed them, newest observations too."""
        self._looked, self._lengths = False, None

    @property
    def recording(self) -> VectorEpisodes | None:
        """The episodes, if they are the ones that a recorder is adding to."""
        episodes = self.episodes
        return episodes if type(episodes) is VectorEpisodes and episodes.recording else None

    def ends(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each chunk's episode was terminated, and truncated, at its end: bool, [2, chunks]."""
        episodes = self.vector
        if episodes is not None:
            return np.stack([episodes.terminateds(), episodes.truncateds()])
        terminateds = [episode.is_terminated for episode in self.episodes]
        return np.array([terminateds, [episode.is_truncated for episode in self.episodes]], np.bool_)

    def history(self, chunk: int) -> tuple[int, int]:
        """Step at which a chunk starts, and how many steps before that it holds."""
        episodes = self.vector
        if episodes is not None:
            own = episodes.chunks[chunk]
            return own.t_started, own.start - own.low
        episode = self.episodes[chunk]
        return episode.t_started, episode.rewards.lookback

    def histories(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Step at which each chunk starts, and how many steps before that it holds: int64, [2, chunks]."""
        episodes = self.vector
        if episodes is not None:
            chunks = episodes.chunks
            return np.array([[own.t_started for own in chunks], [own.start - own.low for own in chunks]], np.int64)
        started = [episode.t_started for episode in self.episodes]
        return np.array([started, [episode.rewards.lookback for episode in self.episodes]], np.int64)

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        """One key per chunk, in the order of `episodes`."""
        if self._keys is None:
            self._keys = self._make_keys() if self._make_keys else chunk_keys(self.episodes)
        return self._keys

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Steps of each chunk: int64, shape [number of chunks]."""
        if self._lengths is None:
            vector, episodes = self.vector, self.episodes
            if vector is not None:
                self._lengths = vector.lengths()
            elif isinstance(episodes, VectorEpisodes):
                self._lengths = episodes.lengths()
            else:
                self._lengths = np.array(lengths_of(episodes), np.int64)
        return self._lengths

    @property
    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows that each chunk has in a train batch: its steps, and the bootstrap row if there is one."""
        return self.lengths + 1 if self.plus_one else self.lengths

    @property
    def expected_rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows that each chunk has in every column: sequences after padding, steps before, 1 when acting."""
        if self.rows is not None:
            return self.rows
        return np.ones(len(self.episodes), np.int64) if self.training is False else self.counts

    def plain_episodes(self) -> list[Any]:
        """The episodes as a plain list, for pieces that do not declare to be columnar."""
        if self._plain is None:
            episodes = self.episodes
            if type(episodes) is VectorEpisodes:
                self._plain = episodes.views_of_all()
            else:
                self._plain = episodes if type(episodes) is list else list(episodes)
        return self._plain

    def lengthen(self, episodes: list[Any] | None = None) -> None:
        """Show plain pieces episodes that have the bootstrap row as a step, and read columns from those.

        What a plain piece writes to them reaches the batch; the episodes that were given stay as they are.

        Args:
            episodes: The lengthened ones, if they were made already.
        """
        if self._lengthened is None:
            self._lengthened = self._plain = episodes or [lengthened(episode) for episode in self.episodes]
            self._positions = None
            self._looked = False

    @property
    def lengthened(self) -> list[Any] | None:
        """The episodes with the bootstrap row as a step, if a plain piece was shown them."""
        return self._lengthened

    def take_keys(self, columns: Iterable[Any]) -> None:
        """Let the chunks be those that columns have keys of; for a piece that is tried without episodes.

        Args:
            columns: plain per-episode columns, `{key: [items]}`.
        """
        self._keys = list(dict.fromkeys(key for column in columns for key in column))

    def key_of(self, episode: Any) -> tuple[Any, ...] | None:
        """The key of an episode object of this call; None for a stranger."""
        if self._positions is None:
            self._positions = {id(one): i for i, one in enumerate(self.plain_episodes())}
        position = self._positions.get(id(episode))
        return None if position is None else self.keys[position]

    def describe(self, chunk: int) -> str:
        """Name a chunk for an error message."""
        if self.module_id is not None:
            episode_key, agent_id, _ = self.keys[chunk]
            return f"episode {episode_key!r}, agent {agent_id!r}"
        return f"episode {self.keys[chunk][0]!r} (chunk {chunk} of {len(self.episodes)})"


_RUNNING: ContextVar[Call | AgentCall | None] = ContextVar("epibatch_call", default=None)


def running_call() -> Call | AgentCall | None:
    """The call that is running in this context, if any."""
    return _RUNNING.get()


class within:  # a class: a generator's context manager takes four times as long
    """Make `call` the running one while the context is open."""

    __slots__ = ("_call", "_token")

    _token: Token[Call | AgentCall | None]

    def __init__(self, call: Call | AgentCall) -> None:
        self._call = call

    def __enter__(self) -> Call | AgentCall:
        self._token = _RUNNING.set(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        _RUNNING.reset(self._token)
