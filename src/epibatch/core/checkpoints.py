"""Checkpoints: folders that are either complete or refused, without pickle.

A checkpoint holds `state.json`, `arrays.npz` and, written last, `COMPLETE`: a small JSON file with the
format's version and the sizes and SHA-256 sums of the other two. It is written beside its destination and
renamed into place, so that whatever interrupts a save, the state before it or the new one can be loaded.
Arrays that never change (`SealedArrays`) have files of their own, whose sums are in `state.json`; checkpoints share
these files by hard links.
A checkpoint that is damaged while the one before it is still there is passed over for that one, with a warning
in the log.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import secrets
import shutil
import stat
import struct
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from epibatch.core.errors import CheckpointError, error_context
from epibatch.core.files import create_file, open_file, read_file, refuse_links, storing, sync_folder
from epibatch.core.sealed_arrays import SealedArrays, is_sealed_name
from epibatch.core.state_codec import decode_state, encode_state

__all__ = [
    "FORMAT_VERSION",
    "Checkpointable",
    "arrays_size",
    "check_state",
    "is_checkpoint",
    "load_state",
    "save_state",
]

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
_FORMAT = "epibatch-state"
_STATE, _ARRAYS, _MARKER = "state.json", "arrays.npz", "COMPLETE"
_FILES = {_STATE, _ARRAYS, _MARKER}
_MAX_MARKER_BYTES = 65536
_MAX_STATE_BYTES = 16 * 2**20
_MAX_STATE_MEMORY = 64 * 2**20
_MOST_ARRAYS = 10_000
"""Arrays in a file of sealed ones at most."""
_COST = {b",": 48, b"[": 130, b"{": 400, b'"': 32}
"""Bytes of memory that a value in JSON takes at most when it is decoded, by the characters that come with it."""


def save_state(path: str | os.PathLike[str], state: Any) -> Path:
    """Write a state to a folder, replacing the checkpoint that may be there.

    Args:
        path: The folder; its parents are made. The old checkpoint stays loadable until the new one is complete.
        state: Nested dicts, lists and tuples of arrays, tensors (which come back as arrays), numbers, NumPy
            scalars, strings, bytes and None; dict keys may be strings, numbers, None or tuples of these.

    Returns:
        The folder.

    Raises:
        CheckpointError: the state holds something else (the message says where), or the folder exists and
            holds files that are no checkpoint's.
        StorageError: the disk is full, say; the checkpoint that may be there is still whole.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_state(Path(folder) / "best", {"step": 10, ("a", 1): np.arange(2)})
        ...     load_state(path)
        {'step': 10, ('a', 1): array([0, 1])}
    """
    path = Path(os.path.realpath(path))
    data, arrays = encode_state(state)
    files = [part.file for part in _sealed_parts(state)]
    _refuse_foreign_files(path)
    with storing(f"saving to {path}", "free or choose another disk; a checkpoint that was there before is still whole"):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = path.with_name(f".{path.name}.saving-{secrets.token_hex(8)}")
        folder.mkdir()
        try:
            for part in _sealed_parts(state):
                _add_sealed(folder, part)
            _write_files(folder, data, arrays)
            _publish(folder, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        file.path = path / file.name
    return path


def _sealed_parts(state: Any) -> Iterator[SealedArrays]:
    left = [state]
    while left:
        part = left.pop()
        if isinstance(part, SealedArrays):
            yield part
        elif isinstance(part, (Mapping, list, tuple)):
            left += part.values() if isinstance(part, Mapping) else part


def _add_sealed(folder: Path, part: SealedArrays) -> None:
    """Give a folder the file of sealed arrays: that of an earlier checkpoint, or a new one."""
    file, target = part.file, folder / part.file.name
    if file.path is not None:
        with suppress(OSError):  # it was removed, or is on another disk
            os.link(file.path, target, follow_symlinks=False)
            status = os.lstat(target)
            if stat.S_ISREG(status.st_mode) and status.st_size == file.description.get("bytes"):
                return
            os.unlink(target)
    file.path = None
    content = _packed(encode_state(list(part.arrays()))[1])
    create_file(target, content)
    file.description.update(_fingerprint(content))


def _packed(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    return packed.getvalue()


def _write_files(folder: Path, data: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
    if _refuse_large(text):
        warnings.warn(
            f"the numbers and strings of a state take more than half of what {_STATE} may have; a state that grows "
            "beyond it cannot be saved: keep large tables as NumPy arrays",
            stacklevel=2,
        )
    contents = {_STATE: text, _ARRAYS: _packed(arrays)}
    for name, content in contents.items():
        create_file(folder / name, content)
    marker = {
        "format": _FORMAT,
        "version": FORMAT_VERSION,
        "files": {name: _fingerprint(content) for name, content in contents.items()},
    }
    create_file(folder / _MARKER, json.dumps(marker, indent=1).encode("ascii"))
    sync_folder(folder)


def _fingerprint(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _refuse_large(text: bytes) -> bool:
    """Refuse a `state.json` that would take much more memory than it is long; True from half of the limit on."""
    memory = sum(cost * text.count(character) for character, cost in _COST.items())
    memory += 4 * len(text) * (b"\\u" in text)  # one such character makes a string take four bytes for each
    if len(text) > _MAX_STATE_BYTES or memory > _MAX_STATE_MEMORY:
        found = f"{len(text):,} bytes, which take up to {memory:,} bytes of memory"
        limits = f"at most {_MAX_STATE_BYTES:,} bytes of numbers and strings, and {_MAX_STATE_MEMORY:,} in memory"
        do = "keep long lists and large tables as NumPy arrays"
        raise CheckpointError(_STATE, expected=limits, found=found, do=do)
    return 2 * len(text) > _MAX_STATE_BYTES or 2 * memory > _MAX_STATE_MEMORY


def _previous(path: Path) -> Path:
    """Return the temporary path of the old checkpoint while the new one replaces it."""
    return path.with_name(f".{path.name}.previous")


def _publish(folder: Path, path: Path) -> None:
    previous = _previous(path)
    if path.exists():
        if previous.exists() and not _is_whole(path):  # then what waits there is all there is
            shutil.rmtree(path)
        else:
            shutil.rmtree(previous, ignore_errors=True)
            os.rename(path, previous)
    os.rename(folder, path)
    sync_folder(path.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    try:
        _read_files(path)[1].close()
    except CheckpointError:
        return False
    return True


def _refuse_foreign_files(path: Path) -> None:
    if not path.exists():
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {"a file"}
    found = sorted(name for name in names - _FILES if not is_sealed_name(name))
    if found:
        raise CheckpointError(
            f"saving to {path}",
            expected="a new folder, an empty one or a checkpoint",
            found=", ".join(found[:5]),
            do="save to a folder of its own, for example a subfolder",
        )


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read a state back; tensors come back as arrays.

    Reading runs no code from the files.

    Args:
        path: The folder that `save_state` wrote. If a save was interrupted at the moment of replacing it, or
            left it damaged, and the checkpoint it was about to replace is still there, that one is read.

    Raises:
        CheckpointError: the folder is missing, incomplete, damaged or of another version.
    """
    folder, text, file = _readable_folder(Path(os.path.realpath(path)))
    with file:
        try:
            data = json.loads(text.decode("ascii"), parse_constant=_no_constant)
            arrays = dict(_read_arrays(file, text.count(b'"array"')))
        except Exception as error:
            raise _damaged(folder, f"contents that cannot be read ({type(error).__name__}: {error})") from error
    with error_context(f"in {folder}:"):
        state = decode_state(data, arrays)
    parts = list(_sealed_parts(state))
    if len({part.file.name for part in parts}) < len(parts):
        raise _damaged(folder, "one file for several parts")
    for part in parts:
        part.file.path = folder / part.file.name
        part.make = partial(_read_sealed, part.file.path, part.file.description)
        if not part.file.path.is_file():
            raise _damaged(folder, f"no {part.file.name}")
    return state


