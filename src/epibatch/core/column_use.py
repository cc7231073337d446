"""Columns of a batch that are read, and columns that are left out because nothing reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError

__all__ = ["ALWAYS_KEPT", "COLUMNS_LEFT_OUT", "COLUMNS_READ", "TrackedBatch"]

COLUMNS_LEFT_OUT = "columns_left_out"
"""In shared_data: module id -> names of columns that the learner pipeline is not to make."""
COLUMNS_READ = "columns_read"
"""In shared_data: a defaultdict, module id -> names of columns that were read; None: read by a piece of all modules."""
ALWAYS_KEPT = frozenset(
    {
        *(Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK, Columns.SEQ_LENS),
        *(Columns.SEQ_OFFSETS, Columns.RESETS, Columns.RESET_STATES, Columns.STATE_IN),
    }
)
"""Columns that are never left out."""


class TrackedBatch(dict[str, Any]):
    """A batch that records which columns are read: by name, by asking for them, or all by iteration or copying.

    Reading a column that was left out is an error and no silent `None`, unless it was written in the meantime.

    Args:
        columns: The batch.
        read: The set to which names of columns are added.
        left_out: Names of columns that the batch lacks because nothing read them before.

    Example:
        >>> read = set()
        >>> batch = TrackedBatch({"obs": 1, "rewards": 2, "t": 3}, read)
        >>> batch["obs"], batch.get("rewards"), sorted(read)
        (1, 2, ['obs', 'rewards'])
    """

    def __init__(self, columns: Mapping[str, Any], read: set[str], left_out: Set[str] = frozenset()) -> None:
        super().__init__(columns)
        self.read = read
        self.left_out = left_out

    def record_access(self, names: Iterable[str]) -> None:
        """Record that columns are read.

        Raises:
            ColumnError: one of them was left out.
        """
        names = set(names)
        self.read |= names
        missing = (names & self.left_out) - dict.keys(self)
        if missing:
            raise ColumnError(
                f"train batch, {', '.join(map(repr, sorted(missing)))}",
                expected="columns that were read in the first update, as the setting columns='auto' requires",
                found="left out, because nothing read all columns, or these, in the first update",
                do="read it in every update, or .learners(columns='all')",
            )


def _tracked(name: str, reads_all: bool) -> Callable[..., Any]:
    method = getattr(dict, name)

    def tracked(batch: TrackedBatch, *args: Any) -> Any:
        batch.record_access([*dict.keys(batch), *batch.left_out] if reads_all else args[:1])
        return method(batch, *args)

    return tracked


for _name in ("__contains__", "__delitem__", "__getitem__", "get", "pop", "setdefault"):
    setattr(TrackedBatch, _name, _tracked(_name, reads_all=False))
for _name in ("__iter__", "__reversed__", "copy", "items", "keys", "popitem", "values"):
    setattr(TrackedBatch, _name, _tracked(_name, reads_all=True))
