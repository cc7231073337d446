"""Which columns of a batch somebody reads, and which are left out since nobody does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError

__all__ = [
    "ALWAYS_KEPT",
    "COLUMNS_LEFT_OUT",
    "COLUMNS_READ",
    "LeanColumns",
    "ReadColumns",
    "left_out_by",
    "left_out_of",
    "note_read",
]

COLUMNS_LEFT_OUT = "columns_left_out"
"""In shared_data: module id -> names of columns that the learner pipeline is not to make."""
COLUMNS_READ = "columns_read"
"""In shared_data: module id -> names of columns that were read so far; None: read by a piece about all modules."""
ALWAYS_KEPT = frozenset(
    {
        *(Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK, Columns.SEQ_LENS),
        *(Columns.SEQ_OFFSETS, Columns.RESETS, Columns.RESET_STATES, Columns.STATE_IN),
    }
)
"""Columns that stay, whether somebody reads them or not."""


class _WatchedColumns(dict[str, Any]):
    """A batch that is told of every read: by name, of all columns, and by what is made of it."""

    def _asked(self, name: Any) -> None:
        """Told of a column that somebody reads, or asks for."""

    def _asked_for_all(self) -> None:
        """Told of somebody who reads whatever is there."""

    def _like(self, columns: dict[str, Any]) -> Any:
        """A batch of other columns that is watched as this one is."""

    def _plain(self) -> dict[str, Any]:
        return dict(super().items())

    def __getitem__(self, name: str) -> Any:
        self._asked(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._asked(name)
        return super().__contains__(name)

    def __delitem__(self, name: str) -> None:
        self._asked(name)
        super().__delitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or the default."""
        self._asked(name)
        return super().get(name, default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """A column, which is the default from now on if it is not there."""
        self._asked(name)
        return super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """A column, which is then gone."""
        self._asked(name)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        """The last column with its name, which is then gone."""
        self._asked_for_all()
        return super().popitem()

    def __iter__(self) -> Iterator[str]:
        self._asked_for_all()
        return super().__iter__()

    def __reversed__(self) -> Iterator[str]:
        self._asked_for_all()
        return super().__reversed__()

    def keys(self) -> Any:
        """All names."""
        self._asked_for_all()
        return super().keys()

    def items(self) -> Any:
        """All columns with their names."""
        self._asked_for_all()
        return super().items()

    def values(self) -> Any:
        """All columns."""
        self._asked_for_all()
        return super().values()

    def copy(self) -> Any:
        """All columns, in a batch that is watched as well."""
        return self._like(self._plain())

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self._like(self._plain() | other) if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return self._like(dict(other) | self._plain()) if isinstance(other, dict) else NotImplemented


class ReadColumns(_WatchedColumns):
    """A batch that takes note of which of its columns are read: by name, by asking for them, or all by iteration.

    Copies, and batches that `|` makes of it, take note in the same place when they are read.

    Args:
        columns: The batch.
        read: Where names are noted.

    Example:
        >>> read = set()
        >>> batch = ReadColumns({"obs": 1, "rewards": 2, "t": 3}, read)
        >>> batch["obs"], batch.get("rewards"), sorted(read)
        (1, 2, ['obs', 'rewards'])
    """

    def __init__(self, columns: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(columns)
        self._read = read

    def _asked(self, name: Any) -> None:
        self._read.add(str(name))

    def _asked_for_all(self) -> None:
        self._read.update(self._plain())

    def _like(self, columns: dict[str, Any]) -> ReadColumns:
        return ReadColumns(columns, self._read)


class LeanColumns(_WatchedColumns):
    """A batch in which some columns were left out; asking for one of them is an error and no silent `None`.

    So is reading all columns, as `{**batch}` does, while one of them is missing: whoever did so in the first update has
    them all. One that was written into the batch is there as any other.

    Args:
        columns: The batch.
        left_out: Their names.

    Example:
        >>> LeanColumns({"obs": 1}, {"t"})["obs"]
        1
    """

    def __init__(self, columns: Mapping[str, Any], left_out: Iterable[str]) -> None:
        super().__init__(columns)
        self._left_out = frozenset(left_out)

    def _asked(self, name: Any) -> None:
        if name in self._left_out and not dict.__contains__(self, name):
            raise _left_out(
                f"column {name!r} of a train batch", "one that nobody read then, and that was left out since"
            )

    def _asked_for_all(self) -> None:
        missing = sorted(name for name in self._left_out if not dict.__contains__(self, name))
        if missing:
            names = ", ".join(map(repr, missing))
            raise _left_out(
                "all columns of a train batch",
                f"{names} left out: nobody read all columns, or these, in the first update",
            )

    def _like(self, columns: dict[str, Any]) -> LeanColumns:
        return LeanColumns(columns, self._left_out)


def _left_out(where: str, found: str) -> ColumnError:
    return ColumnError(
        where,
        expected="columns that were read in the first update, as the setting columns='auto' wants",
        found=found,
        do="read it in every update, or .learners(columns='all')",
    )


def note_read(shared_data: Mapping[str, Any], names: Iterable[str], module_id: Any = None) -> None:
    """Take note of columns that are read, if somebody wants to know.

    Args:
        shared_data: Of the pipeline call.
        names: The columns.
        module_id: Whose rows; None: those of any module.
    """
    read = shared_data.get(COLUMNS_READ)
    if read is not None:
        read.setdefault(module_id, set()).update(names)


def left_out_of(columns: Iterable[str], read: Iterable[str], pieces: Iterable[Any]) -> frozenset[str]:
    """Those columns that may be left out of later batches.

    Args:
        columns: The columns of a batch.
        read: Those that the module, the loss and undeclared pieces read.
        pieces: The pipeline's pieces: what they declare to read stays, and what they make of tensors is not its to
            leave out.

    Example:
        >>> sorted(left_out_of(["obs", "rewards", "t", "logits"], {"obs"}, []))
        ['logits', 't']
    """
    kept = {*read, *ALWAYS_KEPT}
    if Columns.NEXT_STATE_IN in kept or Columns.NEXT_RESET_STATES in kept:
        kept.add(Columns.NEXT_OBS)  # beside which they are made
    for piece in pieces:
        kept.update(piece.reads or ())
        if "tensors" in (piece.takes or ()):
            kept.update(piece.writes)
    return frozenset(name for name in columns if name not in kept)


def left_out_by(shared_data: Mapping[str, Any], module_id: Any) -> frozenset[str]:
    """The columns that the pipeline is not to make for a module."""
    by_module = shared_data.get(COLUMNS_LEFT_OUT)
    found: frozenset[str] = frozenset()
    if by_module:
        found = frozenset(by_module.get(DEFAULT_MODULE_ID if module_id is None else module_id, ()))
    return found
