"""Columns of which some rows are absent."""

from __future__ import annotations

from typing import Any, NamedTuple


class MaskedColumn(NamedTuple):
    """Values of a column with a mask of the rows that have one, such as a reference motion that is absent at times.

    Structs of arrays may contain it. Batches, minibatches and conversions to and from tensors keep it, and its two
    parts stay together.

    Args:
        value: Array or tensor [rows, ...], or a struct of them; the content of rows without a value is arbitrary.
        mask: bool [rows], True where the row has a value.

    Examples:
        >>> import numpy as np
        >>> from epibatch.core.structs import map_struct
        >>> map_struct(lambda leaf: leaf[1:], MaskedColumn(np.array([7.0, 0.0]), np.array([True, False])))
        MaskedColumn(value=array([0.]), mask=array([False]))
    """

    value: Any
    mask: Any
