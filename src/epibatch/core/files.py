"""Reading, writing and locking files in untrusted folders, without following links.

A link in such a folder may lead to any file of the user, and a named pipe may block for ever. Reading therefore opens
regular files only, writing goes to a new file that is renamed, and a folder can be checked as a whole.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Any, BinaryIO

from epibatch.core.errors import CheckpointError, StorageError

LOCK = ".lock"
"""Name of the file by which a process holds a folder."""

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.writing", re.DOTALL)
_log = logging.getLogger(__name__)


@contextmanager
def storing(where: str, do: str) -> Iterator[None]:
    """Turn what the system says against writing a file into a named error.

    Args:
        where: What is being written.
        do: What to do about it.

    Raises:
        StorageError: an OSError was raised inside.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
        raise StorageError(where, expected="a place that can be written to", found=found, do=do) from None


# -- reading -----------------------------------------------------------------------------------------


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it is missing, a link, a folder, a named pipe or a device, or cannot be read.
    """
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


def read_file(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        limit: Most bytes that it may have; a larger file is not read.

    Raises:
        OSError: it is missing, a link, a folder, a named pipe or a device, is larger, or cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise OSError(f"{path.name} has {size:,} bytes, more than {limit:,}")
        return file.read(size)


def _descriptor(path: Path, flags: int) -> int:
    _refuse_link(path)  # where the system has no O_NOFOLLOW
    descriptor = os.open(path, flags | _SAFE | _BINARY, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path.name} is {_kind(os.lstat(path).st_mode)}, not a file")


def _refuse_link(path: Path) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise OSError(f"{path.name} is a link")


def _kind(mode: int) -> str:
    kinds = {"a link": stat.S_ISLNK, "a named pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK, "a folder": stat.S_ISDIR}
    return next((name for name, check in kinds.items() if check(mode)), "a device")


def refuse_links(folder: Path, only: re.Pattern[str] | None = None) -> None:
    """Make sure that a folder holds regular files and folders only, at every depth; the folder itself may be a link.

    What another process renames or removes meanwhile is no link.

    Args:
        folder: The folder; one that does not exist holds nothing.
        only: Paths in the folder, with slashes, that are looked at; None means all.

    Raises:
        CheckpointError: a link, a named pipe, a socket or a device is in it.
    """
    pending = [str(folder)] if folder.is_dir() else []
    while pending:
        place = pending.pop()
        try:
            paths = [entry.path for entry in os.scandir(place)]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _strange(folder, f"{place}, which cannot be listed ({error})") from error
        for path in paths:
            name = os.path.relpath(path, folder).replace(os.sep, "/")
            if only is not None and not only.fullmatch(name):
                continue
            with suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    pending.append(path)
                elif not stat.S_ISREG(mode):
                    raise _strange(folder, f"{name!r}, which is {_kind(mode)}")


def _strange(folder: Path, found: str) -> CheckpointError:
    do = "look into the folder, and remove what epibatch did not write"
    return CheckpointError(str(folder), expected="regular files and folders only", found=found, do=do)


# -- writing -----------------------------------------------------------------------------------------


def create_file(path: Path, content: bytes) -> None:
    """Write a new file, down to the disk; a file or link that is there already is an OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE | _BINARY, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a new name and rename it: whenever the process is killed, the old or the new one is there.

    A link at the path is replaced, not followed. The permissions of a file that is replaced stay.

    Raises:
        OSError: the disk is full, say; the old file is still there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.writing")
    try:
        create_file(temporary, content)
        with suppress(FileNotFoundError):
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(temporary, stat.S_IMODE(mode) & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_file(path: Path, content: bytes, what: str) -> None:
    """Write a file that a user has named, and the folders that it needs.

    Args:
        path: The file; one that is there is replaced.
        content: The bytes.
        what: What they are.

    Raises:
        StorageError: it cannot be written.
    """
    with storing(f"{what} {path}", "choose another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable where the system can sync folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_unfinished(path: Path) -> bool:
    """True for a file that a killed `replace_file` leaves."""
    return bool(_UNFINISHED.fullmatch(path.name)) and stat.S_ISREG(os.lstat(path).st_mode)


def open_to_append(path: Path) -> BufferedWriter:
    """Open a regular file for appending; one that is not there is made.

    Raises:
        OSError: it is a link, a folder, a named pipe or a device, or cannot be written.
    """
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


# -- locking -----------------------------------------------------------------------------------------


class FolderLock:
    """Holds a folder for this process until `release`, or until the process ends in whatever way.

    The system keeps the lock, on the file `.lock`, so a killed process leaves none. Forks of this process do not hold
    it. On file systems without locks nothing is held, and the log says so.

    Args:
        folder: The folder.

    Raises:
        StorageError: another process holds it, which the message names; or the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        with storing(f"locking {folder}", "see to the permissions of the folder"):
            descriptor = self._acquire(folder)
        _held.add(descriptor)
        self._release = weakref.finalize(self, _release, descriptor, self._path, os.getpid())

    def _acquire(self, folder: Path) -> int:
        while True:
            descriptor = _descriptor(self._path, os.O_RDWR | os.O_CREAT)
            try:
                if not _lock(descriptor):
                    raise _in_use(folder, os.read(descriptor, 300))
                with suppress(FileNotFoundError):
                    status = os.fstat(descriptor)
                    if not os.path.samestat(status, os.lstat(self._path)):
                        pass  # its holder has just removed it
                    elif status.st_nlink > 1:  # of another name is another file of the user, which is not written
                        self._path.unlink()
                    else:
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self) -> None:
        """Let others have the folder."""
        self._release()


_held: set[int] = set()


def _forget_in_fork() -> None:
    """Close the locks' files in a fork, which would otherwise hold them after its parent's end."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_fork)


def _release(descriptor: int, path: Path, owner: int) -> None:
    if os.getpid() != owner or descriptor not in _held:
        return
    _held.discard(descriptor)
    if os.name == "nt":
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()
        return
    with suppress(OSError):  # while it is held: no other process can hold a file of this name then
        path.unlink()
    os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open file; False if another process has."""
    try:
        if os.name == "nt":
            _lock_on_windows(descriptor)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if os.name == "nt" and isinstance(error, PermissionError):
            return False
        _log.warning("no locks on this file system (%s): nothing keeps two processes out of one run folder", error)
    return True


def _lock_on_windows(descriptor: int) -> None:
    import msvcrt

    lock: Any = msvcrt
    os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # the first bytes stay readable for others
    try:
        lock.locking(descriptor, lock.LK_NBLCK, 1)
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)


def _in_use(folder: Path, holder: bytes) -> StorageError:
    text = "".join(letter for letter in holder.decode("ascii", "replace") if letter.isprintable())
    return StorageError(
        str(folder),
        expected="a run folder that no other process uses",
        found=f"one that {text or 'another process'} is using",
        do="wait until that process has ended, or end it",
    )