def _read_sealed(path: Path, description: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    with _open_checked(path, dict(description)) as file:
        try:
            return [array for _, array in _read_arrays(file, _MOST_ARRAYS)]
        except Exception as error:
            raise _damaged(path.parent, f"{path.name} cannot be read ({type(error).__name__}: {error})") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name}, which no checkpoint holds")


def arrays_size(state: Any) -> int:
    """The bytes that the arrays in a state take, which bound what is built from a checkpoint's description."""
    size, left = 0, [state]
    while left:
        part = left.pop()
        if isinstance(part, np.ndarray):
            size += part.nbytes
        elif isinstance(part, (Mapping, list, tuple)):
            left += part.values() if isinstance(part, Mapping) else part
    return size


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """True if a folder is a completely written checkpoint; `check_state` checks that it is still complete."""
    return (Path(path) / _MARKER).is_file()


def check_state(path: str | os.PathLike[str]) -> None:
    """Make sure that a checkpoint is whole, without decoding it.

    Args:
        path: The folder that `save_state` wrote.

    Raises:
        CheckpointError: the folder is missing, incomplete, damaged or of another version.
    """
    _readable_folder(Path(os.path.realpath(path)))[2].close()


def _readable_folder(path: Path) -> tuple[Path, bytes, BinaryIO]:
    """The folder to read, this one or the one it replaced, the content of its JSON and the open file of its arrays."""
    try:
        return path, *_read_files(path)
    except CheckpointError as error:
        if not _previous(path).is_dir():
            raise
        try:
            contents = _read_files(_previous(path))
        except CheckpointError:
            raise error from None
        if path.exists():
            _log.warning("%s\n  instead:  the checkpoint that it replaced is read", error)
        return _previous(path), *contents


