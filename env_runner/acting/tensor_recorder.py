"""Steps of environments of tensors, which become episodes when a fragment ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from epibatch.core.arrays_or_tensors import are_finite, as_float64, copied, on_device, put, take
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.structs import convert_to_numpy, flatten, flatten_like, map_struct, unflatten

from ...episodes import VectorEpisodes
from ...episodes.chunk_table import ChunkTable
from ...episodes.running_episodes import RunningEpisodes
from ...episodes.store import Columnar
from ...episodes.tail_rows import TailRows
from ...episodes.vector_checks import ended_twice

_NOT_ROWS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.STATE_IN)
_ITS_OWN = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *_NOT_ROWS)


class TensorRecorder:
    """The steps of N environments since the last fragment as tensors on their device.

    `flush` copies each column to the host once, for all steps, or leaves rows where they are.

    Args:
        num_envs: N.
        missing_final_obs: Last observation of an episode of which no terminal one comes, as of `VectorRecorder`.

    Attributes:
        observations: The first ones of the episodes that begin, as the newest reset returned them.
        newest: The observations after the newest step, tensors `[N, ...]`, which nothing writes to.
        partial: Ids of the running episodes that have steps in earlier fragments.
        waiting: The environments that pieces cannot ask to skip: none, since none can be skipped.
    """

    waiting = ()

    def __init__(self, num_envs: int, missing_final_obs: Any = None) -> None:
        self.num_envs = num_envs
        self._missing_final_obs = "keep" if missing_final_obs is None else missing_final_obs
        self.observations: Any = None
        self.newest: Any = None
        self.partial: set[str] = set()
        self._steps: list[dict[str, Any]] = []
        self._finals: list[Any] = []
        self._resets: list[Any] = []
        self._kept = 0  # steps of earlier fragments among them
        numbers, steps = np.zeros((2, num_envs), np.int64)
        self._running = RunningEpisodes(numbers, steps, np.zeros(num_envs))
        self._forget()

    def _forget(self) -> None:
        self._steps, self._finals, self._resets, self._kept = [], [], [], 0
        self.partial = set()

    @property
    def history(self) -> int:
        """Steps that there are."""
        return len(self._steps)

    def reserve(self, vector_steps: int) -> None:
        """Do nothing: steps are kept one by one."""

    def reset(self, observations: Any, infos: Any) -> None:
        """Begin with new episodes."""
        self._running.begin()
        self._forget()
        self.observations = observations

    def add_step(
        self, step: Mapping[str, Any], final: tuple[torch.Tensor, Any] | None, resets: torch.Tensor | None = None
    ) -> None:
        """Add a step.

        Args:
            step: Column -> tensors `[N, ...]`, which nothing may write to any more.
            final: The environments whose terminal observations came, int64 [n], and these, `[n, ...]`.
            resets: The environments that it only reset, bool [N]; None: they reset in the step of an end.
        """
        self._steps.append(dict(step))
        self._finals.append(final)
        self._resets.append(resets)

    def flush(self, lookback: int, *, check: bool = True, as_tensors: bool = False) -> Any:
        """Return the steps since the last fragment as chunks: those that ended in the order of their ends, the others.

        Args:
            lookback: Steps to keep for the next fragment.
            check: Whether rewards are checked.
            as_tensors: True: return a `ChunkTable` with rows in tensors on their device; else `VectorEpisodes`.

        Raises:
            ColumnError: a reward is not finite.
            EpisodeError: an environment ended in a step that only reset it.
        """
        steps, history = self._steps, self._kept
        names = [name for name in steps[0] if name != Columns.OBS]
        stack = _on_device if as_tensors else _stacked
        columns = {name: map_struct(stack, *(step[name] for step in steps)) for name in names}
        rewards = columns[Columns.REWARDS][history:]
        if check and not are_finite(rewards):
            rewards = convert_to_numpy(rewards)
            row, env = np.argwhere(~np.isfinite(rewards))[0, :2].tolist()
            raise ColumnError(
                f"column {Columns.REWARDS!r} of environment {env}",
                expected="finite rewards",
                found=f"{rewards[row, env]} in step {row + 1} of {len(rewards)} since the last episodes were returned",
                do="correct the environment's rewards",
            )
        flags = [_flags(columns[name]) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)]
        ended = flags[0] | flags[1]
        resets = None if self._resets[0] is None else _stacked(*self._resets)
        between = np.zeros_like(ended) if resets is None else resets
        if check and (ended & between).any():
            raise ended_twice(np.flatnonzero((ended & between).any(0)).tolist())
        columns[Columns.OBS] = _as_dicts(map_struct(stack, *(step[Columns.OBS] for step in steps), self.newest))
        finals = {
            t: (final[0].cpu().numpy(), _as_dicts(final[1]))
            for t, final in enumerate(self._finals)
            if final is not None and t >= history
        }
        running = self._running
        running.returns = (
            on_device(running.returns, rewards.device) if as_tensors else convert_to_numpy(running.returns)
        )
        rest = {"lookback": history, "resets": resets, "name": running.name}
        rest |= {"t_started": running.steps.copy(), "numbers": running.numbers.copy()}
        arrays = partial(
            _episodes, columns, finals, flags, **rest, returns_before=copied(running.returns),
            missing_final_obs=self._missing_final_obs,
        )  # fmt: skip
        episodes = _places(len(steps), self.num_envs, finals, flags, rest) if as_tensors else arrays()
        running.follow(ended[history:], rewards, between[history:])
        self._kept = min(lookback, len(steps))
        dropped = len(steps) - self._kept
        for rows in (self._steps, self._finals, self._resets):
            del rows[:dropped]
        order = _by_end(episodes)
        self.partial = {episodes.ids[i] for i in order if not episodes.terminateds()[i] | episodes.truncateds()[i]}
        part = episodes.take(order)
        return _table(part, columns, finals, partial(_taken, arrays, order)) if as_tensors else part

    def abort(self) -> list[Any]:
        """Drop what was not flushed, and return the episodes that ended in it with finite rewards."""
        episodes = self.flush(0, check=False) if len(self._steps) > self._kept else []
        self._forget()
        return [episode for episode in episodes if episode.is_done and np.isfinite(episode.get_rewards()).all()]


def _taken(arrays: Any, order: Any) -> VectorEpisodes:
    """Return some of the episodes that a function makes; a table with it can be pickled."""
    episodes: VectorEpisodes = arrays().take(order)
    return episodes


def _episodes(columns: Any, finals: Any, flags: Any, *, returns_before: Any, **rest: Any) -> VectorEpisodes:
    """Return the chunks as episodes of arrays."""
    columns = convert_to_numpy(columns)
    return VectorEpisodes.from_arrays(
        *(columns[name] for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)),
        *flags,
        extra_model_outputs={name: column for name, column in columns.items() if name not in _ITS_OWN},
        terminal_observations={t: (envs, convert_to_numpy(rows)) for t, (envs, rows) in finals.items()},
        returns_before=as_float64(convert_to_numpy(returns_before)),
        states_before=columns.get(Columns.STATE_IN),
        **rest,
    )


def _places(num_steps: int, num_envs: int, finals: Any, flags: Any, rest: Any) -> VectorEpisodes:
    """Return the chunks as episodes whose observations are places: the rows' own, then those of terminal ones."""
    places, stop, last = np.arange((num_steps + 1) * num_envs).reshape(-1, num_envs), (num_steps + 1) * num_envs, {}
    for t, (envs, _) in finals.items():
        last[t] = envs, np.arange(stop, stop + len(envs))
        stop += len(envs)
    steps = places[:-1]
    return VectorEpisodes.from_arrays(places, steps, steps, *flags, terminal_observations=last, **rest)


