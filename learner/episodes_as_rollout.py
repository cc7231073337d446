"""Chunks of one fragment as time-major arrays: what `RolloutStorage.from_episodes` is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns, nearest_column
from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

from ..episodes import VectorEpisodes, reader_of

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments as arrays.

    Args:
        num_steps: T.
        num_envs: N.
        lookback: L, the rows before the first step. An environment whose episode has fewer has an end before them.
        columns: Column -> arrays [L + T, N, ...]; of `obs` and `state_in` [L + T + 1, N, ...].
        terminal_rows: `obs` and `state_in` -> step -> the environments that ended in it, and their rows after it.
        t_started: Steps before the first row of the episodes that run then: int64 [N].
        returns_before: Their returns before it: float64 [N].
        ids: (environment, number of its episodes that ended before) -> id.
    """

    num_steps: int
    num_envs: int
    lookback: int
    columns: dict[str, Any]
    terminal_rows: dict[str, dict[int, tuple[Ints, Any]]]
    t_started: Ints
    returns_before: npt.NDArray[np.float64]
    ids: dict[tuple[int, int], str]


def rollout_of(episodes: VectorEpisodes, names: Collection[str] | None, initial_state: Any) -> Rollout:
    """Return a fragment as arrays, which show its block where each environment has the same rows of it.

    Args:
        episodes: Chunks of one fragment; those of one environment are in the order of time.
        names: Columns to return; None: all.
        initial_state: State of one environment, with which episodes begin; None: zeros.

    Raises:
        EpisodeError: environments have different numbers of steps, or a first step lacks the state before.
        ColumnError: there is no column of such a name.
    """
    if not isinstance(episodes, VectorEpisodes):
        raise _no_fragment(type(episodes).__name__)
    envs, lengths = episodes.envs(), episodes.lengths()
    num_envs = max(episodes.block.num_envs, int(envs.max(initial=-1)) + 1)
    steps = np.bincount(envs, lengths, minlength=num_envs).astype(np.int64)
    if len(episodes.blocks) > 1 or not steps.any() or (steps != steps[0]).any():
        raise _no_fragment(
            f"{len(episodes.blocks)} fragments" if len(episodes.blocks) > 1 else f"{steps.tolist()} steps"
        )
    fragment = _Fragment(episodes, envs, lengths, int(steps[0]), num_envs)
    first, columns = fragment.first, fragment.columns(names, initial_state)
    return Rollout(
        int(steps[0]),
        num_envs,
        fragment.lookback,
        columns,
        fragment.terminal_rows(columns),
        fragment.reader.starts[first],
        np.array([episodes.chunks[i].return_before for i in first.tolist()]),
        fragment.ids(episodes.ids),
    )


