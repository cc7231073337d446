"""Writing of data sets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.errors import DataError
from epibatch.core.files import LOCK, FolderLock, is_unfinished, open_to_append, replace_file, storing, sync_folder

from ..episodes import SingleAgentEpisode
from ..episodes.chunk_table import in_arrays
from .data_folder import (
    COMMITS,
    DESCRIPTION,
    Commit,
    DataFolder,
    Description,
    commit_line,
    read_commits,
    read_description,
    sizes_at,
)
from .parts import REQUIRED, ColumnLayout, Running, layout_of, read_parts, spaces_of


class DatasetWriter:
    """Appends episodes to a data set's folder, as a log does.

    Later parts of a running episode go on where it was. What was added counts once `commit` returns; what a crash
    leaves after the last commit does not exist, and the next writer removes it. As a context manager it commits at the
    end, unless an error is raised; then what was not committed is dropped.

    Args:
        folder: The folder; a new one is made, one that has a data set gets more episodes.
        env: Name of the environment, for a new data set.

    Raises:
        DataError: the folder holds a damaged data set, or other files.
        StorageError: another process writes to it, or it cannot be written.

    Examples:
        >>> import tempfile
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> from epibatch.offline import read_episodes
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with DatasetWriter(folder) as log:
        ...         log.add([SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0],
        ...                                     terminated=True, len_lookback_buffer=0)])
        ...     read_episodes(folder).num_steps
        2
    """

    def __init__(self, folder: str | os.PathLike[str], *, env: str | None = None) -> None:
        self._path, self._env = Path(folder), env
        self._is_new_folder, self._is_closed = not self._path.exists(), False
        self._description: Description | None = None
        self._last = self._now = Commit()
        self._running = Running()
        self._files: dict[str, RawIOBase] = {}  # without a buffer, which would keep what a full disk does not take
        self._sums: dict[str, Any] = {}
        with storing(f"data set {folder}", "choose another folder"):
            self._path.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self._path)
        try:
            self._take_over()
        except BaseException:
            self._release()
            raise

    def _take_over(self) -> None:
        """Go on with the data set that is there, without what was not committed."""
        for path in self._path.glob(f".{DESCRIPTION}.*"):
            if is_unfinished(path):  # a process was killed while it wrote the description
                path.unlink()
        names = names_in(self._path, DESCRIPTION)
        if not names:
            return
        rows = any(os.path.getsize(self._path / name) for name in names - {DESCRIPTION})
        if not (any(read_commits(self._path)) if COMMITS in names else rows):  # nothing was committed
            self._remove(read_description(self._path)[0])
            return
        folder = DataFolder(self._path)
        self._description, self._last, self._now = folder.description, folder.last, folder.last
        parts = folder.parts
        is_open = (parts.terminated == 0) & (parts.truncated == 0)
        is_open[parts.continues[parts.continues >= 0]] = False
        for part in np.flatnonzero(is_open).tolist():
            self._running[folder.line(part)["id"]] = part, int(parts.t_started[part] + parts.steps[part])
        self._open(folder.description)
        self._cut({**folder.files, COMMITS: folder.last.line_end})

    def _open(self, description: Description) -> None:
        with storing(f"data set {self._path}", "see to the permissions of the folder"):
            for name in (*description.files(), COMMITS):
                self._files[name] = open_to_append(self._path / name).detach()
        self._sums = {name: hashlib.sha256() for name in description.files()}

    def _cut(self, sizes: Mapping[str, int]) -> None:
        """Remove what the files have beyond these sizes."""
        with storing(f"data set {self._path}", "see to the permissions of the folder"):
            for name, size in sizes.items():
                self._files[name].truncate(size)

    @property
    def columns(self) -> Mapping[str, ColumnLayout]:
        """The nesting, types and shapes of the rows of each column; empty before the first episode."""
        return {} if self._description is None else self._description.columns

    @property
    def num_parts(self) -> int:
        """Episodes, or later parts of them, that were added to the folder so far."""
        return self._now.parts

    @property
    def outputs(self) -> list[str] | None:
        """The names of the data set's model outputs; None if it has no episode yet."""
        return self._description and [name for name in self._description.columns if name not in REQUIRED]

    def add(self, episodes: Any, *, outputs: Collection[str] | None = None) -> None:
        """Append episodes, or parts of them; they count once `commit` returns.

        Args:
            episodes: One episode, a list of them, or what a runner's `sample` returned.
            outputs: The names of the model outputs to keep; None: all.

        Raises:
            ColumnError: a column that is missing, new, of another nesting, shape or type than before, or of text or
                Python objects. Nothing was added.
            CheckpointError: an episode's names are no text, numbers or tuples. Nothing was added.
            StorageError: the disk is full, say. Nothing was added.
            DataError: the writer was closed, or something that is no episode of one agent.
        """
        if isinstance(episodes, SingleAgentEpisode):
            episodes = [episodes]
        if self._is_closed:
            do = "make another DatasetWriter of the folder"
            raise DataError(str(self._path), expected="an open writer", found="one that was closed", do=do)
        about, episodes = self._description, in_arrays(episodes)
        delivery = read_parts(episodes, self.columns, self._now.parts, self._running, outputs)
        if delivery is None:
            return
        if about is None:
            about = Description(layout_of(delivery.columns), *spaces_of(episodes), self._env)
            self._begin(about)
        facts, now = delivery.facts, self._now
        leaves = [leaf for _, leaves in delivery.columns.values() for leaf in leaves]
        rows = [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in leaves]
        table = np.stack([*facts[:-1], facts.line_end + now.text], 1).astype("<i8").tobytes()
        contents: dict[str, Any] = dict(zip(about.files(), [*rows, table, b"".join(delivery.lines)]))
        try:
            with storing(f"data set {self._path}", "free or choose another disk"):
                for name, content in contents.items():
                    self._write(name, content)
        except BaseException:
            with suppress(OSError):
                self._cut(sizes_at(about, now))
            raise
        for name, content in contents.items():
            self._sums[name].update(content)
        text = now.text + int(facts.line_end[-1])
        self._now = replace(now, rows=now.rows + int(facts.rows.sum()), parts=now.parts + len(facts.rows), text=text)
        self._running = delivery.running

    def _write(self, name: str, content: Any) -> None:
        left = memoryview(content)
        while left:  # a disk that is nearly full takes a part of it
            left = left[self._files[name].write(left) :]

    def _begin(self, about: Description) -> None:
        """Write the description of a new data set, and make its files."""
        try:
            with storing(f"data set {self._path}", "free or choose another disk"):
                replace_file(self._path / DESCRIPTION, about.to_json())
                self._open(about)
        except BaseException:
            self._remove(about)
            raise
        self._description = about

    def _remove(self, about: Description) -> None:
        """Remove the files of a data set without a commit."""
        for name in (*about.files(), COMMITS, DESCRIPTION):
            if name in self._files:
                self._files.pop(name).close()
            with suppress(OSError):
                os.unlink(self._path / name)

    def commit(self) -> None:
        """Make all that was added count: it is on the disk when this returns.

        Raises:
            StorageError: it cannot be written. The data set has what the commit before had.
        """
        about = self._description
        if about is None or self._now.parts == self._last.parts:
            return
        sums = [total.hexdigest() for total in self._sums.values()]
        if not self._last.line_end:
            sums.append(hashlib.sha256(about.to_json()).hexdigest())
        line, commit = commit_line(replace(self._now, sums=sums), self._last)
        with storing(f"data set {self._path}", "free or choose another disk"):
            for name in about.files():
                os.fsync(self._files[name].fileno())
            if not self._last.line_end:
                sync_folder(self._path)
                sync_folder(self._path.parent)
            try:
                self._write(COMMITS, line)
                os.fsync(self._files[COMMITS].fileno())
            except BaseException:
                self._cut({COMMITS: self._last.line_end})
                raise
        self._last = self._now = commit
        self._sums = {name: hashlib.sha256() for name in about.files()}

    def close(self) -> None:
        """Drop what was not committed, and let others write to the folder."""
        about, self._description, self._is_closed = self._description, None, True
        try:
            if about is not None and self._last.line_end:
                self._cut(sizes_at(about, self._last))
            elif about is not None:
                self._remove(about)
        finally:
            self._release()
        if self._is_new_folder and not self._last.line_end:
            with suppress(OSError):
                self._path.rmdir()

    def _release(self) -> None:
        for file in self._files.values():
            file.close()
        self._lock.release()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()


def names_in(folder: Path, name: str) -> set[str]:
    """Return the names in a folder.

    Args:
        folder: The folder.
        name: The one that is among them if there are any.

    Raises:
        DataError: it is not.
    """
    names = set(os.listdir(folder)) - {LOCK}
    if names and name not in names:
        expected, do = "an empty folder, or a data set of such episodes", "choose another folder"
        raise DataError(str(folder), expected=expected, found=f"{min(names)!r}", do=do)
    return names