def _table(places: VectorEpisodes, columns: Any, finals: Any, arrays: Callable[[], VectorEpisodes]) -> ChunkTable:
    """Return chunks whose rows are tensors; see `_places`."""
    flat = map_struct(lambda leaf: leaf.flatten(0, 1), {k: v for k, v in columns.items() if k not in _NOT_ROWS})
    table = places.table
    last = np.array(list(table.tails.values()), np.int64)
    obs, form = flatten(flat[Columns.OBS])
    came = np.flatnonzero(last >= len(obs[0]))
    tails = [take(leaf, np.minimum(last, len(leaf) - 1)) for leaf in obs]
    ends = zip(*(flatten_like(form, rows) for _, rows in finals.values()))
    for leaf, before, rows in zip(tails, obs, ends):
        put(leaf, came, take(torch.cat(rows), last[came] - len(before)))
    table.stores = [Columnar({name: flatten(column)[::-1] for name, column in flat.items()})]
    table.tails = TailRows(np.array(list(table.tails), np.int64), unflatten(form, tails))
    table.lack_final_obs = np.zeros(len(table), np.bool_)  # their tails are the observations before
    table.ids, table.envs, table.device, table.arrays = places.ids, places.envs(), obs[0].device, arrays
    return table


def _on_device(*leaves: torch.Tensor) -> torch.Tensor:
    stack = torch.stack(leaves)
    return stack.float() if stack.dtype is torch.bfloat16 else stack


def _stacked(*leaves: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = _on_device(*leaves).cpu().numpy()
    return array


def _flags(column: Any) -> npt.NDArray[np.bool_]:
    """Return a column of flags as an array: bool [T, N]."""
    flags: npt.NDArray[np.bool_] = convert_to_numpy(column.reshape(len(column), -1) != 0)
    return flags


def _as_dicts(struct: Any) -> Any:
    """Return a structure with a dict of its two parts for each `MaskedColumn`, as its space is one."""
    if isinstance(struct, MaskedColumn):
        return struct._asdict()
    if isinstance(struct, dict):
        return {key: _as_dicts(part) for key, part in struct.items()}
    return tuple(map(_as_dicts, struct)) if isinstance(struct, tuple) else struct


def _by_end(episodes: VectorEpisodes) -> list[int]:
    """Return the positions of chunks: those that ended in the order of their ends, then the others by environment."""
    ended = (episodes.terminateds() | episodes.truncateds()).tolist()
    stops = [chunk.stop if done else np.inf for chunk, done in zip(episodes.chunks, ended)]
    return sorted(range(len(stops)), key=lambda i: (stops[i], episodes.chunks[i].env))
