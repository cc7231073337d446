"""Stacks the newest observations."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, LookbackError, SpaceError, explain

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["FrameStacking"]


class FrameStacking(ColumnarPiece):
    """Puts the last `num_frames` observations into `obs`, oldest first, on the last axis.

    The episodes keep single frames, so one piece on each side gives both the same stacks; steps
    before the episode's start are zeros.

    Args:
        input_observation_space: A Box whose last axis has length 1, such as (84, 84, 1).
        input_action_space: Space of one action.
        num_frames: How many observations make a stack.
        as_learner_connector: Whether the batch is for training.

    Raises:
        ConfigError: `num_frames` is no positive int.
        SpaceError: observations of another kind.
        LookbackError: a chunk kept too little of the episode before it.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        num_frames: int = 1,
        as_learner_connector: bool = False,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        if not isinstance(num_frames, int) or num_frames < 1:
            raise ConfigError(
                explain(
                    "FrameStacking.num_frames",
                    expected="an int of at least 1",
                    found=repr(num_frames),
                    do="pass the number of frames to stack, such as num_frames=4",
                )
            )
        self.num_frames = num_frames
        self.lookback = num_frames - 1
        self._as_learner_connector = as_learner_connector

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The Box with `num_frames` on its last axis; the bounds take in the zeros of missing frames."""
        space = input_observation_space
        if not isinstance(space, gym.spaces.Box) or not space.shape or space.shape[-1] != 1:
            raise SpaceError(
                explain(
                    "FrameStacking",
                    expected="a Box whose last axis has length 1, such as (84, 84, 1)",
                    found=repr(space),
                    do="add that axis with a Gymnasium wrapper, or stack with a piece of your own",
                )
            )
        low = np.minimum(np.repeat(space.low, self.num_frames, -1), np.asarray(0, space.dtype))
        high = np.maximum(np.repeat(space.high, self.num_frames, -1), np.asarray(0, space.dtype))
        return gym.spaces.Box(low, high, dtype=low.dtype.type)

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Add the stacks."""
        if not len(call.episodes):
            return batch
        if not self._as_learner_connector:
            batch[Columns.OBS] = EpisodeColumn(self._newest(call))
            return batch
        counts = call.counts
        frames = [self._frames(call.episodes[i], count, i, call) for i, count in enumerate(counts.tolist())]
        out = np.empty((int(counts.sum()), *frames[0].shape[1:-1], self.num_frames), frames[0].dtype)
        start = 0
        for own, count in zip(frames, counts.tolist()):
            for k in range(self.num_frames):
                out[start : start + count, ..., k] = own[k : k + count, ..., 0]
            start += count
        batch[Columns.OBS] = EpisodeColumn(out, counts)
        return batch

    def _newest(self, call: Call) -> Any:
        if call.recording is not None:
            frames, rows = call.recording.latest_window(self.num_frames)
            for i in np.flatnonzero(rows < self.num_frames).tolist():
                self._check(call.episodes[i], int(rows[i]) - 1, i, call)
            self._check_shape(frames, 0, call)
            return np.moveaxis(frames[..., 0], 0, -1)
        stacks = []
        for i, episode in enumerate(call.episodes):
            self._check(episode, episode.observations.len_incl_lookback() - 1, i, call)
            frames = episode.get_observations(slice(-self.num_frames, None), fill=0)
            self._check_shape(frames, i, call)
            stacks.append(np.moveaxis(frames[..., 0], 0, -1))
        return np.stack(stacks)

    def _frames(self, episode: Any, count: int, chunk: int, call: Call) -> Any:
        """A chunk's frames with `num_frames - 1` before them; rows beyond its own repeat the last."""
        self._check(episode, episode.observations.lookback, chunk, call)
        before = -(self.num_frames - 1)
        own = (
            episode.get_observations(slice(before, count), neg_index_as_lookback=True, fill=0)
            if before
            else (episode.get_observations(slice(0, count)))
        )
        self._check_shape(own, chunk, call)
        return own

    def _check(self, episode: Any, available: int, chunk: int, call: Call) -> None:
        if (
            available < self.num_frames - 1
            and episode.t_started + len(episode) * (not self._as_learner_connector) > available
        ):
            raise LookbackError(
                explain(
                    f"FrameStacking, {call.describe(chunk)} that starts at t={episode.t_started}",
                    expected=f"a lookback of {self.num_frames - 1} steps",
                    found=f"{available} steps (zeros would hide frames that exist)",
                    do=f"cut episodes with len_lookback_buffer={self.num_frames - 1}",
                )
            )

    def _check_shape(self, frames: Any, chunk: int, call: Call) -> None:
        if not isinstance(frames, np.ndarray) or frames.ndim < 2 or frames.shape[-1] != 1:
            raise SpaceError(
                explain(
                    f"FrameStacking, {call.describe(chunk)}",
                    expected="observations whose last axis has length 1",
                    found=f"shape {getattr(frames, 'shape', None)}",
                    do="add that axis with a Gymnasium wrapper",
                )
            )
