"""The maximum of the last few observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import SpaceError

from .._engine.chunks import ChunkGroup
from ..common.observation_window import (
    ChunkFrames,
    FrameCount,
    ObservationWindow,
    pool_frames,
    pooled_newest,
    pooled_tensors,
)


class TimeMaxPool(ObservationWindow):
    """Makes `obs` the maximum of each observation and those right before it, entry by entry.

    Games that draw an object in every other frame only show all of them in the maximum of two (Mnih et al. 2015,
    "Human-level control through deep reinforcement learning"). At an episode's start there are fewer observations, and
    only those count. Episodes keep them as they are, so that the piece stands in both pipelines.

    For stacks of such frames, give `FrameStacking` a `max_pool`.

    Counterparts: TorchRL's `TimeMaxPool`.

    Args:
        input_observation_space: A Box, or a Dict or Tuple with Boxes at `columns`.
        columns: `obs`, or parts of a Dict or Tuple such as "obs/camera"; other parts stay as they are.
        num_frames: How many observations to take the maximum of, the newest included.

    Raises:
        ConfigError: `num_frames` is no positive int.
        SpaceError: observations of another kind.
        LookbackError: a chunk kept too little of the episode before it.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [np.array([1, 9]), np.array([3, 0]), np.array([2, 4])]}
        >>> episode = SingleAgentEpisode(id_="e", **rows, actions=[0, 0], rewards=[0.0, 0.0], len_lookback_buffer=0)
        >>> TimeMaxPool(as_learner_connector=True)(batch={}, episodes=[episode])["obs"][("e",)][0].tolist()
        [[1, 9], [3, 9]]
    """

    num_frames: FrameCount = 2
    multi_agent: bool = False

    def __post_init__(self) -> None:
        """Ask for as much history."""
        self.lookback = self.num_frames - 1

    def output_space(self, space: Any) -> Any:
        """The same Box: an entry's maximum is one of its values."""
        if isinstance(space, gym.spaces.Box):
            return space
        raise SpaceError(
            type(self).__name__,
            expected="observations in a Box, one array each",
            found=repr(space),
            do="flatten them, or select one part, with an earlier piece that rewrites observations",
        )

    def newest(self, window: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Any:
        """Return the maxima that end with the newest observations."""
        return pooled_newest(window, counts, self.num_frames)[0]

    def of_tensors(self, window: Any, known: Any) -> Any:
        """Return the maxima that end with the newest observations."""
        return pooled_tensors(window, known, self.num_frames)[:, 0]

    def of_all_steps(self, chunks: Iterator[ChunkFrames], group: ChunkGroup) -> Any:
        """Return the maxima that end with each observation, chunk after chunk."""
        out: Any = None
        for rows, before, place in chunks:
            if out is None:
                out = np.empty((int(group.counts.sum()), *rows.shape[1:]), rows.dtype)
            elif rows.dtype != out.dtype:
                out = out.astype(np.result_type(out, rows), copy=False)
            pool_frames(out[place], rows, before, self.num_frames)
        return out
