"""One environment's part of a block, and the episode object that shows it."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import EpisodeStateError
from epibatch.core.structs import flatten

from .._parts.acting_rewards import ActingRewards
from .._parts.arguments import fresh_id
from ..arrays import as_value, owned
from ..infinite_lookback_buffer import InfiniteLookbackBuffer
from ..single_agent_episode import SingleAgentEpisode
from .block import Block
from .growing_column import NOTHING, GrowingColumn
from .infos_buffer import MISSING_FINAL_OBS, InfosBuffer


@dataclass(eq=False, repr=False)
class Chunk:
    """Rows `low` to `stop` of one environment in a block, those before `start` as lookback.

    Args:
        block: Where the rows are.
        env: Index of the environment.
        low: First row, lookback included.
        start: First row of the chunk itself.
        spaces: Observation and action space of one environment.
        id_: Name of the episode; default: a random hex string.
        t_started: Step of the episode at row `start`.
        custom_data: What the episode's earlier chunks carried.
        is_first: True if the episode begins with this chunk, though its steps before belong to another episode.
        stop: Row after the last step of a finished chunk.
        terminated: Whether the episode was terminated there.
        truncated: Whether it was truncated there.

    Attributes:
        origin: The environment and the return before, if the rows were moved to a block with other environments.
    """

    block: Block
    env: int
    low: int
    start: int
    spaces: tuple[gym.Space[Any] | None, gym.Space[Any] | None]
    id_: str = field(default_factory=fresh_id)
    t_started: int = 0
    custom_data: dict[str, Any] | None = None
    is_first: bool = False
    stop: int | None = None
    terminated: bool = False
    truncated: bool = False
    tail: Any = field(default=NOTHING, init=False)
    tail_infos: Any = field(default=None, init=False)
    origin: tuple[int, float] | None = field(default=None, init=False)
    _view: weakref.ref[SingleAgentEpisode] | None = field(default=None, init=False)

    @property
    def attached(self) -> SingleAgentEpisode | None:
        """The episode object that shows this chunk, if it was made and still exists."""
        return None if self._view is None else self._view()

    def __getstate__(self) -> dict[str, Any]:
        view = self.attached
        custom = self.custom_data if view is None else view.custom_data
        return {**vars(self), "custom_data": custom, "_view": None}

    @property
    def lacks_final_obs(self) -> bool:
        """True if the environment gave no terminal observation, and another row takes its place."""
        return self.tail_infos is not None and MISSING_FINAL_OBS in self.tail_infos

    @property
    def end(self) -> int:
        """Row after the newest step."""
        return self.block.newest(self.env) if self.stop is None else self.stop

    @property
    def continues(self) -> bool:
        """True if the episode has steps in earlier chunks."""
        return self.t_started > 0 and not self.is_first

    @property
    def return_before(self) -> float:
        """Sum of the episode's rewards before row `start`; NaN if it is not known."""
        if not self.continues:
            return 0.0
        if self.origin is not None:
            return self.origin[1]
        return float("nan") if self.block.returns_before is None else float(self.block.returns_before[self.env])

    @property
    def name(self) -> str:
        """Name of the episode."""
        view = self.attached
        return self.id_ if view is None else view.id_

    @property
    def ends(self) -> tuple[bool, bool]:
        """The flags (terminated, truncated) at the chunk's end."""
        view = self.attached
        return (self.terminated, self.truncated) if view is None else (view.is_terminated, view.is_truncated)

    def __len__(self) -> int:
        view = self.attached
        return self.end - self.start if view is None or self._is_all_of(view) else len(view)

    @property
    def detached(self) -> bool:
        """True if the episode object shows other rows than this chunk's: a column was replaced, or owns its rows."""
        view = self.attached
        return view is not None and not self._is_all_of(view)

    def _is_all_of(self, view: SingleAgentEpisode) -> bool:
        """Return True if an episode object shows this chunk's rows in every column, and no other column."""
        if view.t_started != self.t_started or len(view.extra_model_outputs) != len(self.block.extras):
            return False
        return self.replaced_column(view) is None

    def replaced_column(self, view: SingleAgentEpisode) -> str | None:
        """Return the name of a recorded column of an episode object that shows other rows than this chunk's."""
        block, outputs, lookback = self.block, view.extra_model_outputs, self.start - self.low
        columns: list[tuple[str, Any, GrowingColumn]] = [
            (Columns.REWARDS, view.rewards, block.rewards),
            (Columns.OBS, view.observations, block.observations),
            (Columns.ACTIONS, view.actions, block.actions),
        ]
        columns += [(key, outputs.get(key), column) for key, column in block.extras.items()]
        for name, buffer, column in columns:
            source: Any = getattr(buffer, "source", None)
            if source is None or source.chunk is not self or source.column is not column or buffer.lookback != lookback:
                return name
        return None

    def finish(self, row: int, terminated: bool, truncated: bool) -> None:
        """Fix the chunk's end."""
        self.stop, self.terminated, self.truncated = row, terminated, truncated
        view = None if self._view is None else self._view()
        if view is not None:
            view.is_terminated, view.is_truncated = terminated, truncated

    def next_chunk(self, block: Block, row: int, cut: bool = True) -> Chunk:
        """Return the chunk that continues in `block`, where `row` holds this one's newest observation.

        Args:
            block: It holds as many of the rows before as the chunk is to have.
            row: Its newest row.
            cut: False: this chunk's own steps are the new one's, too; True: they are its lookback.
        """
        end = self.end
        own = 0 if cut else end - self.start
        view = self.attached
        custom = self.custom_data if view is None else view.custom_data
        if view is not None:
            shift = self.low - end + row
            read = view.infos.rows_read().items()
            block.own_infos.update({(at + shift, self.env): copy.copy(info) for at, info in read if at + shift >= 0})
        return Chunk(
            block,
            self.env,
            max(0, self.low - end + row),
            row - own,
            self.spaces,
            self.id_,
            self.t_started + end - self.start - own,
            copy.deepcopy(custom) if custom else None,
            self.is_first and own == end - self.start,
        )

    @property
    def is_provisional(self) -> bool:
        """True if the chunk's newest observation can be replaced by any other."""
        return self.block.observations.provisional and self.end == self.block.newest(self.env)

    def row_apart(self) -> Any:
        """Return the newest observation if it lies apart from its block's arrays; else NOTHING."""
        block, env = self.block, self.env
        apart = block.observations.pending is not NOTHING or env in block.written
        return block.newest_row(env) if apart and self.tail is NOTHING and self.is_provisional else self.tail

    def view(self) -> SingleAgentEpisode:
        """Return the episode object that shows this chunk; the same one as long as it is referenced."""
        view = self.attached
        if view is None:
            view = self._make_view()
            self.attach(view)
        return view

    def attach(self, view: SingleAgentEpisode) -> None:
        """Let an episode object that was made elsewhere be the one that shows this chunk."""
        self.block.num_objects += 1
        self._view = weakref.ref(view)

    def _make_view(self) -> SingleAgentEpisode:
        block, (observation_space, action_space) = self.block, self.spaces
        rewards = self._buffer(block.rewards, None)
        if block.unknown_rewards:
            rewards = ActingRewards.over(RowSource(self, block.rewards), self.start - self.low, None)
        return SingleAgentEpisode.over(
            {
                "observations": self._buffer(block.observations, observation_space),
                "actions": self._buffer(block.actions, action_space),
                "rewards": rewards,
                "infos": InfosBuffer.over(self, self.start - self.low),
                "extra_model_outputs": {key: self._buffer(column, None) for key, column in block.extras.items()},
            },
            self.id_,
            self.t_started,
            terminated=self.terminated,
            truncated=self.truncated,
            custom_data=self.custom_data,
            return_before=self.return_before,
        )

    def _buffer(self, column: GrowingColumn, space: gym.Space[Any] | None) -> InfiniteLookbackBuffer:
        return InfiniteLookbackBuffer.over(RowSource(self, column), self.start - self.low, space)

    def info_at(self, position: int) -> Any:
        """The info dict of a row, counted from the first one, that of the lookback."""
        row = self.low + position
        if row == self.stop and self.tail_infos is not None:
            return self.tail_infos
        return self.block.info_at(row, self.env)

    def add_columns(self) -> None:
        """Show columns that the block got after the episode object was made."""
        view = self.attached
        if view is not None and view.extra_model_outputs.keys() != self.block.extras.keys():
            for key, column in self.block.extras.items():
                if key not in view.extra_model_outputs:
                    view.extra_model_outputs[key] = self._buffer(column, None)
                    view.extra_model_outputs[key].t_started = self.t_started


