"""Files of other libraries: found without links, read with named errors, written under another name and renamed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from epibatch.core.errors import DataError, EpibatchError, error_context
from epibatch.core.files import read_file, refuse_links, storing
from epibatch.core.imports import import_extra
from epibatch.core.structs import Form, flatten

from ..episodes import MultiAgentEpisode

_ALWAYS, _TIMES = 2**30, 200
"""Bytes that data may always take, and how many times the bytes of its files."""
_HDF5 = b"\x89HDF\r\n\x1a\n"


@contextmanager
def reading(path: Any, kind: str) -> Iterator[None]:
    """Turn whatever a library raises about damaged files into a named error.

    Args:
        path: The file or folder.
        kind: What it should be.

    Raises:
        DataError: An error was raised inside. Those of epibatch get the path as context.
    """
    try:
        with error_context(f"{path}:"):
            yield
    except EpibatchError:
        raise
    except Exception as error:  # libraries raise what they like about damaged files
        found = f"{type(error).__name__}: {error}"
        do = "check that the file is whole and of this format"
        raise DataError(str(path), expected=kind, found=found, do=do) from error


def files_of(path: str | Path, suffixes: tuple[str, ...], kind: str) -> list[Path]:
    """Return the files of a format in a folder, in the order of their paths; of a file that file.

    Raises:
        DataError: There is none.
        CheckpointError: A link or a device is in the folder.
    """
    place = Path(path)
    refuse_links(place)
    if place.is_dir():
        found = [file for file in sorted(place.rglob("*")) if file.suffix in suffixes and file.name[0] not in "._"]
    else:
        found = [place] if place.is_file() else []
    if not found:
        what = "no such file in the folder" if place.is_dir() else "nothing"
        raise DataError(str(place), expected=f"{kind} ({', '.join(suffixes)})", found=what, do="check the path")
    return found


def read_json(path: Path) -> Any:
    """Return what a file about a data set says, which has at most 64 MiB."""
    return json.loads(read_file(path, 64 * 2**20))


def array_columns(columns: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return columns of which none is nested.

    Raises:
        DataError: One is.
    """
    for name, column in columns.items():
        if isinstance(column, (dict, tuple)):
            do = "flatten it first, with the piece FlattenObservations, or use another format"
            raise DataError(f"column {name!r}", expected=f"an array, as {kind} has", found="a nested one", do=do)
    return columns


def check_size(path: Any, size: int, files: Iterable[Path], max_bytes: int | None) -> None:
    """Raise if data would take far more memory than its files have bytes.

    Raises:
        DataError: It would take more than `max_bytes`; by default more than 1 GiB and 200 times the files.
    """
    limit = max(_ALWAYS, _TIMES * sum(os.stat(file).st_size for file in files)) if max_bytes is None else max_bytes
    if size > limit:
        raise DataError(
            str(path),
            expected=f"data that takes at most {limit:,} bytes in memory",
            found=f"data that takes {size:,}",
            do="pass max_bytes if you trust the file",
        )


@contextmanager
def new_target(path: str | Path) -> Iterator[Path]:
    """Give a path to write to, which becomes `path` at the end; if an error is raised, nothing is left.

    Raises:
        DataError: Something is there already, or a library raised an error about the values.
        StorageError: It cannot be written.
    """
    target = Path(path)
    if os.path.lexists(target) and not (target.is_dir() and not os.listdir(target)):
        raise DataError(str(target), expected="a path where nothing is", found="a file or folder", do="give another")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.writing")
    try:
        with storing(f"writing {target}", "check the disk and the permissions of the folder"):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            os.rename(temporary, target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, EpibatchError) or not isinstance(error, Exception):
            raise
        found, do = f"{type(error).__name__}: {error}", "convert the values, or use another format"
        raise DataError(f"writing {target}", expected="values that the format has", found=found, do=do) from error


def with_steps(episodes: Iterable[Any], kind: str) -> Iterator[Any]:
    """Return the episodes that have a step.

    Raises:
        DataError: There is none, or one has several agents.
    """
    some = False
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            do = "write the episodes of each agent, episode.agent_episodes.values()"
            raise DataError(f"writing {kind}", expected="episodes of one agent", found=repr(episode), do=do)
        if len(episode):
            some = True
            yield episode
    if not some:
        raise DataError(f"writing {kind}", expected="episodes with steps", found="none", do="record some first")


