"""The log of a run: every episode that is sampled for training, in a data set that grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..env_runner.env_runner_group import EnvRunnerGroup
from ..offline import DatasetWriter, MultiAgentWriter
from ..offline.formats import writer_for


class EpisodeLog:
    """Appends sampled episodes to a data set, which is made when the first ones come.

    Its model outputs are those of the first episodes: the ones that only later episodes have, as after random actions,
    are left out. Of several agents all are kept, and each part of an episode that was sampled is one of its own.

    Args:
        path: The folder of the data set.
        env: The environment of the config.

    Attributes:
        base: The folder that a relative path lies in; the current one unless a run sets its own.
    """

    def __init__(self, path: str, env: Any) -> None:
        self.base = Path()
        self._path, self._env = path, env if isinstance(env, str) else None
        self._writer: DatasetWriter | MultiAgentWriter | None = None

    def add(self, episodes: Sequence[Any]) -> None:
        """Append episodes, or chunks of them; they count once `commit` returns.

        Args:
            episodes: What a runner's `sample` returned.

        Raises:
            DataError: the folder holds a damaged data set, or other files.
            ColumnError: a column is of text or Python objects, or of another type or shape than before.
            StorageError: another process writes to the folder, or the disk is full, say.
        """
        if self._writer is None:
            self._writer = writer_for(episodes, self.base / self._path, self._env)
        if isinstance(self._writer, DatasetWriter):
            self._writer.add(episodes, outputs=self._writer.outputs)
        else:
            self._writer.add([episode for episode in episodes if len(episode)])

    def commit(self) -> None:
        """Make all that was appended count.

        Raises:
            StorageError: it cannot be written.
        """
        if self._writer is not None:
            self._writer.commit()

    def close(self) -> None:
        """Drop what was not committed, and let others write to the folder."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class LoggedEnvRunnerGroup(EnvRunnerGroup):
    """Runners whose episodes go into a log before they are returned.

    Args:
        log: The log.
        config: As for `EnvRunnerGroup`.
    """

    def __init__(self, log: EpisodeLog, *, config: Any) -> None:
        super().__init__(config=config)
        self._log = log

    def sample(self, **arguments: Any) -> Sequence[Any]:
        """Sample as `EnvRunnerGroup.sample`, and log what is returned."""
        episodes = super().sample(**arguments)
        self._log.add(episodes)
        return episodes

    def ready(self, timeout: float | None = None) -> list[tuple[int, Sequence[Any]]]:
        """Return what `EnvRunnerGroup.ready` does, and log it."""
        parts = super().ready(timeout)
        for _, episodes in parts:
            self._log.add(episodes)
        return parts