class RowSource(NamedTuple):
    """Gives a buffer its rows of one column of a chunk: what a buffer asks the owner of its rows.

    Observations have one row more than the other columns, which may be provisional. The last one of an episode never
    lies in the block if the row is another episode's there.
    """

    chunk: Chunk
    column: GrowingColumn

    def sync(self, buffer: InfiniteLookbackBuffer) -> None:
        """Point the buffer at the rows as they are now."""
        chunk, column, block = self.chunk, self.column, self.chunk.block
        low, stop = chunk.low, chunk.end
        pending, provisional = NOTHING, False
        if column is block.observations:
            pending = chunk.row_apart()
            provisional = pending is not NOTHING or chunk.is_provisional
            stop += pending is NOTHING
        form, leaves = column.form, [leaf[low:stop, chunk.env] for leaf in column.leaves]
        if pending is not NOTHING and stop == low:  # it is the first row, so that there are none that it could not fit
            values, form = flatten(pending)
            leaves, pending, stop = [as_value(value)[None] for value in values], NOTHING, low + 1
        buffer.form, buffer.leaves, buffer.stop = form, leaves, stop - low if leaves else 0
        buffer.pending, buffer.provisional = pending, provisional

    def write_newest(self, row: Any) -> None:
        """Replace the provisional observation."""
        if self.chunk.tail is not NOTHING:
            self.chunk.tail = owned(row)
        else:
            self.chunk.block.write_newest(self.chunk.env, row)

    def release(self, change: str) -> None:
        """Called before the buffer copies its rows to own them.

        Args:
            change: What needs rows of its own.

        Raises:
            EpisodeStateError: the rows are still being recorded.
        """
        if self.chunk.stop is None:
            raise EpisodeStateError(
                f"episode {self.chunk.id_}",
                expected="reading, or writing existing rows, while its environment runner records it",
                found=change,
                do="work on a copy: copy.deepcopy(episode)",
            )


def chunk_of(episode: Any) -> Chunk | None:
    """Return the finished chunk that an episode object shows; None if it shows other rows or is no view of a chunk."""
    chunk: Chunk | None = getattr(getattr(getattr(episode, "rewards", None), "source", None), "chunk", None)
    if chunk is None or chunk.stop is None or chunk.attached is not episode or chunk.detached:
        return None
    return chunk