def batches_of(episodes: Iterable[Any], num_steps: int = 65_536) -> Iterator[list[Any]]:
    """Return the episodes in lists of at most `num_steps` steps, or of one episode."""
    batch: list[Any] = []
    steps = 0
    for episode in episodes:
        if batch and steps + len(episode) > num_steps:
            yield batch
            batch, steps = [], 0
        batch.append(episode)
        steps += len(episode)
    if batch:
        yield batch


def flat_leaves(name: str, column: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a nested column, each with a name with dots.

    Raises:
        DataError: A key has a dot.

    Examples:
        >>> flat_leaves("obs", {"a": 1, "b": (2, 3)})
        [('obs.a', 1), ('obs.b.0', 2), ('obs.b.1', 3)]
    """
    leaves, form = flatten(column)
    return list(zip(dotted_names(name, form), leaves))


def dotted_names(name: str, form: Form) -> list[str]:
    """Return the names of the leaves of a column of some form, as `flat_leaves` does.

    Raises:
        DataError: A key has a dot.
    """
    if form is None:
        return [name]
    keys = form[1] if form[0] == "dict" else range(len(form[2]))
    if wrong := [key for key in keys if "." in str(key)]:
        do = "rename the key"
        raise DataError(f"column {name!r}", expected="keys without dots", found=repr(wrong[0]), do=do)
    return [path for key, part in zip(keys, form[2]) for path in dotted_names(f"{name}.{key}", part)]


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns whose names have dots as nested ones; names 0, 1, ... make a tuple.

    Examples:
        >>> nest({"obs.a": 1, "obs.b.0": 2, "obs.b.1": 3, "t": 4})
        {'obs': {'a': 1, 'b': (2, 3)}, 't': 4}
    """
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise DataError(
                    f"column {name!r}", expected="a name for each leaf", found=f"{parent!r} too", do="rename"
                )
        place[last] = leaf
    return {name: _as_tuples(part) for name, part in tree.items()}


def _as_tuples(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    parts = {key: _as_tuples(value) for key, value in part.items()}
    return tuple(parts.values()) if list(parts) == [str(i) for i in range(len(parts))] else parts


# -- HDF5 --------------------------------------------------------------------------------------------


def h5py(extra: str) -> Any:
    """Load h5py.

    Raises:
        MissingExtraError: it is not installed.
    """
    return import_extra("h5py", extra, "recorded data in HDF5 files")


def is_hdf5(path: Path) -> bool:
    """True for a file that begins as HDF5 files do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_HDF5)) == _HDF5


def arrays_of(file: Any, path: Path, extra: str, max_bytes: int | None) -> dict[str, Any]:
    """Return the arrays of an open HDF5 file, unread, by their paths in it.

    Args:
        file: The open file.
        path: Its path.
        extra: The extra that installs h5py.
        max_bytes: See `check_size`.

    Raises:
        DataError: a link, or an array whose values lie in another file; or too many values for a file of this size.
    """
    arrays = dict(_arrays(file, "", path, h5py(extra), set()))
    check_size(path, sum(array.nbytes for array in arrays.values()), [path], max_bytes)
    return arrays


def _arrays(group: Any, place: str, path: Path, library: Any, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    for name in group:
        at = f"{place}/{name}".lstrip("/")
        link = group.get(name, getlink=True)
        if not isinstance(link, library.HardLink):
            raise _leads_away(path, at, f"a {type(link).__name__}")
        item = group[name]
        if item.id in seen:
            raise _leads_away(path, at, "a second name of another entry")
        seen.add(item.id)
        if isinstance(item, library.Group):
            yield from _arrays(item, at, path, library, seen)
        elif isinstance(item, library.Dataset):
            if item.external or item.is_virtual:
                raise _leads_away(path, at, "an array whose values lie in other files")
            yield at, item


def _leads_away(path: Path, at: str, found: str) -> DataError:
    do = "do not read files of strangers that lead elsewhere; copy the values into the file"
    return DataError(f"{path}, {at}", expected="values in the file itself", found=found, do=do)
