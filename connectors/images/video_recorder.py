"""Keeps frames of what is acted in, for videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from epibatch.core.errors import ConfigError, PieceError, RunnerError
from epibatch.core.structs import flatten
from epibatch.core.video import VideoWriter, frame_of, grid_of, stacked

from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup, episode_ids
from .._engine.columns import Batch
from ..authoring.column_paths import ColumnPath, observation_paths
from ..columnar_piece import Piece
from ..tensor_step import TensorStep


class VideoRecorder(Piece):
    """Keeps frames of the environments, side by side in a grid, for a video; the batch stays as it is.

    A frame shows what the environments render, or the images of an observation column. A call of the pipeline is a
    frame, every `skip`-th if that is given. After `max_frames` the piece keeps no more and costs nothing. `dump`
    returns the frames, writes a file, and lets the next video begin.

    With `every` videos begin by themselves. Each is logged as a metric when it is complete. It is then in the results
    of the iteration, and the loggers `video` and `tensorboard` write it. Frozen pieces keep no frames.

    Observations that earlier pieces rewrite are shown as those leave them. If environments reset in the step that ends
    an episode, they render the first image of the next episode in place of the last one. Observations have both: the
    last ones are frames of their own.

    Counterparts: TorchRL's `VideoRecorder`, `PixelRenderTransform`.

    Args:
        columns: `obs` or a part of it, such as `obs/pixels`, of one agent: [height, width], with 1 or 3 channels last
            or first, bytes or floats from 0 to 1. None: what the environments render, which need
            `render_mode="rgb_array"`.
        skip: Keep the first of so many frames.
        max_frames: The most frames of a video.
        max_envs: The most environments in the grid.
        every: Calls from the beginning of a video to that of the next; None: each begins with `dump`.
        name: Name of the metric.

    Raises:
        ConfigError: `every` is shorter than a video.
        ColumnError: the column has no images.
        RunnerError: the environments render nothing.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> recorder = VideoRecorder(columns="obs", skip=2)
        >>> episodes = [SingleAgentEpisode(observations=[np.full((2, 3), i, np.uint8)]) for i in range(2)]
        >>> for _ in range(5):
        ...     batch = recorder(batch={}, episodes=episodes)
        >>> recorder.dump().shape
        (3, 2, 6, 3)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    needs_episodes: ClassVar[bool] = True
    takes_tensors: ClassVar[bool] = True
    columns: str | None = None
    skip: Annotated[int, Ge(1)] = 1
    max_frames: Annotated[int, Ge(1)] = 1000
    max_envs: Annotated[int, Ge(1)] = 16
    every: Annotated[int, Ge(1)] | None = None
    name: str = "video"

    def __post_init__(self) -> None:
        """Begin without frames."""
        self._path = None if self.columns is None else observation_paths("VideoRecorder", self.columns)[0]
        self._frames: list[npt.NDArray[np.uint8]] = []
        self._calls = 0
        self._env: Any = None
        self._rows = 0
        self._shown: dict[Any, Any] = {}  # id of an episode -> its frame, in the order of the grid
        if self.every is not None and self.every < self.skip * self.max_frames:
            raise ConfigError(
                "VideoRecorder.every",
                expected=f"at least {self.skip * self.max_frames} calls, skip times max_frames",
                found=repr(self.every),
                do="begin videos less often, or set a smaller max_frames",
            )

    def on_environment(self, env: Any) -> None:
        """Render this environment from now on."""
        self._env = env

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Keep a frame, if one is due."""
        if len(call.episodes) and not self._is_gone(call.episodes) and self._is_due():
            if self._path is not None and call.several:
                raise PieceError(
                    "VideoRecorder.columns",
                    expected="None, with several agents",
                    found=repr(self.columns),
                    do="leave it out, and let the environment render",
                )
            self._keep(
                self._rendered() if self._path is None else self._of_column(self._path, *call.groups.values()), call
            )
        return batch

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Do nothing: `run_all` does all."""
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Keep a frame, if one is due; calls about terminal observations have rows of some environments only."""
        rows = len(flatten(step.obs)[0][0])
        self._rows = max(self._rows, rows)
        if rows == self._rows and self._is_due():
            images = self._rendered() if self._path is None else self._path.part(step.obs)
            self._keep(images[: self.max_envs], step.group.call)
        return columns

    def _is_due(self) -> bool:
        if self.frozen:
            return False
        if self._calls == self.every:
            self._begin()
        self._calls += 1
        return (self._calls - 1) % self.skip == 0 and len(self._frames) < self.max_frames

    def _is_gone(self, episodes: Sequence[Any]) -> bool:
        """True if episodes ended and what their environments render is of the next ones already."""
        mode = getattr(self._env, "metadata", {}).get("autoreset_mode") if self._path is None else None
        at_once = getattr(mode, "name", None) in ("SAME_STEP", "DISABLED")
        return at_once and type(episodes) is list and all(episode.is_done for episode in episodes)

    def _begin(self) -> None:
        self._calls, self._frames = 0, []

    def _rendered(self) -> list[Any]:
        rendered: Any = None if self._env is None else self._env.render()
        several = isinstance(rendered, (tuple, list)) or np.ndim(rendered) == 4
        images = [image for image in (rendered if several else [rendered]) if image is not None]
        if not images:
            raise RunnerError(
                "VideoRecorder",
                expected="environments that render images",
                found="no environment" if self._env is None else "none that does",
                do="call on_environment(env) before, which a runner does when it is built"
                if self._env is None
                else "set env_config={'render_mode': 'rgb_array'}, or name a part of the observations: "
                "columns='obs/pixels'",
            )
        return images

    def _of_column(self, path: ColumnPath, group: ChunkGroup) -> Sequence[Any]:
        """Return the images of the episodes in the grid. One that begins takes the place of one that is gone."""
        images = path.part(group.reader.newest("obs", copy=False)[0])
        newest = dict(zip(episode_ids(group.episodes), images))
        coming = [id_ for id_ in newest if id_ not in self._shown]
        shown: dict[Any, Any] = {}
        for id_, image in self._shown.items():
            if id_ not in newest and coming and len(newest) >= len(self._shown):
                id_ = coming.pop(0)
            shown[id_] = newest.get(id_, image)
        for id_ in coming[: self.max_envs - len(shown)]:
            shown[id_] = newest[id_]
        self._shown = {id_: np.array(image) for id_, image in shown.items()}
        return list(self._shown.values())

    def _keep(self, images: Sequence[Any], call: PipelineCall) -> None:
        self._frames.append(grid_of([frame_of(image, "VideoRecorder") for image in images[: self.max_envs]]))
        if len(self._frames) == self.max_frames and self.every is not None and call.metrics is not None:
            call.metrics.log_value(self.name, stacked(self._frames), reduce="item", clear_on_reduce=True)

    def dump(self, path: str | Path | None = None, fps: float = 30) -> npt.NDArray[np.uint8]:
        """Return the frames so far, and begin another video.

        Args:
            path: An mp4 file to write; needs the extra `video`. None: none.
            fps: Frames per second of the file.

        Returns:
            uint8 [frames, height, width, 3]; empty without frames.
        """
        frames = stacked(self._frames) if self._frames else np.empty((0, 0, 0, 3), np.uint8)
        if path is not None:
            writer = VideoWriter(Path(path), fps)
            for frame in frames:
                writer.add(frame)
            writer.close()
        self._begin()
        return frames
