# `make generated` writes the pieces that this package defines; other names are kept.

from .batch_axes import BatchAxes as BatchAxes
from .cast_columns import CastColumns as CastColumns
from .check_finite import CheckFinite as CheckFinite
from .hash_columns import HashColumns as HashColumns
from .joined_columns import ConcatenateColumns as ConcatenateColumns, SplitColumn as SplitColumn
from .named_columns import DropColumns as DropColumns, RenameColumns as RenameColumns, SelectColumns as SelectColumns
from .remove_empty_parts import RemoveEmptyParts as RemoveEmptyParts
from .shapes import (
    PermuteColumns as PermuteColumns,
    ReshapeColumns as ReshapeColumns,
    SqueezeColumns as SqueezeColumns,
    UnsqueezeColumns as UnsqueezeColumns,
)
