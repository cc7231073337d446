"""Steps of environments of tensors, which become episodes when a fragment ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.structs import convert_to_numpy, map_struct

from ...episodes import VectorEpisodes
from ...episodes.running_episodes import RunningEpisodes
from ...episodes.vector_checks import ended_twice

_ITS_OWN = (Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.STATE_IN)


class TensorRecorder:
    """The steps of N environments since the last fragment as tensors on their device.

    `flush` copies each column to the host once, for all steps.

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

    def flush(self, lookback: int, *, check: bool = True) -> VectorEpisodes:
        """Return the steps since the last fragment as chunks: those that ended in the order of their ends, the others.

        Args:
            lookback: Steps to keep for the next fragment.
            check: Whether rewards are checked.

        Raises:
            ColumnError: a reward is not finite.
            EpisodeError: an environment ended in a step that only reset it.
        """
        steps, history = self._steps, self._kept
        names = [name for name in steps[0] if name != Columns.OBS]
        columns = {name: map_struct(_stacked, *(step[name] for step in steps)) for name in names}
        rewards = columns[Columns.REWARDS][history:]
        if check and not np.isfinite(rewards).all():
            row, env = np.argwhere(~np.isfinite(rewards))[0, :2].tolist()
            raise ColumnError(
                f"column {Columns.REWARDS!r} of environment {env}",
                expected="finite rewards",
                found=f"{rewards[row, env]} in step {row + 1} of {len(rewards)} since the last episodes were returned",
                do="correct the environment's rewards",
            )
        flags = [columns[name].reshape(len(steps), -1) != 0 for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)]
        ended = flags[0] | flags[1]
        resets = None if self._resets[0] is None else _stacked(*self._resets)
        between = np.zeros_like(ended) if resets is None else resets
        if check and (ended & between).any():
            raise ended_twice(np.flatnonzero((ended & between).any(0)).tolist())
        episodes = VectorEpisodes.from_arrays(
            _as_dicts(map_struct(_stacked, *(step[Columns.OBS] for step in steps), self.newest)),
            columns[Columns.ACTIONS],
            columns[Columns.REWARDS],
            *flags,
            extra_model_outputs={name: column for name, column in columns.items() if name not in _ITS_OWN},
            terminal_observations={
                t: (final[0].cpu().numpy(), _as_dicts(convert_to_numpy(final[1])))
                for t, final in enumerate(self._finals)
                if final is not None and t >= history
            },
            lookback=history,
            t_started=self._running.steps.copy(),
            returns_before=self._running.returns.copy(),
            name=self._running.name,
            numbers=self._running.numbers.copy(),
            states_before=columns.get(Columns.STATE_IN),
            resets=resets,
            missing_final_obs=self._missing_final_obs,
        )
        self._running.follow(ended[history:], rewards, between[history:])
        self._kept = min(lookback, len(steps))
        dropped = len(steps) - self._kept
        for rows in (self._steps, self._finals, self._resets):
            del rows[:dropped]
        order = _by_end(episodes)
        self.partial = {episodes.ids[i] for i in order if not episodes.terminateds()[i] | episodes.truncateds()[i]}
        return episodes.take(order)

    def abort(self) -> list[Any]:
        """Drop what was not flushed, and return the episodes that ended in it with finite rewards."""
        episodes = self.flush(0, check=False) if len(self._steps) > self._kept else []
        self._forget()
        return [episode for episode in episodes if episode.is_done and np.isfinite(episode.get_rewards()).all()]


def _stacked(*leaves: torch.Tensor) -> npt.NDArray[Any]:
    stack = torch.stack(leaves)
    array: npt.NDArray[Any] = (stack.float() if stack.dtype is torch.bfloat16 else stack).cpu().numpy()
    return array


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
