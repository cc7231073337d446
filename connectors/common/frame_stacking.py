"""Stacks the newest observations."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, LookbackError, SpaceError, explain
from epibatch.core.structs import flatten

from ...episodes.indexing import note_history
from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn
from .stacked_frames import stack_frames

__all__ = ["FrameStacking"]


class FrameStacking(ColumnarPiece):
    """Puts the last `num_frames` observations into `obs`, oldest first, on the last axis.

    The episodes keep single frames, so one piece on each side gives both the same stacks; steps
    before the episode's start are zeros.

    Train batches are contiguous as their shape says, `[B, ..., num_frames]`: rows of a minibatch are then
    picked ten times as fast, and PyTorch convolves such images (`channels_last`) up to 1.7 times as fast as
    others. Stacks to act on are made anew in every step, and are a view of `[N, num_frames, ...]`, which
    takes a tenth of the time to make.

    Args:
        input_observation_space: A Box whose last axis has length 1, such as (84, 84, 1).
        input_action_space: Space of one action.
        num_frames: How many observations make a stack.
        multi_agent: Whether the spaces are Dicts of several agents' spaces; a pipeline with AgentToModuleMapping knows.
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
    replaces = (Columns.OBS,)

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        num_frames: int = 1,
        multi_agent: bool = False,
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
        if self._as_learner_connector:
            batch[Columns.OBS] = EpisodeColumn(self._of_all_steps(call), call.counts)
        else:
            batch[Columns.OBS] = EpisodeColumn(self._newest(call))
        return batch

    def _of_all_steps(self, call: Call) -> Any:
        """The stacks that end with each observation, chunk after chunk; frames are read where they lie."""
        counts = call.counts
        out: Any = None
        start = 0
        for i, count in enumerate(counts.tolist()):
            t_started, lookback = call.history(i)
            self._check(lookback, t_started, t_started, i, call)
            note_history(lookback - self.lookback, lookback, t_started)
            before = min(lookback, self.lookback)
            if call.vector is not None:
                frames = self._frames(call.vector.observation_rows(i, before, count), i, call)
            else:
                frames = self._frames(call.episodes[i].observations.rows(-before, count), i, call)
            if out is None:
                out = np.empty((int(counts.sum()), *frames.shape[1:-1], self.num_frames), frames.dtype)
            elif frames.dtype != out.dtype or frames.shape[1:-1] != out.shape[1:-1]:
                out = self._fitting(out, frames, i, call)
            stack_frames(out[start : start + count], frames, before)
            start += count
        return out

    def _newest(self, call: Call) -> Any:
        """The stacks that end with the newest observations."""
        if call.recording is not None:
            window, rows = call.recording.latest_window(self.num_frames)
            for i in np.flatnonzero(rows < self.num_frames).tolist():
                self._check_newest(call.episodes[i], int(rows[i]) - 1, i, call)
            return np.moveaxis(self._frames(flatten(window)[0], 0, call)[..., 0], 0, -1)
        out: Any = None
        for i, episode in enumerate(call.episodes):
            buffer = episode.observations
            held = buffer.len_incl_lookback()
            length = held - buffer.lookback
            first = length - self.num_frames
            if first < 0:
                first = self._first_held(episode, first, i, call)
            frames = self._frames(buffer.rows(first, length), i, call)
            if out is None:
                places = np.empty((len(call.episodes), self.num_frames, *frames.shape[1:-1]), frames.dtype)
                out = np.moveaxis(places, 1, -1)
            elif frames.dtype != out.dtype or frames.shape[1:-1] != out.shape[1:-1]:
                out = self._fitting(out, frames, i, call)
                places = np.moveaxis(out, -1, 1)
            missing = self.num_frames - len(frames)
            if missing:
                places[i, :missing] = 0
            places[i, missing:] = frames[..., 0]
        return out

    def _first_held(self, episode: Any, first: int, chunk: int, call: Call) -> int:
        """The first frame of a stack that reaches into the lookback, or back beyond it where nothing was before."""
        buffer = episode.observations
        if first < -buffer.lookback:
            self._check_newest(episode, buffer.len_incl_lookback() - 1, chunk, call)
        note_history(first + buffer.lookback, buffer.lookback, buffer.t_started)
        return max(first, -int(buffer.lookback))

    def _fitting(self, out: Any, frames: Any, chunk: int, call: Call) -> Any:
        """The stacks so far, in a type that can hold a chunk's frames too.

        Raises:
            ColumnError: frames of another shape.
        """
        if frames.shape[1:-1] != out.shape[1:-1]:
            raise ColumnError(
                explain(
                    "FrameStacking",
                    expected=f"frames of shape {(*out.shape[1:-1], 1)}, as in {call.describe(0)}",
                    found=f"{frames.shape[1:]} in {call.describe(chunk)}",
                    do="batch only episodes of one space, or bring them to one shape with a piece in front",
                )
            )
        return out.astype(np.result_type(out.dtype, frames.dtype), copy=False)

    def _check_newest(self, episode: Any, available: int, chunk: int, call: Call) -> None:
        self._check(available, episode.t_started + len(episode), episode.t_started, chunk, call)

    def _check(self, available: int, steps: int, t_started: int, chunk: int, call: Call) -> None:
        """Refuse to fill in for frames that exist: `steps` lie before the first stack's own, `available` are held."""
        if available < self.lookback and steps > available:
            raise LookbackError(
                explain(
                    f"FrameStacking, {call.describe(chunk)} that starts at t={t_started}",
                    expected=f"a lookback of {self.lookback} steps",
                    found=f"{available} steps (zeros would hide frames that exist)",
                    do=f"cut episodes with len_lookback_buffer={self.lookback}",
                )
            )

    def _frames(self, leaves: list[Any], chunk: int, call: Call) -> Any:
        """The one array of a column of frames."""
        if len(leaves) == 1 and leaves[0].ndim > 1 and leaves[0].shape[-1] == 1:
            return leaves[0]
        raise SpaceError(
            explain(
                f"FrameStacking, {call.describe(chunk)}",
                expected="observations whose last axis has length 1",
                found=f"shapes {[leaf.shape for leaf in leaves]}",
                do="add that axis with a Gymnasium wrapper",
            )
        )