def _read_files(folder: Path) -> tuple[bytes, BinaryIO]:
    files = _read_marker(folder)["files"]
    refuse_links(folder)
    with _open_checked(folder / _STATE, files.get(_STATE), _MAX_STATE_BYTES) as state:
        text = state.read()
    with error_context(f"loading {folder}:"):
        _refuse_large(text)
    return text, _open_checked(folder / _ARRAYS, files.get(_ARRAYS))


def _read_marker(folder: Path) -> dict[str, Any]:
    file = folder / _MARKER
    if folder.is_symlink() or not file.is_file():
        found = f"no file named {_MARKER}" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
        raise CheckpointError(
            f"loading {folder}",
            expected="a complete checkpoint",
            found=found,
            do=f"check the path; a folder without the file {_MARKER} was not written to its end",
        )
    try:
        marker = json.loads(read_file(file, _MAX_MARKER_BYTES))
        has_format = marker["format"] == _FORMAT and isinstance(marker["files"], dict)
        version = marker["version"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise _damaged(folder, f"{_MARKER} cannot be read ({error})") from error
    if not has_format or version != FORMAT_VERSION:
        raise CheckpointError(
            f"loading {folder}",
            expected=f"format {_FORMAT!r}, version {FORMAT_VERSION}",
            found=f"format {marker['format']!r}, version {version!r}",
            do="load it with the release of epibatch that wrote it",
        )
    return dict(marker)


def _open_checked(path: Path, fingerprint: Any, limit: int | None = None) -> BinaryIO:
    """Open a file that is as long as the marker says, and has its sum."""
    if not isinstance(fingerprint, dict) or not path.is_file():
        raise _damaged(path.parent, f"no {path.name}")
    try:
        file = open_file(path)
        try:
            size = os.fstat(file.fileno()).st_size
            if size != fingerprint.get("bytes"):
                raise _damaged(path.parent, f"{path.name} has {size} bytes, {fingerprint.get('bytes')} were written")
            if limit is not None and size > limit:
                raise _damaged(path.parent, f"{path.name} has {size:,} bytes, more than {limit:,}")
            if _sum_of(file) != fingerprint.get("sha256"):
                raise _damaged(path.parent, f"{path.name} was changed after it was written")
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise _damaged(path.parent, f"{path.name} cannot be read ({error})") from error
    return file


def _sum_of(file: BinaryIO) -> str:
    """SHA-256 of an open file, which is left at its beginning."""
    total = hashlib.sha256()
    while chunk := file.read(2**20):
        total.update(chunk)
    file.seek(0)
    return total.hexdigest()


def _read_arrays(file: BinaryIO, max_arrays: int) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The arrays of an archive as `np.savez` writes it: stored one after the other, `a0`, `a1` and so on.

    What the archive says about sizes is compared with what it holds before memory is taken.

    Args:
        file: The archive, at its beginning.
        max_arrays: How many arrays there may be.

    Raises:
        ValueError: something else.
    """
    length, number = os.fstat(file.fileno()).st_size, 0
    while (signature := file.read(4)) == b"PK\x03\x04":
        name, size = f"a{number}", _entry_size(file, f"a{number}.npy")
        end = file.tell() + size
        if number >= max_arrays or end > length:
            raise ValueError(f"{_ARRAYS} holds more than the arrays of the state")
        yield name, _read_array(file, name, size)
        if file.tell() != end:
            raise ValueError(f"{name} in {_ARRAYS} is longer than it says")
        number += 1
    if signature not in (b"PK\x01\x02", b"PK\x05\x06"):
        raise ValueError(f"{_ARRAYS} is no archive of arrays")


def _entry_size(file: BinaryIO, expected: str) -> int:
    """The size of a stored entry, from the header of a zip archive's entry."""
    _, flags, method, _, _, stored, size, name, extra = struct.unpack("<HHHIIIIHH", _exactly(file, 26))
    entry_name, extra_field = _exactly(file, name), _exactly(file, extra)
    if method != 0 or flags & ~0x800:  # only the flag for names in UTF-8
        raise ValueError(f"{expected} in {_ARRAYS} is compressed")
    if entry_name != expected.encode():
        raise ValueError(f"{expected} in {_ARRAYS} is missing")
    if size == stored == 0xFFFFFFFF and extra_field[:4] == b"\x01\x00\x10\x00" and len(extra_field) >= 20:
        size, stored = struct.unpack("<QQ", extra_field[4:20])
    if size != stored:
        raise ValueError(f"{expected} in {_ARRAYS} is compressed")
    return int(size)


def _read_array(file: BinaryIO, name: str, size: int) -> np.ndarray[Any, Any]:
    start = file.tell()
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{name} in {_ARRAYS} has version {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or nbytes != size - (file.tell() - start) or (not nbytes and math.prod(shape) > 2**20):
        raise ValueError(f"{name} in {_ARRAYS} has shape {shape} of {dtype} in {size} bytes")
    array = np.empty(shape, dtype, "F" if fortran else "C")
    flat: Any = array.reshape(-1, order="A").view(np.uint8) if nbytes else b""
    if nbytes and file.readinto(memoryview(flat)) != nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"{name} in {_ARRAYS} is shorter than it says")
    return array


def _exactly(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise ValueError(f"{_ARRAYS} ends too early")
    return content


def _damaged(folder: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"loading {folder}",
        expected="an undamaged checkpoint",
        found=found,
        do="restore the files from a copy, or load an earlier checkpoint",
    )


class Checkpointable:
    """Base class of objects with a nested dict as state, which can be saved to a folder and restored from it.

    Subclasses implement `get_state` and `set_state`.

    Examples:
        >>> class Counter(Checkpointable):
        ...     n = 0
        ...     def get_state(self, components=None, *, not_components=None, **kwargs):
        ...         return {"n": self.n}
        ...     def set_state(self, state):
        ...         self.n = state["n"]
        >>> one, other = Counter(), Counter()
        >>> one.n = 5
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     other.restore_from_path(one.save_to_path(folder + "/counter"))
        >>> other.n
        5
    """

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Everything that `set_state` needs, as data: see `save_state` for what it may hold.

        Args:
            components: Names of parts to include; None includes all.
            not_components: Names of parts to leave out.
            **kwargs: Further choices of a class.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave."""

    def save_to_path(self, path: str | os.PathLike[str] | None = None, *, state: dict[str, Any] | None = None) -> str:
        """Write the state to a folder and return its path.

        Args:
            path: The folder; None makes a new one among the system's temporary files.
            state: What to write instead of `get_state()`.

        Raises:
            CheckpointError: the state holds something that cannot be saved as data.
        """
        if path is None:
            path = tempfile.mkdtemp(prefix="epibatch-")
        return str(save_state(path, self.get_state() if state is None else state))

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Read a folder that `save_to_path` wrote and take its state over.

        Raises:
            CheckpointError: the folder is missing, incomplete, damaged or of another version.
        """
        self.set_state(load_state(path))
