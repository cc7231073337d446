"""Damage of data sets: what differs from what was committed, and data sets cut back to what is whole."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from epibatch.core.errors import DataError, EpibatchError
from epibatch.core.files import FolderLock, open_file, open_to_append, storing

from .data_folder import (
    COMMITS,
    EPISODES,
    Commit,
    DataFolder,
    Description,
    folders_of_several,
    read_commits,
    read_description,
    sizes_at,
)
from .multi_agent_dataset import MultiAgentDataset

_BLOCK = 2**20


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Return what is wrong with a data set: its description, commits, table of parts, lines, and sums of all rows.

    Of several agents it also makes each episode.

    Args:
        path: Its folder; nothing may write to it meanwhile.

    Returns:
        Sentences; none if everything is as it was committed, and nothing lies after the last commit.

    Examples:
        >>> verify("no_such_folder")
        ['no_such_folder: expected a data set, found no dataset.json']
    """
    place = Path(path)
    try:
        if (place / EPISODES).is_dir():
            wrong = [sentence for part in folders_of_several(place) for sentence in verify(part)]
            return wrong + _error_of(lambda: deque(MultiAgentDataset.of_folder(place), 0))
        folder = DataFolder(place)
    except EpibatchError as error:
        return [_sentence(error)]
    wrong = [sentence for _, sentence in _faults(folder.path, folder.description, folder.commits)]
    lines = (_error_of(partial(folder.line, part)) for part in range(folder.last.parts))
    return [*wrong, *chain.from_iterable(lines), *_leftovers(folder)]


def repair(path: str | os.PathLike[str]) -> list[str]:
    """Cut a data set back to the last commit up to which everything is whole.

    Of several agents, this is done for the episodes and for each group of agents. Episodes whose rows were lost are
    named when they are read.

    Args:
        path: Its folder; nothing may read it meanwhile.

    Returns:
        Sentences that say what was wrong and what was lost; none if nothing was done.

    Raises:
        DataError: its description is damaged, or no commit is whole. Nothing was done.
        StorageError: another process writes to it, or it cannot be written.
    """
    folder = Path(path)
    if (folder / EPISODES).is_dir():
        return [sentence for part in folders_of_several(folder) for sentence in repair(part)]
    description, _ = read_description(folder)
    lock = FolderLock(folder)
    try:
        commits, left = read_commits(folder)
        faults = sorted(_faults(folder, description, commits))
        if not commits or (faults and not faults[0][0]):
            found = "; ".join(sentence for _, sentence in faults[:1]) or left or f"an empty {COMMITS}"
            do = "nothing was changed; copy or record the data again"
            raise DataError(str(folder), expected="a commit up to which all is whole", found=found, do=do)
        whole = DataFolder(folder, faults[0][0] if faults else len(commits))
        said = [f"{COMMITS}: {left}"] if left else []
        said += [sentence for _, sentence in faults] + list(_leftovers(whole))
        if len(commits) > len(whole.commits):
            lost = commits[-1].parts - whole.last.parts
            said.append(f"lost {len(commits) - len(whole.commits)} commits: {lost} episodes, or later parts of them")
        with storing(f"data set {path}", "see to the permissions of the folder"):
            for name, size in {**whole.files, COMMITS: whole.last.line_end}.items():
                with open_to_append(folder / name) as file:
                    file.truncate(size)
    finally:
        lock.release()
    return said


def _error_of(use: Callable[[], Any]) -> list[str]:
    try:
        use()
    except EpibatchError as error:
        return [_sentence(error)]
    return []


def _sentence(error: EpibatchError) -> str:
    return f"{error.where}: expected {error.expected}, found {error.found}"


def _leftovers(folder: DataFolder) -> Iterator[str]:
    """Return sentences about what lies after the last commit."""
    for name, size in {**folder.files, COMMITS: folder.last.line_end}.items():
        if (more := folder.size_of(name) - size) > 0:
            yield f"{name}: {more:,} bytes after the last commit"


def _faults(path: Path, description: Description, commits: list[Commit]) -> Iterator[tuple[int, str]]:
    """The commits from which on a file has other bytes than were written, each with a sentence."""
    for position, name in enumerate(description.files()):
        ends = [sizes_at(description, commit)[name] for commit in commits]
        for number, total in enumerate(_sums(path / name, ends)):
            if commits[number].sums[position : position + 1] != [total]:
                yield number, f"{name}: other bytes than were written in commit {number + 1} of {len(commits)}"


def _sums(path: Path, ends: list[int]) -> Iterator[str]:
    """The sums of the parts of a file that end at these places."""
    try:
        file = open_file(path)
    except OSError as error:
        yield str(error)
        return
    with file:
        for begin, end in pairwise([0, *ends]):
            total, left = hashlib.sha256(), end - begin
            while left and (block := file.read(min(left, _BLOCK))):
                total.update(block)
                left -= len(block)
            yield total.hexdigest()
