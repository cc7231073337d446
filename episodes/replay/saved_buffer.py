"""Saving of replay buffers to folders."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from epibatch.core.checkpoints import load_state, save_state


class SavedBuffer(ABC):
    """A buffer with a state that folders can hold."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return everything that it holds, with the state of its random generator: arrays, numbers and text."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; what is added and drawn then is the same, bit for bit."""

    def save_to_path(self, path: str | os.PathLike[str]) -> str:
        """Write everything that it holds to a folder, without pickle; a state that is there stays whole until then.

        Rows are written once: the next save shares the files of those that a save before has written, on the same disk.

        Args:
            path: The folder.

        Returns:
            The folder.

        Raises:
            CheckpointError: The folder holds something else.
            StorageError: The disk is full, say.

        Examples:
            >>> import tempfile
            >>> from epibatch.episodes import SingleAgentEpisode
            >>> from epibatch.episodes.replay import EpisodeReplayBuffer
            >>> buffer, other = EpisodeReplayBuffer(100), EpisodeReplayBuffer(100)
            >>> buffer.add(SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0],
            ...                               len_lookback_buffer=0))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     other.restore_from_path(buffer.save_to_path(folder + "/buffer"))
            >>> len(other)
            2
        """
        return str(save_state(path, self.get_state()))

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Take over what `save_to_path` wrote; what is added and drawn then is the same, bit for bit.

        Raises:
            CheckpointError: The folder is missing, incomplete or damaged, or of another buffer; this one is as it was.
        """
        self.set_state(load_state(path))
