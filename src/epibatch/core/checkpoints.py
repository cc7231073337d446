"""Checkpoints: folders that are either complete or refused, without pickle.

A checkpoint holds `state.json`, `arrays.npz` and, written last, `COMPLETE`: a small JSON file with the
format's version and the sizes and SHA-256 sums of the other two. It is written beside its destination and
renamed into place, so that whatever interrupts a save, the state before it or the new one can be loaded.
A checkpoint that is damaged while the one before it is still there is passed over for that one, with a warning
in the log.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, StorageError, add_context, explain
from epibatch.core.state_codec import decode_state, encode_state

__all__ = ["FORMAT_VERSION", "Checkpointable", "check_state", "is_checkpoint", "load_state", "save_state", "storing"]

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
_FORMAT = "epibatch-state"
_STATE, _ARRAYS, _MARKER = "state.json", "arrays.npz", "COMPLETE"
_FILES = {_STATE, _ARRAYS, _MARKER}
_MAX_MARKER_BYTES = 65536


def save_state(path: str | os.PathLike[str], state: Any) -> Path:
    """Write a state to a folder, replacing the checkpoint that may be there.

    Args:
        path: the folder; its parents are made. The old checkpoint stays loadable until the new one is complete.
        state: nested dicts, lists and tuples of arrays, tensors (which come back as arrays), numbers, NumPy
            scalars, strings, bytes and None; dict keys may be str, int, bool, None or tuples of these.

    Returns:
        The folder.

    Raises:
        CheckpointError: the state holds something else (the message says where), or the folder exists and
            holds files that are no checkpoint's.
        StorageError: the disk is full, say; the checkpoint that may be there is still whole.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_state(Path(folder) / "best", {"step": 10, ("a", 1): np.arange(2)})
        ...     load_state(path)
        {'step': 10, ('a', 1): array([0, 1])}
    """
    path = Path(os.path.realpath(path))
    data, arrays = encode_state(state)
    _refuse_foreign_files(path)
    with storing(f"saving to {path}", "free or choose another disk; a checkpoint that was there before is still whole"):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.saving-", dir=path.parent))
        try:
            _write_files(folder, data, arrays)
            _publish(folder, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return path


@contextmanager
def storing(where: str, do: str) -> Iterator[None]:
    """Turn what the system says against writing a file into a named error.

    Args:
        where: what is being written.
        do: what to do about it.

    Raises:
        StorageError: an OSError was raised inside.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
        raise StorageError(explain(where, expected="a place that can be written to", found=found, do=do)) from None


