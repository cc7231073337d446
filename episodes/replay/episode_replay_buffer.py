"""A replay buffer of episodes of one agent, drawn uniformly."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, ReplayError
from epibatch.core.metrics import NUM_ENV_STEPS_SAMPLED
from epibatch.core.restoring import check_count, restore_generator, restore_on_error, restoring
from epibatch.core.runtime import device_name
from epibatch.core.state_codec import require_mapping
from epibatch.core.structs import flatten

from ..chunk_table import in_arrays
from ..single_agent_episode import SingleAgentEpisode
from ..store import Ints, Leaf
from .lanes import Lanes
from .saved_buffer import SavedBuffer
from .step_draws import StepDraws, check_least

_FEWEST_ROWS, _MOST_RUNNING = 2, 256
"""Rows of a lane at least; episodes of lists that may go on."""


class EpisodeReplayBuffer(StepDraws, SavedBuffer):
    """Keeps the newest steps of episodes, and draws parts of them again.

    What is drawn is a sequence of episodes, which any learner pipeline takes. Its rows are read where they lie, so no
    episode object is made unless a piece asks for one.

    Steps lie in lanes, one for each environment; see `epibatch.episodes.replay.Lanes`. Every observation is kept once,
    so frames are stacked when they are drawn. The oldest steps of a lane are overwritten one by one.

    Counterparts: RLlib's `EpisodeReplayBuffer`, of which the oldest episodes are let go as a whole.

    Args:
        capacity: Rows: one for each step, and one for the last observation of each episode; at least 2, and more than
            `batch_length_T`.
        batch_size_B: Items of a draw that says nothing else.
        batch_length_T: Steps of an item, fewer where its episode ends before; 0 or 1 for single steps.
        metrics_num_episodes_for_smoothing: Accepted for ported code: `get_metrics` has sums, and no means to smooth.
        kept_outputs: Names of the model outputs to keep; None: all.
        keep_infos: True: keep the infos too, for draws with `include_infos=True`.
        capacity_bytes: Bytes of all rows, by which the first rows say how many there may be, in place of `capacity`;
            None: `capacity` counts.
        folder: Where the rows lie, in files that are mapped into memory and go with the process; None: in memory.
        device: Where the rows are as tensors, such as "cuda". Draws are tensors there, and so are batches. None: the
            rows are arrays.
        pin_memory: True: the rows are tensors in page-locked memory of the host, and so is what pieces read of them.
        seed: Seed of the draws; None: another one in each buffer.

    Raises:
        ReplayError: an argument out of its range.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> buffer = EpisodeReplayBuffer(capacity=100, seed=0)
        >>> buffer.add(SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 3.0],
        ...                               terminated=True, len_lookback_buffer=0))
        >>> drawn = buffer.sample(4)
        >>> len(buffer), len(drawn), [len(episode) for episode in drawn]
        (3, 4, [1, 1, 1, 1])
    """

    lanes: Lanes

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        metrics_num_episodes_for_smoothing: int = 100,
        kept_outputs: Collection[str] | None = None,
        keep_infos: bool = False,
        capacity_bytes: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        device: Any = None,
        pin_memory: bool = False,
        seed: int | Sequence[int] | None = None,
    ) -> None:
        where = type(self).__name__
        check_least(where, 1, batch_size_B=batch_size_B)
        check_least(where, 0, batch_length_T=batch_length_T)
        least = max(_FEWEST_ROWS, batch_length_T + 1)
        check_least(where, least, capacity=capacity, capacity_bytes=capacity_bytes)
        if device is not None or pin_memory:
            _check_device(where, device, pin_memory, keep_infos=keep_infos, folder=folder)
        self._options = kept_outputs, keep_infos, folder, device, pin_memory
        lanes = Lanes(0, int(capacity), *self._options)
        super().__init__(
            lanes,
            np.random.default_rng(seed),
            batch_size_B=batch_size_B,
            batch_length_T=batch_length_T,
            keep_infos=keep_infos,
        )
        self.capacity_bytes, self.folder = capacity_bytes, folder
        self.capacity, self.kept_outputs = int(capacity), kept_outputs
        self._lane_of: dict[Any, int] = {}  # lanes of environments by source and number, and those of lists
        self._running: dict[Any, int] = {}  # the lanes of running episodes of lists, the least recent first
        self._idle: list[int] = []  # lanes of lists in which none runs
        self._reported: dict[str, int] = {}  # the sums of the last `get_metrics`

    def __len__(self) -> int:
        """Return the number of steps that it holds."""
        return self.lanes.num_steps

    # -- adding --------------------------------------------------------------------------------------

    def add(self, episodes: Any, *, source: Any = 0) -> None:
        """Add the steps of episodes, or of parts of them; later parts of a running episode go on where it was.

        Args:
            episodes: One episode, a list of them, what a runner's `sample` returned, or a `RolloutStorage`.
            source: Distinguishes runners, if several fill the buffer: their environments have lanes of their own.

        Raises:
            ColumnError: a column that is missing, new, or of another nesting or shape than before. Nothing was added.
            ReplayError: more environments than the capacity has room for. Nothing was added.
        """
        self.prepare(episodes, source)()

    def prepare(self, episodes: Any, source: Any = 0, marks: Ints | None = None) -> Callable[[], None]:
        """Check episodes, and return the function that adds them; nothing else may be added before.

        Args:
            episodes: As for `add`.
            source: As for `add`.
            marks: A number for each row, which `lanes` keeps: int64 [sum of lengths + 1], of the episodes with steps.

        Raises:
            ColumnError: as for `add`.
        """
        with restore_on_error(self.undo()):
            return self._prepared(episodes, source, marks)

    def undo(self) -> Callable[[], Any]:
        """Return the function that takes back what `prepare` or draws change, unless something was written since."""
        before = {**vars(self), **{name: copy.copy(vars(self)[name]) for name in ("_lane_of", "_running", "_idle")}}
        generator = self._rng.bit_generator
        put_back = partial(setattr, generator, "state", generator.state)
        return lambda: (vars(self).update(before), put_back())

    def _prepared(self, episodes: Any, source: Any, marks: Ints | None) -> Callable[[], None]:
        if isinstance(episodes, SingleAgentEpisode):
            episodes = [episodes]
        if hasattr(episodes, "chunk_table"):
            episodes = episodes.chunk_table()
        if self.lanes.device is None:
            episodes = in_arrays(episodes)
        chunks, envs = getattr(episodes, "chunks", None), getattr(episodes, "envs", None)
        if chunks is not None:
            envs = [chunk.env for chunk in chunks]
        ended: list[SingleAgentEpisode] = []  # without a step, after those that were added before
        if envs is None:
            ended = [episode for episode in episodes if not len(episode) and episode.is_done]
            episodes = [episode for episode in episodes if len(episode)]
        if not len(episodes):
            return lambda: self._end(ended, source)
        if envs is not None:
            lanes = [self._lane_of_env((source, int(env))) for env in envs]
        else:
            lanes = [self._lane_of_episode(episode, source) for episode in episodes]
        if self.capacity_bytes is not None and not self.lanes.num_lanes:
            self.capacity = self._capacity_of(self.lanes.leaves_of(episodes))
        self._grow()
        reader, columns = self.lanes.read(episodes)

        def write() -> None:
            self._written(self.lanes.write(episodes, reader, columns, np.array(lanes, np.int64), marks))
            self._end(ended, source)

        return write

    def _end(self, episodes: list[SingleAgentEpisode], source: Any) -> None:
        """Let running episodes be ended that have no further step."""
        for episode in episodes:
            lane = self._running.pop((source, episode.id_), None)
            if lane is not None:
                self._idle.append(lane)
                self.lanes.end(lane, episode.id_, episode.is_terminated, episode.is_truncated)

    def _written(self, places: Ints) -> None:
        """Take note of rows that were written; for subclasses."""

    def _capacity_of(self, leaves: Iterable[Leaf]) -> int:
        """Return the number of rows that may be, of which these are some."""
        return self.capacity if self.capacity_bytes is None else self.capacity_bytes // Lanes.row_bytes(leaves)

    def _lane_of_env(self, key: Any) -> int:
        return self._lane_of.setdefault(key, len(self._lane_of))

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

    def _check_length(self, steps: int) -> None:
        most = self.lanes.rows_per_lane - 1
        if steps > most:
            raise self._refusal(
                "batch_length_T", f"at most {most} steps, which a lane holds", str(steps), "raise the capacity"
            )

    # -- state ---------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything that it holds, with the state of its random generator: arrays, numbers and text."""
        return {
            "lanes": self.lanes.get_state(),
            "lane_of": [[*key, lane] for key, lane in self._lane_of.items()],
            "running": [[*key, lane] for key, lane in self._running.items()],
            "idle": list(self._idle),
            "generator": self._rng.bit_generator.state,
            "counts": [self._sampled, self._given],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; what is added and drawn then is the same, bit for bit.

        Raises:
            CheckpointError: it is something else; the buffer is as it was.
        """
        where = f"state of {type(self).__name__}"
        with restoring(where, "lanes"):
            require_mapping(where, state)
            rows = check_count(where, state["lanes"]["rows_per_lane"]) * len(state["lanes"]["written"])
            columns = [flatten(column)[0] for column in state["lanes"]["columns"].values()]
            capacity = self._capacity_of(np.asarray(leaf) for leaves in columns for leaf in leaves)
            if rows > capacity:
                do = "make a buffer of that capacity"
                raise CheckpointError(where, expected=f"at most {capacity} rows", found=f"{rows}", do=do)
            lanes = Lanes.from_state(require_mapping(where, state["lanes"]), *self._options)
            tables = [
                {(a, b): check_count(where, lane) for a, b, lane in state[name]} for name in ("lane_of", "running")
            ]
            idle = [check_count(where, lane) for lane in state["idle"]]
            sampled, given = (check_count(where, count) for count in state["counts"])
            numbers = sorted(tables[0].values())
            used = {*tables[1].values(), *idle}
            if numbers != list(range(lanes.num_lanes)) or not used <= set(numbers):
                raise CheckpointError(
                    where, expected=f"{lanes.num_lanes} lanes", found=f"{numbers}", do="restore a whole state"
                )
            restore_generator(where, self._rng, state["generator"])
        self.capacity = capacity
        self.lanes, (self._lane_of, self._running), self._idle = lanes, tables, idle
        self._sampled, self._given = sampled, given
        self._reported = self._sums()

    # -- counts --------------------------------------------------------------------------------------

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return the number of steps that it holds.

        Args:
            module_id: Accepted for ported code, here and below: all steps are of one module.
        """
        return len(self)

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return the number of episodes of which it holds a step."""
        return self.lanes.num_episodes

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return the number of episodes that were added, and of which it holds no step any more."""
        return self.lanes.num_episodes_added - self.lanes.num_episodes

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return the number of steps that were ever added."""
        return self.lanes.num_steps_added

    def get_sampled_timesteps(self, module_id: Any = None) -> int:
        """Return the number of steps that were ever drawn, those drawn again included."""
        return self._sampled

    def get_metrics(self) -> dict[str, int]:
        """Return counts of steps and episodes under RLlib's names.

        Those that end with `_lifetime` are of all that was ever added, overwritten (`evicted`) and drawn; those of the
        same name without it are since the last call.
        """
        sums, before = self._sums(), self._reported
        self._reported = sums
        return {
            "num_episodes_stored": self.get_num_episodes(),
            "num_env_steps_stored": len(self),
            **{name: value - before.get(name, 0) for name, value in sums.items()},
            **{f"{name}_lifetime": value for name, value in sums.items()},
        }

    def _sums(self) -> dict[str, int]:
        return {
            "num_episodes_added": self.lanes.num_episodes_added,
            "num_episodes_evicted": self.get_num_episodes_evicted(),
            "num_env_steps_added": self.lanes.num_steps_added,
            "num_env_steps_evicted": self.lanes.num_steps_added - len(self),
            NUM_ENV_STEPS_SAMPLED: self._sampled,
        }


def _check_device(where: str, device: Any, pin_memory: bool, **others: Any) -> None:
    """Refuse what is no device, and what tensors cannot have; a device that this machine lacks is found later."""
    try:
        name = "meta" if str(device) == "meta" else device_name("cpu" if device is None else device)
    except ValueError as error:
        do = 'pass "cuda", "cpu", or None for arrays'
        raise ReplayError(f"{where}, device", expected="a device", found=f"{device!r} ({error})", do=do) from None
    others["device"] = pin_memory and name != "cpu" and name
    for option, value in others.items():
        if value:
            beside = "pin_memory=True" if option == "device" else "device or pin_memory"
            expected, do = f"no {option} with {beside}", f"leave out {option}, or {beside}"
            raise ReplayError(f"{where}, {option}", expected=expected, found=repr(value), do=do)
