"""The filters of this process's warnings, for processes that it starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, cast

__all__ = ["set_warning_filters", "warning_filters"]


def warning_filters() -> list[Any]:
    """Return the filters, first one first, as data."""
    return list(warnings.filters)


def set_warning_filters(filters: Iterable[Any]) -> None:
    """Replace the filters by those of another process.

    Examples:
        >>> with warnings.catch_warnings():
        ...     set_warning_filters([("ignore", None, UserWarning, None, 0)])
        ...     len(warning_filters())
        1
    """
    warnings.resetwarnings()  # it also lets Python forget what earlier filters decided
    cast("list[Any]", warnings.filters).extend(filters)
