"""The rows, a module per family. A family is a module with a list ROWS; it is in the table once it is named here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from benchmarks.row import Row

FAMILIES = (
    "rows.learner",
    "memory",
    "rows.kernels",
    "rows.rollouts",
    "rows.storage",
    "rows.replay",
    "rows.acting",
    "rows.sampling",
    "rows.training",
)


def all_rows() -> list[Row]:
    """Return every row, in the order of the table."""
    return [row for family in FAMILIES for row in import_module(f"benchmarks.{family}").ROWS]


def chosen(rows: Sequence[Row], only: str) -> list[Row]:
    """Return the rows that a comma-separated list selects.

    Args:
        rows: To choose from.
        only: Names, or their first parts: `E1` selects `E1/16` and `E1/16/identity`, `L` every L row; empty: all.

    Raises:
        ValueError: a name that selects nothing.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if not any(_selects(name, row.name) for row in rows):
            raise ValueError(f"no row {name!r}; there are {', '.join(row.name for row in rows)}")
    return [row for row in rows if not names or any(_selects(name, row.name) for name in names)]


def _selects(name: str, row: str) -> bool:
    family = row.split("/")[0].rstrip("0123456789")
    return row == name or row.startswith(f"{name}/") or name == family