class _Fragment:
    """Chunks in the order of environments and time, and their columns as arrays [L + T, N, ...].

    Args:
        episodes: The chunks.
        envs: Environment of each: int64 [C].
        lengths: Steps of each: int64 [C].
        num_steps: T.
        num_envs: N.

    Attributes:
        reader: reads the rows of the chunks.
        order: the chunks with steps, in this order.
        first: the one of each environment: int64 [N].
        lookback: L, the most rows before the first step that no episode lacks which has as many.
    """

    def __init__(self, episodes: VectorEpisodes, envs: Ints, lengths: Ints, num_steps: int, num_envs: int) -> None:
        self.reader = reader_of(episodes)
        self._num_steps, self._num_envs = num_steps, num_envs
        present = np.flatnonzero(lengths)
        self.order = order = present[np.argsort(envs[present], kind="stable")]
        self._envs, self._lengths = envs[order], lengths
        self._stops = np.cumsum(lengths[order]) - self._envs * num_steps
        starts = self._stops - lengths[order]
        is_first = starts == 0
        self.first = order[is_first]
        kept, t_started = self.reader.lookbacks[order], self.reader.starts[order]
        partly = kept[is_first & (kept < t_started)]
        self.lookback = int(partly.min() if len(partly) else kept[is_first].max())
        self._begins = self.lookback + np.where(is_first, -kept, starts)
        """Row at which each chunk's episode begins, where that is known."""
        self._begins[~is_first & (t_started > 0)] = -1
        self._places = self._spread(np.cumsum(lengths) - lengths)
        self._block, self._row = episodes.block, -1
        chunks = episodes.chunks
        self._notes = [(view if (view := chunk.attached) is not None else chunk).custom_data for chunk in chunks]
        if (
            not episodes.recording
            and envs.tolist() == [chunk.env for chunk in chunks]
            and not any(chunk.detached for chunk in chunks)
        ):
            rows = self._spread(np.array([chunk.start for chunk in chunks], np.int64))
            if (rows == rows[0, 0] + np.arange(num_steps)[:, None]).all():
                self._row = int(rows[0, 0])

    def _spread(self, firsts: Ints) -> Ints:
        """Return the row of each step, int64 [T, N], for chunks whose rows begin at these."""
        rows = [np.arange(firsts[i], firsts[i] + self._lengths[i]) for i in self.order.tolist()]
        return np.concatenate(rows).reshape(self._num_envs, self._num_steps).T

    def columns(self, names: Collection[str] | None, initial_state: Any) -> dict[str, Any]:
        """Return the columns of these names, None for all."""
        makers: dict[str, Callable[[], Any]] = {
            Columns.OBS: self._observations,
            Columns.TERMINATEDS: lambda: self._flags()[0],
            Columns.TRUNCATEDS: lambda: self._flags()[1],
        }
        for name in (Columns.ACTIONS, Columns.REWARDS, *self.reader.outputs):
            if name == Columns.STATE_OUT:
                makers[Columns.STATE_IN] = lambda: self._states(initial_state)
            else:
                makers[name] = lambda name=name: self._column(name)  # type: ignore[misc]
        for name in names or ():
            if name not in makers:
                raise ColumnError(
                    f"RolloutStorage.from_episodes, column {name!r}",
                    expected="columns of the episodes",
                    found="none of that name",
                    do=nearest_column(name, list(makers)),
                )
        return {name: make() for name, make in makers.items() if names is None or name in names}

    def ids(self, names: list[str]) -> dict[tuple[int, int], str]:
        """Return (environment, number of its episodes that ended before) -> id."""
        numbers, out = [0] * self._num_envs, {}
        for env, chunk, ended in zip(self._envs.tolist(), self.order.tolist(), self.reader.ends[:, self.order].T):
            out[env, numbers[env]] = names[chunk]
            numbers[env] += bool(ended.any())
        return out

    def terminal_rows(self, names: Collection[str]) -> dict[str, dict[int, tuple[Ints, Any]]]:
        """Return column -> step -> the environments that ended in it, and their rows after it, where there are any."""
        ended: npt.NDArray[np.bool_] = np.logical_or(*self.reader.ends)
        out = {Columns.OBS: self._by_step(ended & ~self.reader.lack_final_obs, self._last_observations())}
        if Columns.STATE_IN in names:
            states = self.reader.rows(Columns.STATE_OUT, np.maximum(self._lengths - 1, 0), self._lengths)
            spread = np.cumsum(self._lengths > 0) - 1
            out[Columns.STATE_IN] = self._by_step(ended, map_struct(lambda leaf: leaf[spread], states.joined()))
        return out

    def _by_step(self, ended: npt.NDArray[np.bool_], rows: Any) -> dict[int, tuple[Ints, Any]]:
        """Return step -> the environments of the chunks of a mask that end in it, and their rows of [C, ...]."""
        ended, out = ended[self.order], {}
        for step in np.unique(self._stops[ended]).tolist():
            at = np.flatnonzero(ended & (self._stops == step))
            out[step - 1] = self._envs[at], map_struct(lambda leaf, at=at: leaf[self.order[at]], rows)
        return out

    def _flags(self) -> npt.NDArray[np.bool_]:
        """Return the flags (terminated, truncated) of each step: bool [2, L + T, N]."""
        flags = np.zeros((2, self.lookback + self._num_steps, self._num_envs), np.bool_)
        later = self._begins > 0
        flags[0, self._begins[later] - 1, self._envs[later]] = True
        flags[:, self.lookback + self._stops - 1, self._envs] = self.reader.ends[:, self.order]
        return flags

    def _column(self, name: str, more: int = 0) -> Any:
        """Return rows [L + T + more, N, ...] of the block, or else [L + T, N, ...] gathered from the chunks."""
        column, stop = self._block.column(name), self._row + self._num_steps + more
        if self._row >= 0 and column is not None and column.leaves and len(column.leaves[0]) >= stop:
            return unflatten(column.form, [leaf[self._row - self.lookback : stop] for leaf in column.leaves])
        rows = self.reader.rows(name)
        rows.check()
        own = map_struct(lambda leaf: leaf[self._places], rows.joined())
        if not self.lookback:
            return own
        steps = np.maximum(np.arange(-self.lookback, 0)[:, None], -self.reader.lookbacks[self.first])
        before = self.reader.at(name, np.tile(self.first, self.lookback), steps.ravel())
        return map_struct(lambda leaf, old: np.concatenate((old.reshape(-1, *leaf.shape[1:]), leaf)), own, before)

    def _observations(self) -> Any:
        last = self.order[self._stops == self._num_steps]
        return map_struct(
            lambda leaf, rows: (
                leaf if len(leaf) > self.lookback + self._num_steps else np.concatenate((leaf, rows[last][None]))
            ),
            self._column(Columns.OBS, 1),
            self._last_observations(),
        )

    def _last_observations(self) -> Any:
        """Return the last observation of each chunk: [C, ...]."""
        return self.reader.rows(Columns.OBS, self._lengths, self._lengths + 1).joined()

    def _states(self, initial: Any) -> Any:
        """Return the states before each step and after the last: [L + T + 1, N, ...]."""
        unknown = self.first[(self.reader.starts[self.first] > 0) & (self.reader.lookbacks[self.first] == 0)]
        if len(unknown):
            raise EpisodeError(
                "RolloutStorage.from_episodes",
                expected=f"the {Columns.STATE_OUT!r} before the first step of an episode that goes on",
                found=f"no lookback in {self.reader.describe(int(unknown[0]))}",
                do="make their storage with lookback=1 or more, or sample with a learner pipeline "
                "that reads one step back, as that of a recurrent module does",
            )
        begins, ended = self._begins >= 0, self.reader.ends[:, self.order].any(0)

        def shifted(leaf: Any, initial: Any = 0) -> Any:
            out = np.concatenate((np.zeros_like(leaf[:1]), leaf))
            out[self._begins[begins], self._envs[begins]] = initial
            out[self.lookback + self._stops[ended], self._envs[ended]] = initial
            return out

        states = map_struct(shifted, self._column(Columns.STATE_OUT), *([] if initial is None else [initial]))
        for i in np.flatnonzero(begins).tolist():
            noted = self._notes[self.order[i]]
            if noted and Columns.STATE_IN in noted:
                leaves, form = flatten(states)
                for leaf, row in zip(leaves, flatten_like(form, noted[Columns.STATE_IN])):
                    leaf[self._begins[i], self._envs[i]] = row
        return states


def _no_fragment(found: str) -> EpisodeError:
    return EpisodeError(
        "RolloutStorage.from_episodes",
        expected="VectorEpisodes of one fragment, with equally many steps of each environment",
        found=found,
        do="sample with gym_env_autoreset_mode='same_step', where no step is left out for a reset, and hand over "
        "the result of one sample(num_timesteps=...) with a multiple of the number of environments",
    )
