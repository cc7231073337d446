"""Minibatches of one module's batch: by rows, or by whole sequences when the batch is recurrent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, explain, nearest
from epibatch.core.structs import Form, flatten, unflatten

__all__ = ["REMAINDERS", "SHUFFLES", "Minibatches"]

SHUFFLES = ("epoch", "once", None)
REMAINDERS = ("keep", "drop", "spread")

# From this many minibatches per epoch on, one shuffled copy that is sliced beats a gather per minibatch.
_COPY_FROM = 9


class Minibatches:
    """An iterable over the minibatches of `epochs` passes through one batch.

    A batch with `seq_lens` is recurrent: whole sequences are selected, and `size` still counts timesteps,
    so a minibatch holds `max(1, size // T)` sequences. Rows (sequences) whose `loss_mask` is False
    everywhere carry no loss and are left out once, before anything is shuffled; the column stays.
    Lists and arrays with one item per row (infos, say) are selected like tensors; a list of another
    length in a recurrent batch cannot be aligned with sequences and is left out.

    Args:
        batch: column -> tensor [B, ...] (or a struct of them), as a learner pipeline delivers it for one module.
        size: timesteps per minibatch, None for the whole batch.
        epochs: passes through the batch.
        shuffle: "once" orders the rows anew once, "epoch" in every epoch, None never.
        generator: source of the random order; torch's global one if None.
        remainder: what becomes of a last minibatch that would be short: "keep" delivers it short, "drop" leaves
            it out (unless it is the only one), "spread" makes `rows // size` minibatches whose sizes differ by
            at most one row.

    Raises:
        BatchLayoutError: the batch has no rows, or none that `loss_mask` leaves.
        ColumnError: a column's rows differ in number from the others'.
        ConfigError: size, epochs, shuffle or remainder is none of the above.

    Example:
        >>> minibatches = Minibatches({"obs": torch.arange(5)}, size=2, shuffle=None)
        >>> [minibatch["obs"].tolist() for minibatch in minibatches]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        batch: Mapping[str, Any],
        *,
        size: int | None,
        epochs: int = 1,
        shuffle: str | None = "once",
        generator: torch.Generator | None = None,
        remainder: str = "keep",
    ) -> None:
        check_minibatch_settings(size=size, epochs=epochs, shuffle=shuffle, remainder=remainder)
        self._epochs = epochs
        self._shuffle = shuffle
        self._generator = generator
        self._leaves, self._form, rows = _aligned_columns(batch)
        self._kept = _rows_with_loss(batch.get(Columns.LOSS_MASK), rows)
        self._num_rows = rows if self._kept is None else len(self._kept)
        steps = _steps_per_row(batch)
        per_batch = self._num_rows if size is None else max(1, size // steps)
        self._sizes = _minibatch_sizes(self._num_rows, per_batch, remainder)

    @property
    def num_rows(self) -> int:
        """Rows (sequences, if recurrent) that one epoch draws from."""
        return self._num_rows

    @property
    def sizes(self) -> list[int]:
        """Rows (sequences, if recurrent) of each minibatch of one epoch."""
        return list(self._sizes)

    def __len__(self) -> int:
        return self._epochs * len(self._sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._shuffle == "epoch":
            for _ in range(self._epochs):
                yield from self._one_epoch(self._order())
            return
        order = self._order() if self._shuffle == "once" else self._kept
        leaves = self._leaves if order is None else [_select(leaf, order) for leaf in self._leaves]
        for _ in range(self._epochs):
            yield from self._slices(leaves)

    def _order(self) -> torch.Tensor:
        order = torch.randperm(self._num_rows, generator=self._generator)
        return order if self._kept is None else self._kept[order]

    def _one_epoch(self, order: torch.Tensor) -> Iterator[dict[str, Any]]:
        if len(self._sizes) >= _COPY_FROM:
            yield from self._slices([_select(leaf, order) for leaf in self._leaves])
            return
        start = 0
        for size in self._sizes:
            rows = order[start : start + size]
            start += size
            yield self._build([_select(leaf, rows) for leaf in self._leaves])

    def _slices(self, leaves: list[Any]) -> Iterator[dict[str, Any]]:
        for parts in zip(*(_split(leaf, self._sizes) for leaf in leaves)):
            yield self._build(list(parts))

    def _build(self, leaves: list[Any]) -> dict[str, Any]:
        minibatch: dict[str, Any] = unflatten(self._form, leaves)
        return minibatch


def check_minibatch_settings(*, size: int | None, epochs: int, shuffle: str | None, remainder: str) -> None:
    """Check the settings of `Minibatches` without a batch.

    Raises:
        ConfigError: one of them is out of range or unknown.
    """
    for name, count in (("minibatch_size", size), ("num_epochs", epochs)):
        if count is None and name == "minibatch_size":
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(explain(name, expected="an integer >= 1", found=repr(count), do=f"set {name} >= 1"))
    if shuffle not in SHUFFLES:
        hint = nearest(str(shuffle), [name for name in SHUFFLES if name])
        raise ConfigError(explain("shuffle", expected="'epoch', 'once' or None", found=repr(shuffle), do=hint))
    if remainder not in REMAINDERS:
        hint = nearest(str(remainder), REMAINDERS)
        raise ConfigError(explain("remainder", expected="'keep', 'drop' or 'spread'", found=repr(remainder), do=hint))


def _aligned_columns(batch: Mapping[str, Any]) -> tuple[list[Any], Form, int]:
    """The leaves of all columns that can be selected by row, their form, and the number of rows."""
    recurrent = Columns.SEQ_LENS in batch
    columns: dict[str, Any] = {}
    rows, owner = -1, ""
    lists: dict[str, Any] = {}
    for name, column in batch.items():
        if isinstance(column, list):
            lists[name] = column
            continue
        for leaf in flatten(column)[0]:
            found = _num_rows(leaf, name)
            if rows < 0:
                rows, owner = found, name
            elif found != rows:
                raise _rows_error(name, f"{rows} rows, like column {owner!r}", f"{found} rows")
        columns[name] = column
    for name, column in lists.items():
        if len(column) == rows:
            columns[name] = column
        elif not recurrent:
            raise _rows_error(name, f"{rows} items, one per row of column {owner!r}", f"a list of {len(column)}")
    if rows < 1:
        raise _empty_error("a batch without rows")
    leaves, form = flatten(columns)
    return leaves, form, rows


def _num_rows(leaf: Any, name: str) -> int:
    if isinstance(leaf, (torch.Tensor, np.ndarray, list)) and (isinstance(leaf, list) or leaf.ndim > 0):
        return len(leaf)
    raise _rows_error(name, "a tensor, array or list with one entry per row", f"{type(leaf).__name__}")


def _rows_with_loss(mask: Any, rows: int) -> torch.Tensor | None:
    """The rows on which the mask is True somewhere, or None if these are all rows."""
    if mask is None:
        return None
    valid = torch.as_tensor(mask).to("cpu", torch.bool)
    if valid.ndim > 1:
        valid = valid.flatten(1).any(1)
    if bool(valid.all()):
        return None
    kept = torch.nonzero(valid).flatten()
    if len(kept) == 0:
        raise _empty_error(f"{rows} rows, all with a False loss_mask")
    return kept


def _steps_per_row(batch: Mapping[str, Any]) -> int:
    if Columns.SEQ_LENS not in batch:
        return 1
    for name in (Columns.LOSS_MASK, Columns.REWARDS, Columns.OBS):
        column = batch.get(name)
        if column is None:
            continue
        leaf = flatten(column)[0][0]
        if getattr(leaf, "ndim", 0) >= 2:
            return max(1, int(leaf.shape[1]))
    raise BatchLayoutError(
        explain(
            "minibatches of a recurrent batch",
            expected="loss_mask, rewards or obs of shape [B, T, ...] beside seq_lens",
            found=f"columns {sorted(batch)}",
            do="keep AddTimeDimToBatchAndZeroPad in the learner pipeline",
        )
    )


def _minibatch_sizes(rows: int, size: int, remainder: str) -> list[int]:
    full, rest = divmod(rows, size)
    if full == 0:
        return [rows]
    if remainder == "spread":
        share, extra = divmod(rows, full)
        return [share + 1] * extra + [share] * (full - extra)
    sizes = [size] * full
    if rest and remainder == "keep":
        sizes.append(rest)
    return sizes


def _select(leaf: Any, rows: torch.Tensor) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.device.type == "cpu" and leaf.dtype != torch.bfloat16 and not leaf.requires_grad:
            # Same rows as index_select at half its cost on one core.
            return torch.from_numpy(leaf.numpy().take(rows.numpy(), axis=0))
        return leaf.index_select(0, rows.to(leaf.device))
    if isinstance(leaf, np.ndarray):
        return leaf.take(rows.numpy(), axis=0)
    return [leaf[row] for row in rows.tolist()]


def _split(leaf: Any, sizes: list[int]) -> list[Any]:
    covered = sum(sizes)
    if isinstance(leaf, torch.Tensor):
        return list(torch.split(leaf[:covered], sizes))
    edges = np.cumsum([0, *sizes]).tolist()
    return [leaf[start:stop] for start, stop in pairwise(edges)]


def _rows_error(name: str, expected: str, found: str) -> ColumnError:
    return ColumnError(
        explain(
            f"column {name!r} of a train batch",
            expected=expected,
            found=found,
            do="find the learner piece that writes this column and make it write one entry per row",
        )
    )


def _empty_error(found: str) -> BatchLayoutError:
    return BatchLayoutError(
        explain(
            "minibatches",
            expected="at least one row to learn from",
            found=found,
            do="hand the learner episodes with at least one step, and leave modules without data out of the batch",
        )
    )
