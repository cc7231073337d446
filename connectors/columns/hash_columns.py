"""A column that tells rows apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import sorted_leaves

from .._engine.chunks import ChunkGroup
from ..authoring.column_paths import paths_from
from .open_columns import OpenColumns, PieceOfColumns, in_tree

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_AT_ONCE = 1 << 15
"""Words that are mixed at once, so that they stay in the processor's cache."""


def hashed_rows(leaves: Sequence[Any], where: str) -> npt.NDArray[np.int64]:
    """Return a 64-bit hash of each row, the same in every process and on every run.

    Each eight bytes are mixed with their place (by the finaliser of SplitMix64, Steele et al. 2014) and summed up.
    Zero and minus zero are one number. Two different rows have the same hash with a probability of about 2**-64,
    unless they are constructed to.

    Args:
        leaves: Arrays of one number of rows, or of strings.
        where: Source of the rows, for messages.

    Raises:
        ColumnError: the rows are neither numbers nor strings.

    Examples:
        >>> first, second, third = hashed_rows([np.array([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0]])], "example")
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    total = np.zeros(len(leaves[0]), np.uint64)
    place = 0
    with np.errstate(over="ignore"):
        for leaf in leaves:
            words = _words(np.asarray(leaf), where)
            places = np.arange(place + 1, place + 1 + words.shape[1], dtype=np.uint64) * _STEP
            rows = max(1, _AT_ONCE // max(1, words.shape[1]))
            for start in range(0, len(words), rows):
                total[start : start + rows] += _mixed(words[start : start + rows] + places).sum(1, dtype=np.uint64)
            place += words.shape[1]
        hashes: npt.NDArray[np.int64] = _mixed(total).view(np.int64)
    return hashes


def _mixed(words: Any) -> Any:
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def _words(rows: Any, where: str) -> Any:
    """Rows as 64-bit words: uint64, [rows, words]."""
    kind = rows.dtype.kind
    if kind == "O":
        rows = _PLAIN(rows)
    if kind == "O" and all(isinstance(item, (str, bytes)) for item in rows.ravel()):
        return _digests([repr(row.tolist() if isinstance(row, np.ndarray) else row).encode() for row in rows])
    if kind in "US":
        return _digests([repr(row.tolist()).encode() for row in rows])
    if kind not in "biufc":
        raise ColumnError(
            where,
            expected="rows of numbers or strings",
            found=f"{rows.dtype} rows",
            do="name the parts that hold numbers, as in 'obs/pose'",
        )
    rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    if kind in "fc":
        rows = rows + np.zeros((), rows.dtype)  # minus zero becomes zero
    size = rows.shape[1] * rows.dtype.itemsize
    if not size:
        return np.zeros((len(rows), 0), np.uint64)
    rows = np.ascontiguousarray(rows)
    if size % 8 == 0:
        return rows.view(np.uint64)
    padded = np.zeros((len(rows), -(-size // 8) * 8), np.uint8)
    padded[:, :size] = rows.view(np.uint8)
    return padded.view(np.uint64)


def _plain(item: Any) -> Any:
    """Text without NumPy's types, which is equal text."""
    return item.item() if isinstance(item, (np.ndarray, np.generic)) and item.ndim == 0 else item


_PLAIN = np.frompyfunc(_plain, 1, 1)


def _digests(rows: list[Any]) -> Any:
    """One word for each row of bytes."""
    joined = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(joined, "<u8").astype(np.uint64)[:, None]


class HashColumns(PieceOfColumns):
    """Adds a 64-bit number per row that is the same for equal rows of some columns: for counts, tables, caches.

    It is the same in every process and on every run. Of nested columns all parts count, dicts by sorted key. It is
    made of bytes, so columns to compare have to be of one type: 1 is not 1.0. What the batch does not have yet is taken
    from the episodes, and not left in the batch.

    Counterparts: TorchRL's `Hash`.

    Args:
        columns: Name of the column, or names, of numbers or strings.
        to: Name of the new column, int64.
        keep_rows: Whether `row_of` finds the row of a hash again, of those that this object has hashed. Each different
            row stays in memory; checkpoints do not have them.

    Raises:
        ColumnError: rows of something else, or a column of that name.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [3, 5, 3, 4], "actions": [0, 0, 0], "rewards": [0.0, 0.0, 0.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[HashColumns(columns="obs"), BatchIndividualItems()])
        >>> first, second, third = pipeline(episodes=[episode])["hash"]
        >>> bool(first == third), bool(first == second)
        (True, False)
    """

    input_layouts: ClassVar[tuple[str, ...]] = ("episodes", "arrays")
    columns: Any = Columns.OBS
    to: str = "hash"
    keep_rows: bool = False

    def __post_init__(self) -> None:
        """Take the names apart."""
        self._paths = paths_from("HashColumns", self.columns)
        self._rows: dict[int, list[Any]] = {}

    def row_of(self, number: int) -> list[Any]:
        """Return the row that has a hash: a value for each leaf of the columns, dicts by sorted key.

        Raises:
            ColumnError: no row had this hash, or none was kept.
        """
        try:
            return self._rows[int(number)]
        except KeyError:
            raise ColumnError(
                "HashColumns.row_of",
                expected=f"the hash of one of {len(self._rows)} rows",
                found=repr(number),
                do="hash the row before, with keep_rows=True",
            ) from None

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The new column."""
        return (self.to,)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if self.to in columns:
            raise ColumnError(
                "HashColumns.to",
                expected="a new name",
                found=f"{self.to!r}, which the batch has already",
                do="choose another name",
            )
        opened = OpenColumns(columns, group, self._paths, "HashColumns", pull=True)
        opened.check_rows()
        leaves = [leaf for path in self._paths for leaf in sorted_leaves(in_tree(path).part(opened.tree))]
        shape = np.shape(leaves[0])[: opened.leading]
        rows = [np.asarray(leaf).reshape(math.prod(shape), *np.shape(leaf)[opened.leading :]) for leaf in leaves]
        hashes = hashed_rows(rows, "HashColumns")
        if self.keep_rows:
            _, first = np.unique(hashes, return_index=True)
            new = [i for i in first.tolist() if int(hashes[i]) not in self._rows]
            self._rows.update((int(hashes[i]), [np.copy(leaf[i]) for leaf in rows]) for i in new)
        return opened.batch_with({**opened.tree, self.to: hashes.reshape(shape)})
