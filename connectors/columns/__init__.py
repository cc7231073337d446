"""Pieces that rename, choose, join or check columns, whatever they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .cast_columns import CastColumns
    from .check_finite import CheckFinite
    from .hash_columns import HashColumns
    from .joined_columns import ConcatenateColumns, SplitColumn
    from .named_columns import DropColumns, RenameColumns, SelectColumns
    from .remove_empty_parts import RemoveEmptyParts
    from .shapes import PermuteColumns, ReshapeColumns, SqueezeColumns, UnsqueezeColumns


__all__ = [
    "CastColumns",
    "CheckFinite",
    "ConcatenateColumns",
    "DropColumns",
    "HashColumns",
    "PermuteColumns",
    "RemoveEmptyParts",
    "RenameColumns",
    "ReshapeColumns",
    "SelectColumns",
    "SplitColumn",
    "SqueezeColumns",
    "UnsqueezeColumns",
]

__getattr__, __dir__ = lazy_exports(__name__)
