"""HDF5 files of strangers: whether they lead to other files, or take far more memory than they have bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epibatch.core.errors import DataError
from epibatch.core.imports import import_extra

from .foreign import check_size

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


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
        return file.read(len(_SIGNATURE)) == _SIGNATURE


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
