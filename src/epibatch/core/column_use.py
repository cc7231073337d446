"""Which columns of a batch somebody reads, and which are left out since nobody does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, explain

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


class ReadColumns(dict[str, Any]):
    """A batch that takes note of which of its columns are read: by name, by asking for them, or all by iteration.

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

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or the default."""
        self._read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """A column, which is then gone."""
        self._read.add(name)
        return super().pop(name, *default)

    def __iter__(self) -> Iterator[str]:
        self._read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """All names."""
        self._read.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        """All columns with their names."""
        self._read.update(super().keys())
        return super().items()

    def values(self) -> Any:
        """All columns."""
        self._read.update(super().keys())
        return super().values()

    def copy(self) -> Any:
        """All columns, in a batch that takes note as well."""
        return ReadColumns(dict(super().items()), self._read)


class LeanColumns(dict[str, Any]):
    """A batch in which some columns were left out; asking for one of them is an error and no silent `None`.

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

    def _refuse(self, name: Any) -> None:
        if name in self._left_out and name not in self.keys():
            raise ColumnError(
                explain(
                    f"column {name!r} of a train batch",
                    expected="columns that were read in the first update, as the setting columns='auto' wants",
                    found="one that nobody read then, and that was left out since",
                    do="read it in every update, or .learners(columns='all')",
                )
            )

    def __missing__(self, name: str) -> Any:
        self._refuse(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        self._refuse(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or the default.

        Raises:
            ColumnError: the column was left out.
        """
        self._refuse(name)
        return super().get(name, default)


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
