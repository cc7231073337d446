"""The folder of a data set: files of raw rows that only grow, and the commits that say how much of them there is.

A folder holds `dataset.json` (the columns and spaces), a file of rows for each leaf of each column, `parts.bin` (the
facts of the parts of episodes, int64), `parts.jsonl` (a line of text for each part), and `commits.jsonl`. A commit is a
line with the numbers of rows and parts so far and the SHA-256 sum of what each file grew by since the commit before.
What lies after the last whole commit does not exist. Nothing in a folder is code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.errors import DataError, EpibatchError
from epibatch.core.files import FolderLock, open_file, open_to_append, read_file, storing
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.state_codec import decode_state, encode_state
from epibatch.core.structs import Form, paths_of

from ..episodes.store import Ints, Leaf
from .parts import CONTINUES, FACTS, LINE_END, LOOKBACK, REQUIRED, STARTED, STEPS, TERMINATED, ColumnLayout, rows_of

FORMAT, VERSION = "epibatch-episodes", 1
DESCRIPTION, COMMITS, PARTS, LINES = "dataset.json", "commits.jsonl", "parts.bin", "parts.jsonl"
EPISODES, GROUP = "episodes", "agents-"
"""Folders of a data set of several agents: its episodes, and the rows of agents with the same columns."""
_COMMIT = re.compile(rb'(\{"rows":(\d{1,18}),"parts":(\d{1,18}),"text":(\d{1,18}),"sums":\[[^\[\]]*\])'
                     rb',"sum":"([0-9a-f]{64})"\}\n')  # fmt: skip
_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}")
_MOST_DESCRIPTION, _MOST_COMMITS = 16 * 2**20, 256 * 2**20
_MOST_LEVELS = 50
_BLOCK = 2**20


class Commit(NamedTuple):
    """How much of a data set there is after a commit.

    Args:
        rows: Rows of each column.
        parts: Parts of episodes.
        text: Bytes of `parts.jsonl`.
        sums: SHA-256 of what each file grew by, in the order of `DataFolder.files`; that of `dataset.json` comes after
            them in the first commit.
        sum: SHA-256 of this line and all before.
        line_end: Bytes of `commits.jsonl`.
    """

    rows: int
    parts: int
    text: int
    sums: list[str]
    sum: str
    line_end: int

    @classmethod
    def nothing(cls) -> Commit:
        """The state before the first commit."""
        return cls(0, 0, 0, [], "", 0)


class Description(NamedTuple):
    """What `dataset.json` says.

    Args:
        columns: What the rows of each column are like.
        observation_space: Space of the observations, if it is known.
        action_space: Space of the actions, likewise.
        env: Name of the environment, likewise.
    """

    columns: dict[str, ColumnLayout]
    observation_space: Any = None
    action_space: Any = None
    env: str | None = None

    def files(self) -> dict[str, int]:
        """The files of a folder and the bytes of a row, a part, or (for text) 1: columns leaf by leaf come first."""
        sizes = {
            f"{number}-{re.sub('[^a-z0-9]+', '-', name.lower())[:40]}.{i}.bin": math.prod(shape) * dtype.itemsize
            for number, (name, layout) in enumerate(self.columns.items())
            for i, (dtype, shape) in enumerate(layout.kinds)
        }
        return {**sizes, PARTS: 8 * len(FACTS), LINES: 1}

    def to_json(self) -> bytes:
        """Return the text of `dataset.json`."""
        spaces = [None if space is None else space_to_dict(space) for space in self[1:3]]
        columns = [
            [name, encode_state(form)[0], [[dtype.str, list(shape)] for dtype, shape in kinds]]
            for name, (form, kinds) in self.columns.items()
        ]
        facts = {"columns": columns, "observation_space": spaces[0], "action_space": spaces[1], "env": self.env}
        return json.dumps({"format": FORMAT, "version": VERSION, **facts}, allow_nan=False, indent=1).encode()

    @classmethod
    def from_json(cls, where: str, text: bytes) -> Description:
        """Read `dataset.json`.

        Raises:
            DataError: it is none, or of another version, or describes no columns of numbers.
        """
        try:
            facts = json.loads(text)
            if facts["format"] != FORMAT or type(facts["version"]) is not int:
                raise ValueError(f"the format {facts['format']!r}")
            if facts["version"] > VERSION:
                do = "read it with a newer epibatch"
                raise DataError(where, expected=f"version {VERSION}", found=str(facts["version"]), do=do)
            columns = {name: _layout(form, kinds) for name, form, kinds in facts["columns"]}
            env, spaces = facts["env"], [facts["observation_space"], facts["action_space"]]
            if not set(REQUIRED) <= columns.keys() or len(columns) < len(facts["columns"]):
                raise ValueError(f"columns {', '.join(map(str, columns))}")
            if not (env is None or type(env) is str) or not all(type(name) is str for name in columns):
                raise ValueError("names that are no text")
            if not sum(math.prod(shape) for _, shape in columns["rewards"].kinds):
                raise ValueError("rewards without numbers")
            known = [None if space is None else space_from_dict(space) for space in spaces]
            return cls(columns, known[0], known[1], env)
        except DataError:
            raise
        except (EpibatchError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            found = f"something else ({type(error).__name__}: {error})"
            raise damaged(where, "the description of a data set", found) from None


def _layout(form: Any, kinds: Any) -> ColumnLayout:
    decoded = decode_state(form, {})
    leaves = []
    for dtype, shape in kinds:
        if not _DTYPE.fullmatch(dtype) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise ValueError(f"rows of {dtype!r} of shape {shape}")
        if math.prod(shape) * np.dtype(dtype).itemsize >= 2**40:
            raise ValueError(f"rows of shape {shape}")
        leaves.append((np.dtype(dtype), tuple(shape)))
    _check_form(decoded, _MOST_LEVELS)
    if len(paths_of(decoded)) != len(leaves):
        raise ValueError(f"{len(leaves)} types of {len(paths_of(decoded))} leaves")
    return ColumnLayout(decoded, leaves)


def _check_form(form: Form, levels: int) -> None:
    if form is None:
        return
    kind, keys, forms = form
    fits = len(set(keys)) == len(keys) == len(forms) if kind == "dict" else kind in ("tuple", "masked") and keys == ()
    if not fits or type(forms) is not tuple or not levels:
        raise ValueError(f"a nesting of {kind!r}")
    for part in forms:
        _check_form(part, levels - 1)


def damaged(where: str, expected: str, found: str) -> DataError:
    """Return the error about a folder that is no whole data set."""
    do = "look at epibatch.offline.verify(folder); repair(folder) cuts back to the last whole commit"
    return DataError(where, expected=expected, found=found, do=do)


class DataFolder:
    """The committed content of a data set's folder.

    Args:
        path: The folder.
        num_commits: The number of its first commits to look at; None: all.

    Attributes:
        description: What `dataset.json` says.
        commits: The commits.
        last: The last one of them.
        parts: The facts of the parts of episodes: int64 [P, 8].

    Raises:
        DataError: it is no data set, or has no commit, or its description, commits, sizes or table of parts are
            damaged. Sums of rows are not looked at; see `verify`.
    """

    def __init__(self, path: str | os.PathLike[str], num_commits: int | None = None) -> None:
        self.path = Path(path)
        self.description, total = read_description(self.path)
        self.commits = self._read_commits(total, num_commits)
        self.last = self.commits[-1]
        for name, size in self.files.items():
            actual = self.size_of(name)
            if actual < size:
                raise damaged(str(self.path / name), f"{size:,} bytes", f"{actual:,}")
        self.parts = np.frombuffer(self._read(PARTS, self.files[PARTS]), "<i8").reshape(-1, len(FACTS))
        _check_parts(str(self.path / PARTS), self.parts, self.last)

    def _read_commits(self, total: str, num_commits: int | None) -> list[Commit]:
        where = str(self.path / COMMITS)
        commits, left = read_commits(self.path)
        if left is not None and (num_commits is None or num_commits > len(commits)):
            raise damaged(where, f"whole commits after the first {len(commits)}", left)
        commits = commits[:num_commits]
        if not commits:
            raise damaged(where, "a commit", "none")
        count = len(self.description.files())
        for number, commit in enumerate(commits):
            if len(commit.sums) != count + (not number):
                raise damaged(where, f"{count} sums in commit {number + 1}", f"{len(commit.sums)}")
        if commits[0].sums[-1] != total:
            raise damaged(str(self.path / DESCRIPTION), "the description that was committed", "another one")
        return commits

    @property
    def files(self) -> dict[str, int]:
        """The committed bytes of each file."""
        return sizes_at(self.description, self.last)

    def columns(self) -> dict[str, tuple[Form, list[Leaf]]]:
        """Return nesting and leaves of each column, mapped into memory, not to be written to."""
        names = iter(self.description.files())
        return {
            name: (form, [self._mapped(next(names), dtype, shape) for dtype, shape in kinds])
            for name, (form, kinds) in self.description.columns.items()
        }

    def _mapped(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Leaf:
        shape = self.last.rows, *shape
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        with self._open(name) as file:
            mapped: Leaf = np.asarray(np.memmap(file, dtype, "r", shape=shape))
        return mapped

    def line(self, part: int) -> dict[str, Any]:
        """Return what the line of a part says."""
        begin = int(self.parts[part - 1, LINE_END]) if part else 0
        where = f"{self.path / LINES}, part {part}"
        with self._open(LINES) as file:
            file.seek(begin)
            text = file.read(int(self.parts[part, LINE_END]) - begin)
        return read_line(where, text)

    def size_of(self, name: str) -> int:
        """Return the bytes of a file, 0 if it is missing."""
        try:
            with open_file(self.path / name) as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise damaged(str(self.path / name), "a file that can be read", str(error)) from None

    def _open(self, name: str) -> Any:
        try:
            return open_file(self.path / name)
        except OSError as error:
            raise damaged(str(self.path / name), "a file that can be read", str(error)) from None

    def _read(self, name: str, size: int) -> bytes:
        with self._open(name) as file:
            return bytes(file.read(size))


def read_description(path: Path) -> tuple[Description, str]:
    """Return what `dataset.json` says, and its SHA-256 sum.

    Raises:
        DataError: there is none, or it is damaged.
    """
    text = _content(path, DESCRIPTION, _MOST_DESCRIPTION)
    return Description.from_json(str(path / DESCRIPTION), text), hashlib.sha256(text).hexdigest()


def read_commits(path: Path) -> tuple[list[Commit], str | None]:
    """Return the commits of a folder, as `parsed_commits` does.

    Raises:
        DataError: they cannot be read.
    """
    return parsed_commits(_content(path, COMMITS, _MOST_COMMITS))


def _content(path: Path, name: str, limit: int) -> bytes:
    try:
        return read_file(path / name, limit)
    except FileNotFoundError:
        do = "look at the path"
        raise DataError(str(path), expected="a data set", found=f"no {name}", do=do) from None
    except OSError as error:
        raise damaged(str(path), "a data set", f"{name} that cannot be read ({error})") from None


def sizes_at(description: Description, commit: Commit) -> dict[str, int]:
    """Return the bytes of each file of a data set after a commit."""
    counts = {PARTS: commit.parts, LINES: commit.text}
    return {name: size * counts.get(name, commit.rows) for name, size in description.files().items()}


def commit_line(commit: Commit, before: Commit) -> tuple[bytes, Commit]:
    """Return the line of a commit that comes after another one, and the commit with its sum and place."""
    facts = {"rows": commit.rows, "parts": commit.parts, "text": commit.text, "sums": commit.sums}
    text = json.dumps(facts, separators=(",", ":"))[:-1].encode()
    total = hashlib.sha256(before.sum.encode() + text).hexdigest()
    line = text + f',"sum":"{total}"}}\n'.encode()
    return line, commit._replace(sum=total, line_end=before.line_end + len(line))


def parsed_commits(text: bytes) -> tuple[list[Commit], str | None]:
    """Return the whole commits at the beginning of `commits.jsonl`, and what is wrong after them, if something is.

    A last line without an end is what a crash leaves: it is nothing wrong unless it is a commit but for its last byte.
    """
    commits = [Commit.nothing()]
    for line in text.splitlines(keepends=True):
        before = commits[-1]
        commit = _parsed(line, before)
        if commit is None:
            is_torn = not line.endswith(b"\n") and before.line_end + len(line) == len(text)
            if is_torn and _parsed(line + b"\n", before) is None and _parsed(line[:-1] + b"\n", before) is None:
                break
            return commits[1:], f"a line that is no commit, at byte {before.line_end}"
        commits.append(commit)
    return commits[1:], None


def _parsed(line: bytes, before: Commit) -> Commit | None:
    found = _COMMIT.fullmatch(line)
    if found is None or hashlib.sha256(before.sum.encode() + found[1]).hexdigest().encode() != found[5]:
        return None
    try:
        sums = json.loads(found[1] + b"}")["sums"]
    except (ValueError, RecursionError):
        return None
    counts = [int(found[i]) for i in (2, 3, 4)]
    if any(now < then for now, then in zip(counts, before[:3])) or not all(type(item) is str for item in sums):
        return None
    return Commit(counts[0], counts[1], counts[2], sums, found[5].decode(), before.line_end + len(line))


def read_line(where: str, text: bytes) -> dict[str, Any]:
    """Read the line of a part.

    Raises:
        DataError: it is none.
    """
    try:
        facts = decode_state(json.loads(text), {})
        if type(facts) is not dict or type(facts["id"]) is not str:
            raise ValueError("no names")
        infos = facts.get("infos", [])
        if not all(type(step) is int and type(info) is dict for step, info in infos):
            raise ValueError("infos that are no dicts")
        if type(facts.get("custom_data", {})) is not dict:
            raise ValueError("custom data that is no dict")
    except (EpibatchError, KeyError, TypeError, ValueError, RecursionError) as error:
        found = f"something else ({type(error).__name__}: {error})"
        raise damaged(where, "names of an episode", found) from None
    return facts


def _check_parts(where: str, parts: Ints, last: Commit) -> None:
    """Make sure that a table of parts describes the rows that there are."""

    def require(fits: Any, what: str) -> None:
        if not np.all(fits):
            number = int(np.argmin(fits)) if np.ndim(fits) else len(parts)
            raise damaged(where, "facts of the parts of episodes", f"{what} (part {number})")

    counts = parts[:, [LOOKBACK, STEPS]]
    require(((counts >= 0) & (counts <= last.rows)).all(1), "steps that are not there")
    require(parts[:, STARTED] >= 0, "a start before the episode's")
    require(parts[:, STARTED] <= 2**62, "a start that is too late")
    flags = parts[:, TERMINATED : TERMINATED + 3]
    require(((flags == 0) | (flags == 1)).all(1), "flags that are neither 0 nor 1")
    require(int(rows_of(parts).astype(np.float64).sum()) == last.rows and rows_of(parts).sum() == last.rows,
            f"other rows than {last.rows}")  # fmt: skip
    ends = parts[:, LINE_END]
    require(np.diff(ends, prepend=0) > 0, "lines that do not follow each other")
    require(not len(ends) or ends[-1] == last.text, "other text than there is")
    before, numbers = parts[:, CONTINUES], np.arange(len(parts))
    require((before >= -1) & (before < numbers), "a part that goes on from none before")
    later = before >= 0
    require(later | (parts[:, STEPS] > 0), "an episode without steps")
    earlier = parts[before[later]]
    require(len(np.unique(before[later])) == later.sum(), "two parts that go on from one")
    require((earlier[:, STARTED] + earlier[:, STEPS] == parts[later, STARTED])
            & (earlier[:, TERMINATED : TERMINATED + 2] == 0).all(1) & (parts[later, LOOKBACK] == 0),
            "a part that does not fit the one before")  # fmt: skip


# -- checking and repairing --------------------------------------------------------------------------


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Return what is wrong with a data set: its description, commits, table of parts, lines, and sums of all rows.

    Args:
        path: Its folder; nothing may write to it meanwhile.

    Returns:
        Sentences; none if everything is as it was committed, and nothing lies after the last commit.

    Example:
        >>> verify("no_such_folder")
        ['no_such_folder: expected a data set, found no dataset.json']
    """
    if (Path(path) / EPISODES).is_dir():
        return [sentence for part in _folders(Path(path)) for sentence in verify(part)]
    try:
        folder = DataFolder(path)
        wrong = [sentence for _, sentence in _faults(folder.path, folder.description, folder.commits)]
        return wrong + _bad_lines(folder) + list(_leftovers(folder))
    except DataError as error:
        return [_sentence(error)]


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
        return [sentence for part in _folders(folder) for sentence in repair(part)]
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


def is_data_set(path: Path) -> bool:
    """True if a folder looks like a data set of one agent or of several."""
    return (path / DESCRIPTION).exists() or (path / EPISODES / DESCRIPTION).exists()


def group_folders(path: Path) -> list[Path]:
    """Return the folders of agents with the same columns."""
    folders: list[Path] = []
    while (path / f"{GROUP}{len(folders)}").is_dir():
        folders.append(path / f"{GROUP}{len(folders)}")
    return folders


def _folders(path: Path) -> list[Path]:
    return [path / EPISODES, *group_folders(path)]


def _sentence(error: DataError) -> str:
    return f"{error.where}: expected {error.expected}, found {error.found}"


def _bad_lines(folder: DataFolder) -> list[str]:
    wrong = []
    for part in range(len(folder.parts)):
        try:
            folder.line(part)
        except DataError as error:
            wrong.append(_sentence(error))
    return wrong


def _leftovers(folder: DataFolder) -> Iterator[str]:
    """What lies after the last commit, as sentences."""
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
