"""A replay buffer of episodes of one agent, drawn uniformly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, ReplayError
from epibatch.core.restoring import check_count, restore_generator, restoring
from epibatch.core.state_codec import require_mapping

from ..single_agent_episode import SingleAgentEpisode
from ..store import Flags, Ints
from .lanes import Lanes
from .sampled_episodes import SampledEpisodes

_FEWEST_ROWS, _MOST_RUNNING, _TRIES = 2, 256, 8
"""Rows of a lane at least; episodes of lists that may go on; rounds of drawing before all steps are looked at."""


class EpisodeReplayBuffer:
    """Keeps the newest steps of episodes, and draws parts of them again.

    What is drawn is a sequence of episodes, which any learner pipeline takes. Its rows are read where they lie, so no
    episode object is made unless a piece asks for one.

    Steps lie in lanes, one for each environment; see `epibatch.episodes.replay.Lanes`. Every observation is kept once,
    so frames are stacked when they are drawn. The oldest steps of a lane are overwritten one by one.

    Counterparts: RLlib's `EpisodeReplayBuffer`, of which the oldest episodes are let go as a whole.

    Args:
        capacity: Rows: one for each step, and one for the last observation of each episode; at least 2.
        batch_size_B: Items of a draw that says nothing else.
        batch_length_T: Steps of an item, fewer where its episode ends before; 0 or 1 for single steps.
        kept_outputs: Names of the model outputs to keep; None: all.
        seed: Seed of the draws; None: another one in each buffer.

    Raises:
        ReplayError: a capacity below 2.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> buffer = EpisodeReplayBuffer(capacity=100, seed=0)
        >>> buffer.add(SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 3.0],
        ...                               terminated=True, len_lookback_buffer=0))
        >>> drawn = buffer.sample(4)
        >>> len(buffer), len(drawn), [len(episode) for episode in drawn]
        (3, 4, [1, 1, 1, 1])
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        kept_outputs: Collection[str] | None = None,
        seed: int | None = None,
    ) -> None:
        if capacity < _FEWEST_ROWS:
            raise ReplayError(
                "EpisodeReplayBuffer", expected="a capacity of at least 2", found=str(capacity), do="raise it"
            )
        self.capacity, self.batch_size_B, self.batch_length_T = int(capacity), batch_size_B, batch_length_T
        self.kept_outputs = kept_outputs
        self.lanes = Lanes(0, self.capacity, kept_outputs)
        self._lane_of: dict[Any, int] = {}  # lanes of environments by source and number, and those of lists
        self._running: dict[Any, int] = {}  # the lanes of running episodes of lists, the least recent first
        self._idle: list[int] = []  # lanes of lists in which none runs
        self._rng = np.random.default_rng(seed)
        self._added = self._sampled = 0

    def __len__(self) -> int:
        """Return the number of steps that it holds."""
        return self.lanes.num_steps

    # -- adding --------------------------------------------------------------------------------------

    def add(self, episodes: Any, source: Any = 0) -> None:
        """Add the steps of episodes, or of parts of them; later parts of a running episode go on where it was.

        Args:
            episodes: One episode, a list of them, or what a runner's `sample` returned.
            source: Distinguishes runners, if several fill the buffer: their environments have lanes of their own.

        Raises:
            ColumnError: a column that is missing, new, or of another nesting or shape than before. Nothing was added.
        """
        if isinstance(episodes, SingleAgentEpisode):
            episodes = [episodes]
        chunks = getattr(episodes, "chunks", None)
        if chunks is None:
            episodes = [episode for episode in episodes if len(episode)]
        if not len(episodes):
            return
        if chunks is not None:
            lanes = [self._lane_of_env((source, chunk.env)) for chunk in chunks]
        else:
            lanes = [self._lane_of_episode(episode, source) for episode in episodes]
        self._grow()
        self._added += sum(map(len, episodes)) if chunks is None else int(episodes.table.lengths.sum())
        self._written(self.lanes.add(episodes, np.array(lanes, np.int64)))

    def _written(self, places: Ints) -> None:
        """Take note of rows that were written; for subclasses."""

    def _lane_of_env(self, key: Any) -> int:
        return self._lane_of.setdefault(key, self._num_lanes)

    def _lane_of_episode(self, episode: SingleAgentEpisode, source: Any) -> int:
        """The lane of an episode of a list: where it runs, else the emptiest one in which none runs."""
        key = source, episode.id_
        lane = self._running.pop(key, None)
        if lane is None:
            if not self._idle and len(self._running) < _MOST_RUNNING:
                self._idle.append(self._num_lanes)
                self._lane_of["list", self._num_lanes] = self._num_lanes
            elif not self._idle:
                self._idle.append(self._running.pop(next(iter(self._running))))
            written = self.lanes.written
            lane = min(self._idle, key=lambda i: written[i] if i < len(written) else 0)
            self._idle.remove(lane)
        if episode.is_done:
            self._idle.append(lane)
        else:
            self._running[key] = lane
        return lane

    @property
    def _num_lanes(self) -> int:
        return len(self._lane_of)

    def _grow(self) -> None:
        """Have as many lanes as are used."""
        wanted = self._num_lanes
        if wanted <= self.lanes.num_lanes:
            return
        rows = self.capacity // wanted
        if rows < _FEWEST_ROWS:
            raise ReplayError(
                "EpisodeReplayBuffer",
                expected=f"a capacity of at least {_FEWEST_ROWS * wanted}, {_FEWEST_ROWS} rows for each environment",
                found=str(self.capacity),
                do="raise it",
            )
        self.lanes = self.lanes.resized(wanted, rows)

    # -- drawing -------------------------------------------------------------------------------------

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        lookback: int = 0,
        min_batch_length_T: int = 1,
    ) -> SampledEpisodes:
        """Draw parts of episodes, each from a step drawn uniformly, with replacement.

        Args:
            num_items: How many; default: `batch_size_B`.
            batch_size_B: The same, in RLlib's word.
            batch_length_T: Steps of each, fewer where its episode ends before; default: the buffer's.
            lookback: Steps that each needs before its start, if the episode had them: what pieces read.
            min_batch_length_T: Steps that each has at least.

        Raises:
            ReplayError: no step of the buffer is such a start.
        """
        count = self.batch_size_B if batch_size_B is None else batch_size_B
        count = count if num_items is None else num_items
        length = max(self.batch_length_T if batch_length_T is None else batch_length_T, 1)

        def may_begin(places: Ints) -> Flags:
            lanes = self.lanes
            fits = lanes.are_steps(places)
            if lookback or min_batch_length_T > 1:
                life = lanes.lives_of(places)
                held = places - np.maximum(life.first, lanes.oldest(places))
                fits &= held >= np.minimum(lookback, lanes.steps_of(places))
                fits &= life.last - places >= min_batch_length_T
            return fits

        places = self._draw(count, may_begin, lookback, min_batch_length_T)
        self._sampled += count
        return SampledEpisodes(self.lanes, places, length)

    def _candidates(self, count: int) -> Ints:
        """Draw so many places, with replacement; those that are no steps are drawn again."""
        return self.lanes.places(self._rng.integers(0, int(self.lanes.filled.sum()), count))

    def _among(self, places: Ints, count: int) -> Ints:
        """Draw so many of these places."""
        return places[self._rng.integers(0, len(places), count)]

    def _draw(self, count: int, may_begin: Callable[[Ints], Flags], lookback: int, shortest: int) -> Ints:
        found: list[Ints] = []
        missing = count
        for _ in range(_TRIES if len(self) else 0):
            if not missing:
                break
            places = self._candidates(missing + missing // 8 + 8)
            found.append(places[may_begin(places)][:missing])
            missing -= len(found[-1])
        if missing:  # there are few such steps, or none
            every = self.lanes.places(np.arange(int(self.lanes.filled.sum())))
            every = every[may_begin(every)]
            if not len(every):
                raise ReplayError(
                    "EpisodeReplayBuffer.sample",
                    expected=f"a step with {lookback} steps before it or since its episode's start, and "
                    f"{shortest} of its episode from it on",
                    found=f"none among {len(self)} steps",
                    do="add episodes, or ask for shorter parts",
                )
            found.append(self._among(every, missing))
        return np.concatenate(found)

    # -- state ---------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything that it holds, with the state of its random generator: arrays, numbers and text."""
        return {
            "lanes": self.lanes.get_state(),
            "lane_of": [[*key, lane] for key, lane in self._lane_of.items()],
            "running": [[*key, lane] for key, lane in self._running.items()],
            "idle": list(self._idle),
            "generator": self._rng.bit_generator.state,
            "counts": [self._added, self._sampled],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; what is added and drawn then is the same, bit for bit.

        Raises:
            CheckpointError: it is something else; the buffer is as it was.
        """
        where = f"state of {type(self).__name__}"
        with restoring(where, "lanes"):
            require_mapping(where, state)
            lanes = Lanes.from_state(require_mapping(where, state["lanes"]), self.kept_outputs)
            tables = [
                {(a, b): check_count(where, lane) for a, b, lane in state[name]} for name in ("lane_of", "running")
            ]
            idle = [check_count(where, lane) for lane in state["idle"]]
            added, sampled = (check_count(where, count) for count in state["counts"])
            numbers = sorted(tables[0].values())
            used = {*tables[1].values(), *idle}
            if numbers != list(range(lanes.num_lanes)) or not used <= set(numbers):
                raise CheckpointError(
                    where, expected=f"{lanes.num_lanes} lanes", found=f"{numbers}", do="restore a whole state"
                )
            restore_generator(where, self._rng, state["generator"])
        self.lanes, (self._lane_of, self._running), self._idle = lanes, tables, idle
        self._added, self._sampled = added, sampled

    # -- counts --------------------------------------------------------------------------------------

    def get_num_timesteps(self) -> int:
        """Return the number of steps that it holds."""
        return len(self)

    def get_added_timesteps(self) -> int:
        """Return the number of steps that were ever added."""
        return self._added

    def get_sampled_timesteps(self) -> int:
        """Return the number of items that were ever drawn."""
        return self._sampled