def _write_files(folder: Path, data: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    contents = {_STATE: text, _ARRAYS: packed.getvalue()}
    for name, content in contents.items():
        _write(folder / name, content)
    marker = {
        "format": _FORMAT,
        "version": FORMAT_VERSION,
        "files": {name: _fingerprint(content) for name, content in contents.items()},
    }
    _write(folder / _MARKER, json.dumps(marker, indent=1).encode("ascii"))
    folder.chmod(0o777 & ~_umask())  # temporary folders are private
    _sync_folder(folder)


def _fingerprint(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    """Make a folder's entries durable where the system can sync folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _previous(path: Path) -> Path:
    """Where the old checkpoint waits while the new one takes its place."""
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
    _sync_folder(path.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    try:
        _read_files(path)
    except CheckpointError:
        return False
    return True


def _refuse_foreign_files(path: Path) -> None:
    if not path.exists():
        return
    found = sorted({entry.name for entry in path.iterdir()} - _FILES) if path.is_dir() else ["a file"]
    if found:
        raise CheckpointError(
            explain(
                f"saving to {path}",
                expected="a new folder, an empty one or a checkpoint",
                found=", ".join(found[:5]),
                do="save to a folder of its own, for example a subfolder",
            )
        )


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read a state back; tensors come back as arrays.

    Reading runs no code from the files.

    Args:
        path: the folder that `save_state` wrote. If a save was interrupted at the moment of replacing it, or
            left it damaged, and the checkpoint it was about to replace is still there, that one is read.

    Raises:
        CheckpointError: the folder is missing, incomplete, damaged or of another version.
    """
    folder, contents = _whole(Path(os.path.realpath(path)))
    try:
        data = json.loads(contents[_STATE])
        packed = np.load(io.BytesIO(contents[_ARRAYS]), allow_pickle=False)
        if not isinstance(packed, np.lib.npyio.NpzFile):
            raise ValueError(f"{_ARRAYS} is no archive of arrays")
        with packed:
            arrays = {name: packed[name] for name in packed.files}
    except (ValueError, OSError, EOFError, KeyError, MemoryError, RecursionError, zipfile.BadZipFile) as error:
        raise _damaged(folder, f"contents that cannot be read ({type(error).__name__}: {error})") from error
    try:
        return decode_state(data, arrays)
    except CheckpointError as error:
        add_context(error, f"in {folder}:")
        raise


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a checkpoint that was written to its end; `check_state` tells whether it still is whole."""
    return (Path(path) / _MARKER).is_file()


def check_state(path: str | os.PathLike[str]) -> None:
    """Make sure that a checkpoint is whole, without decoding it.

    Args:
        path: the folder that `save_state` wrote.

    Raises:
        CheckpointError: the folder is missing, incomplete, damaged or of another version.
    """
    _whole(Path(os.path.realpath(path)))


def _whole(path: Path) -> tuple[Path, dict[str, bytes]]:
    """The folder to read, this one or the one it replaced, and the contents of its files."""
    try:
        return path, _read_files(path)
    except CheckpointError as error:
        if not _previous(path).is_dir():
            raise
        try:
            contents = _read_files(_previous(path))
        except CheckpointError:
            raise error from None
        if path.exists():
            _log.warning("%s\n  instead:  the checkpoint that it replaced is read", error)
        return _previous(path), contents


def _read_files(folder: Path) -> dict[str, bytes]:
    files = _read_marker(folder)["files"]
    return {name: _read_checked(folder / name, files.get(name)) for name in (_STATE, _ARRAYS)}


def _read_marker(folder: Path) -> dict[str, Any]:
    file = folder / _MARKER
    if not file.is_file():
        found = f"no file named {_MARKER}" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
        raise CheckpointError(
            explain(
                f"loading {folder}",
                expected="a complete checkpoint",
                found=found,
                do="check the path; a folder without the file was not written to its end",
            )
        )
    try:
        with file.open("rb") as opened:
            marker = json.loads(opened.read(_MAX_MARKER_BYTES))
        known = marker["format"] == _FORMAT and isinstance(marker["files"], dict)
        version = marker["version"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise _damaged(folder, f"{_MARKER} cannot be read ({error})") from error
    if not known or version != FORMAT_VERSION:
        raise CheckpointError(
            explain(
                f"loading {folder}",
                expected=f"format {_FORMAT!r}, version {FORMAT_VERSION}",
                found=f"format {marker['format']!r}, version {version!r}",
                do="load it with the release of epibatch that wrote it",
            )
        )
    return dict(marker)


def _read_checked(file: Path, fingerprint: Any) -> bytes:
    if not isinstance(fingerprint, dict) or not file.is_file():
        raise _damaged(file.parent, f"no {file.name}")
    try:
        size = file.stat().st_size
        if size != fingerprint.get("bytes"):
            raise _damaged(file.parent, f"{file.name} has {size} bytes, {fingerprint.get('bytes')} were written")
        content = file.read_bytes()
    except OSError as error:
        raise _damaged(file.parent, f"{file.name} cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != fingerprint.get("sha256"):
        raise _damaged(file.parent, f"{file.name} was changed after it was written")
    return content


def _damaged(folder: Path, found: str) -> CheckpointError:
    return CheckpointError(
        explain(
            f"loading {folder}",
            expected="an undamaged checkpoint",
            found=found,
            do="restore the files from a copy, or load an earlier checkpoint",
        )
    )


class Checkpointable:
    """Anything whose state is a nested dict: it can be saved to a folder and restored from it.

    Subclasses implement `get_state` and `set_state`.

    Example:
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
            components: names of parts to include; None includes all.
            not_components: names of parts to leave out.
            **kwargs: further choices of a class.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave."""

    def save_to_path(self, path: str | os.PathLike[str] | None = None, *, state: dict[str, Any] | None = None) -> str:
        """Write the state to a folder and return its path.

        Args:
            path: the folder; None makes a new one among the system's temporary files.
            state: what to write instead of `get_state()`.

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
