"""Rows of a minibatch with and without loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError


def as_mask(mask: Any, loss: str) -> torch.Tensor | None:
    """Return a column of booleans as a tensor; None for None.

    Args:
        mask: `loss_mask` of a minibatch.
        loss: Name of the loss, for messages.

    Raises:
        ColumnError: it is something else.
    """
    if mask is None or (isinstance(mask, torch.Tensor) and mask.dtype is torch.bool):
        return mask
    if isinstance(mask, (np.ndarray, torch.Tensor)):
        return torch.as_tensor(mask).bool()
    raise ColumnError(
        f"{loss}: column {Columns.LOSS_MASK!r} of the train batch",
        expected="a tensor of booleans, one per row",
        found=type(mask).__name__,
        do="let the piece that makes the column give it this shape",
    )


def fill_masked(column: Any, mask: torch.Tensor) -> Any:
    """Return a tensor or a struct of tensors with zeros in the masked rows."""
    if isinstance(column, dict):
        return {key: fill_masked(leaf, mask) for key, leaf in column.items()}
    if isinstance(column, (tuple, list)):
        return type(column)(fill_masked(leaf, mask) for leaf in column)
    shaped = mask.reshape(mask.shape + (1,) * (column.ndim - mask.ndim))
    return torch.where(shaped, column, torch.zeros((), dtype=column.dtype, device=column.device))


def masked_mean(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the mean over the rows with loss; 0 without any, since a minibatch may have none."""
    if mask is None:
        return x.mean()
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum() / mask.sum().clamp(min=1)
