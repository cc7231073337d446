"""Minibatches: batches cut into rows or whole sequences, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import PackedSequence

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.structs import Form, flatten, map_struct, unflatten

from .settings import LearnerSettings


def _minibatch_sizes(
    ends: npt.NDArray[np.int64], size: int | None, remainder: str, count: int | None = None
) -> list[int]:
    """Divide rows, in their order, into minibatches of about `size` timesteps.

    A row is never divided. A minibatch ends with the row that makes it nearest to `size`, and has at least one row.
    With one timestep per row it has exactly `size` rows.

    Args:
        ends: int64 [R], the timesteps up to the end of each row; R >= 1.
        size: Timesteps per minibatch, None for one minibatch of all rows.
        remainder: Handling of the rows at the end that do not reach `size`: "keep" yields them, "drop" leaves
            them out unless they are the only ones, "spread" makes `ends[-1] // size` minibatches as equal as rows
            allow.
        count: Number of minibatches, as equal as rows allow; some are empty if there are fewer rows. None: as `size`
            and `remainder` say.

    Returns:
        Rows per minibatch; their sum is R, or less with "drop".

    Examples:
        >>> _minibatch_sizes(np.cumsum([4, 4, 1, 4, 2, 4]), size=8, remainder="keep")
        [2, 3, 1]
    """
    rows, total = len(ends), int(ends[-1])
    if count is None and (size is None or total <= size):
        return [rows]
    size = size or total
    left = min(rows, count or (total // size if remainder == "spread" else 0))
    sizes: list[int] = []
    start = done = 0
    while start < rows:
        goal = done + ((total - done) / left if left else size)
        if left == 1:
            stop = rows
        elif goal > total:  # the rows left are too few
            if remainder == "drop" and sizes:
                break
            stop = rows
        else:
            stop = _nearest(ends, goal, first=start + 1, last=rows - max(0, left - 1))
        sizes.append(stop - start)
        start, done, left = stop, int(ends[stop - 1]), left - 1 if left else 0
    return sizes if count is None else _with_empty(sizes, count)


def _with_empty(sizes: list[int], count: int) -> list[int]:
    """Return sizes with zeros between them, so that they are `count`."""
    result = [0] * count
    for i, size in enumerate(sizes):
        result[i * count // len(sizes)] = size
    return result


def _nearest(ends: npt.NDArray[np.int64], goal: float, *, first: int, last: int) -> int:
    """Return the number of rows, from `first` to `last`, with the timesteps nearest to `goal`; of two, the larger."""
    reached = int(np.searchsorted(ends, goal)) + 1
    if reached > first and goal - ends[reached - 2] < ends[reached - 1] - goal:
        reached -= 1
    return min(max(reached, first), last)


_HOST = torch.device("cpu")

# Up to so many bytes, an epoch is one shuffled copy that is sliced, because the calls of a gather per minibatch take
# longer than moving the bytes. Larger batches are gathered, which is no slower and needs memory for one minibatch.
_COPY_BYTES = 2**20


class Minibatches:
    """The minibatches of one module's batch, over `epochs` passes.

    Rows stay on their device. The order is drawn there if the generator is on that device or None, and minibatches copy
    nothing to the host. `shuffle="once"` needs memory for one more copy of the batch, `shuffle="epoch"` for one
    minibatch, or for a copy of a batch of at most 1 MiB.

    A batch with `seq_lens` is recurrent: its rows are sequences, which are selected whole. `size` counts the timesteps
    that carry loss. Padding and bootstrap steps are included, but do not count. A minibatch of sequences ends with the
    sequence that makes it nearest to `size`, so it is off by no more than half of that sequence. Rows (sequences) with
    a `loss_mask` of False everywhere carry no loss. They are left out once, before the rows are shuffled; the
    column stays.
    Lists and arrays with one item per row (infos, say) are selected like tensors; a list of another
    length in a recurrent batch cannot be aligned with sequences and is left out.

    Args:
        batch: Column -> tensor [B, ...] (or a struct of them), as a learner pipeline delivers it for one module.
        size: Timesteps per minibatch, None for the whole batch.
        num_minibatches: Number of minibatches instead of `size`, which is then `rows // num_minibatches`. With
            `remainder="drop"` there are exactly so many, of that size; with "keep" more for the rows that are left;
            with "spread" so many, as equal as possible. Sequences of different lengths are always spread.
        epochs: Passes through the batch.
        shuffle: "once" shuffles the rows once, "epoch" in every epoch, None never.
        generator: Source of the random order; torch's global one if None.
        remainder: Handling of rows at the end that are too few for a minibatch: "keep" yields them as a short
            one, "drop" leaves them out (unless there is no other), "spread" makes `timesteps // size` minibatches as
            equal as whole rows allow.
        time_major: True: columns of a batch with `seq_lens` are [T, n, ...] (views), not [n, T, ...], but for
            `state_in` and `seq_lens`.

    Raises:
        BatchLayoutError: the batch has no rows, no row with loss, or fewer rows than `num_minibatches`.
        ColumnError: a column's rows differ in number from the others'; `seq_lens` holds something other than lengths of
            sequences, or `loss_mask` something other than booleans, ones and zeros.
        ConfigError: size, num_minibatches, epochs, shuffle or remainder is none of the above, or both size and
            num_minibatches are given.

    Examples:
        >>> minibatches = Minibatches({"obs": torch.arange(5)}, size=2, shuffle=None)
        >>> [minibatch["obs"].tolist() for minibatch in minibatches]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        batch: Mapping[str, Any],
        *,
        size: int | None = None,
        num_minibatches: int | None = None,
        epochs: int = 1,
        shuffle: str | None = "once",
        generator: torch.Generator | None = None,
        remainder: str = "keep",
        time_major: bool = False,
    ) -> None:
        LearnerSettings.check(minibatch_size=size, num_epochs=epochs, shuffle=shuffle, remainder=remainder)
        _check_number(num_minibatches, size)
        self._size = size
        self._epochs = epochs
        self._shuffle = shuffle
        self._generator = generator
        self._remainder = remainder
        self._time_major = time_major and Columns.SEQ_LENS in batch
        self._leaves, self._form, rows = _aligned_columns(batch)
        _check_mask(batch)
        _check_seq_lens(batch)
        self._kept = _rows_with_loss(batch, rows)
        self._num_rows = rows if self._kept is None else len(self._kept)
        self._steps = _steps_per_row(batch)
        self._device = next((leaf.device for leaf in self._leaves if isinstance(leaf, torch.Tensor)), _HOST)
        self._count: int | None = None
        self._most: int | None = None
        if num_minibatches is not None:
            self._set_number(num_minibatches)

    def _set_number(self, num_minibatches: int) -> None:
        """Turn a number of minibatches into their size, or into their number if they cannot have the same size."""
        if self._num_rows < num_minibatches:
            raise _too_few_error(self._num_rows, num_minibatches)
        steps = np.ones(1, np.int64) if self._steps is None else self._steps
        if self._kept is not None and self._steps is not None:
            steps = steps[self._kept.cpu().numpy()]
        if self._remainder == "spread" or steps.min() < steps.max():
            self._count = num_minibatches
        else:
            self._size = self._num_rows // num_minibatches * int(steps[0])
            self._most = num_minibatches if self._remainder == "drop" else None

    @property
    def num_rows(self) -> int:
        """Rows (sequences, if recurrent) that one epoch draws from."""
        return self._num_rows

    @property
    def num_per_epoch(self) -> int:
        """Minibatches of an epoch if rows are spread over them evenly."""
        if self._count or self._most:
            return int(self._count or self._most or 0)
        steps = self._num_rows if self._steps is None else int(self._steps.sum())
        if self._size is None or steps <= self._size:
            return 1
        return min(self._num_rows, steps // self._size if self._remainder != "keep" else -(-steps // self._size))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for epoch in self.by_epoch():
            yield from epoch

    def by_epoch(self, num_per_epoch: int | None = None) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield the minibatches of each epoch as an iterator; exhaust it before taking the next one.

        Args:
            num_per_epoch: Minibatches of an epoch, over which rows are spread evenly, as several learners that update
                together need; with fewer rows some are empty. None: as `size` and `remainder` say.
        """
        if self._shuffle == "epoch":
            for _ in range(self._epochs):
                yield self._one_epoch(self._order(), num_per_epoch)
            return
        order = self._order() if self._shuffle == "once" else self._kept
        leaves = self._leaves if order is None else self._selected(order)
        sizes = self._sizes(order, num_per_epoch)
        for _ in range(self._epochs):
            yield self._slices(leaves, sizes)

    def as_tuple(self, order: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the minibatches as tuples.

        Args:
            order: Names of columns; a dotted name (`"obs.ref"`, `"obs.ref.mask"`) is a part of one. A column or part
                that is not there is None.

        Examples:
            >>> batch = {"obs": {"policy": torch.arange(2)}, "actions": torch.arange(2)}
            >>> next(Minibatches(batch, shuffle=None).as_tuple(["actions", "obs.policy", "obs.rnd"]))
            (tensor([0, 1]), tensor([0, 1]), None)
        """
        return map(partial(_parts, names=tuple(order)), self)

    def _order(self) -> torch.Tensor:
        """Draw an order of rows, on the columns' device if the generator can."""
        device = self._device if self._generator is None else self._generator.device
        order = torch.randperm(self._num_rows, generator=self._generator, device=device)
        return order if self._kept is None else self._kept[order.to(self._kept.device)]

    def _sizes(self, order: torch.Tensor | None, count: int | None) -> list[int]:
        """Return the number of rows of each minibatch for this order of rows."""
        if self._steps is None:
            ends = np.arange(1, self._num_rows + 1)
        else:
            ends = np.cumsum(self._steps if order is None else self._steps[order.cpu().numpy()])
        sizes = _minibatch_sizes(ends, self._size, self._remainder, count or self._count)
        return sizes if count else sizes[: self._most]

    def _one_epoch(self, order: torch.Tensor, num_per_epoch: int | None) -> Iterator[dict[str, Any]]:
        sizes = self._sizes(order, num_per_epoch)
        if sum(getattr(leaf, "nbytes", 0) for leaf in self._leaves) <= _COPY_BYTES:
            yield from self._slices(self._selected(order), sizes)
            return
        orders = self._by_device(order)
        start = 0
        for size in sizes:
            rows = {device: own[start : start + size] for device, own in orders.items()}
            start += size
            yield self._build([select_rows(leaf, rows[_device_of(leaf)]) for leaf in self._leaves])

    def _by_device(self, order: torch.Tensor) -> dict[torch.device, torch.Tensor]:
        """Return an order on every device that has columns: a copy per epoch and other device."""
        return {device: order.to(device) for device in set(map(_device_of, self._leaves))}

    def _selected(self, order: torch.Tensor) -> list[Any]:
        orders = self._by_device(order)
        return [select_rows(leaf, orders[_device_of(leaf)]) for leaf in self._leaves]

    def _slices(self, leaves: list[Any], sizes: list[int]) -> Iterator[dict[str, Any]]:
        for parts in zip(*(_split(leaf, sizes) for leaf in leaves)):
            yield self._build(list(parts))

    def _build(self, leaves: list[Any]) -> dict[str, Any]:
        minibatch: dict[str, Any] = unflatten(self._form, leaves)
        if not self._time_major:
            return minibatch
        kept = (Columns.STATE_IN, Columns.SEQ_LENS)
        return {
            name: column if name in kept else map_struct(lambda leaf: leaf.transpose(0, 1), column)
            for name, column in minibatch.items()
        }


def has_loss(batch: Mapping[str, Any]) -> bool:
    """True if a batch has a row with loss, according to its `loss_mask` if it has one.

    Examples:
        >>> has_loss({"obs": torch.zeros(2, 4), "loss_mask": torch.tensor([False, False])})
        False
    """
    _check_mask(batch)
    mask = batch.get(Columns.LOSS_MASK)
    if mask is not None:
        return bool(torch.as_tensor(mask).any())
    return any(map(_has_rows, flatten(dict(batch))[0]))


def row_steps(batch: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Return the timesteps of each row of a batch: of sequences those with loss, of other rows 1.

    Raises:
        BatchLayoutError: the batch has no rows.
        ColumnError: a column does not fit the others.
    """
    steps = _steps_per_row(batch)
    return np.ones(_aligned_columns(batch)[2], np.int64) if steps is None else steps


def rows_of(batch: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return some rows of a batch, copied to the host.

    Args:
        batch: Column -> tensor [B, ...], or a struct of them.
        rows: int64 [n], their numbers.
    """
    leaves, form, _ = _aligned_columns(batch)
    order = torch.from_numpy(rows)
    chosen = [select_rows(leaf, order.to(_device_of(leaf))) for leaf in leaves]
    columns: dict[str, Any] = unflatten(form, [x.cpu() if isinstance(x, torch.Tensor) else x for x in chosen])
    return columns


def _aligned_columns(batch: Mapping[str, Any]) -> tuple[list[Any], Form, int]:
    """Return the leaves of all columns that can be selected by row, their form, and the number of rows."""
    recurrent = Columns.SEQ_LENS in batch
    _refuse_ragged(batch)
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
    if rows < 0 and lists:
        raise _rows_error(
            ", ".join(lists),
            "some column of tensors or arrays beside lists, whose rows they go with",
            "lists alone",
            "hand over what a learner pipeline gives for one module, such as {'obs': tensor, ...}",
        )
    for name, column in lists.items():
        if len(column) == rows:
            columns[name] = column
        elif not recurrent:
            raise _rows_error(name, f"{rows} items, one per row of column {owner!r}", f"a list of {len(column)}")
    if rows < 1:
        raise _empty_error("a batch without rows")
    leaves, form = flatten(columns)
    return leaves, form, rows


def _refuse_ragged(batch: Mapping[str, Any]) -> None:
    """Raise if sequences are no longer rows of equal length."""
    packed = [name for name, column in batch.items() if isinstance(column, PackedSequence)]
    if packed or Columns.SEQ_OFFSETS in batch:
        found = f"a PackedSequence as column {packed[0]!r}" if packed else "rows of sequences one after the other"
        piece = "PackSequences" if packed else "JaggedSequences"
        raise BatchLayoutError(
            "minibatches",
            expected="columns [sequences, steps, ...], of which sequences can be drawn",
            found=found,
            do=f"take {piece} out of the learner pipeline, or put it after the minibatches in a loop of your own",
        )


def _has_rows(leaf: Any) -> bool:
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return leaf.ndim == 0 or len(leaf) > 0
    return not isinstance(leaf, list) or len(leaf) > 0


def _num_rows(leaf: Any, name: str) -> int:
    if isinstance(leaf, (torch.Tensor, np.ndarray, list)) and (isinstance(leaf, list) or leaf.ndim > 0):
        return len(leaf)
    raise _rows_error(name, "a tensor, array or list with one entry per row", f"{type(leaf).__name__}")


def _rows_with_loss(batch: Mapping[str, Any], rows: int) -> torch.Tensor | None:
    """Return the rows on which the mask is True somewhere, or None if these are all rows."""
    mask = batch.get(Columns.LOSS_MASK)
    if mask is None:
        return None
    valid = torch.as_tensor(mask).to(torch.bool)
    if valid.ndim > 1:
        valid = valid.flatten(1).any(1)
    kept = torch.nonzero(valid).flatten()
    if len(kept) == rows:
        return None
    if len(kept) == 0:
        raise _no_loss_error(batch, rows)
    return kept


def _steps_per_row(batch: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the timesteps with loss of every sequence; None if rows are timesteps."""
    if Columns.SEQ_LENS not in batch:
        return None
    mask = batch.get(Columns.LOSS_MASK)
    if mask is None:
        return np.asarray(torch.as_tensor(batch[Columns.SEQ_LENS]).cpu(), np.int64)
    return np.asarray(torch.as_tensor(mask).reshape(len(mask), -1).sum(1).cpu(), np.int64)


def _check_mask(batch: Mapping[str, Any]) -> None:
    """Raise if a mask has values other than True and False; NaN would count as True."""
    mask = batch.get(Columns.LOSS_MASK)
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        return
    if isinstance(mask, (torch.Tensor, np.ndarray)):
        array = np.asarray(mask.cpu()) if isinstance(mask, torch.Tensor) else mask
        if array.dtype == np.bool_:
            return
        odd = array[(array != 0) & (array != 1)]
        if not odd.size:
            return
        found = f"{odd.flat[0]!r} of {array.dtype}"
    elif mask is None or isinstance(mask, list):
        if mask is None or all(isinstance(value, (bool, np.bool_)) for value in mask):
            return
        found = f"a list with {next(value for value in mask if not isinstance(value, (bool, np.bool_)))!r}"
    else:
        found = type(mask).__name__
    do = "make it boolean; a weight per row is a column of its own, which your loss multiplies with"
    raise _rows_error(Columns.LOSS_MASK, "True or False per row", found, do)


def _check_seq_lens(batch: Mapping[str, Any]) -> None:
    """Raise if a sequence of this batch cannot have the given length."""
    if Columns.SEQ_LENS not in batch:
        return
    column = batch[Columns.SEQ_LENS]
    lengths = np.asarray(column.cpu()) if isinstance(column, torch.Tensor) else np.asarray(column)
    mask = batch.get(Columns.LOSS_MASK)
    places = int(np.shape(mask)[1]) if mask is not None and np.ndim(mask) > 1 else None
    found = ""
    if lengths.ndim != 1 or lengths.dtype.kind not in "iuf":
        found = f"shape {list(lengths.shape)} of {lengths.dtype}"
    else:
        valid = (lengths == np.round(lengths)) & (lengths >= 0)
        if places is not None:
            valid &= lengths <= places
        if not valid.all():
            found = str(lengths[~valid][0])
    if found:
        most = "" if places is None else f" to {places}, the steps that columns have room for"
        do = "let the piece that cuts sequences count their steps; 0 is a sequence of a bootstrap row alone"
        raise _rows_error(Columns.SEQ_LENS, f"whole numbers from 0{most}", found, do)


def _device_of(leaf: Any) -> torch.device:
    return leaf.device if isinstance(leaf, torch.Tensor) else _HOST


def select_rows(leaf: Any, rows: torch.Tensor) -> Any:
    """Return rows of a tensor, an array or a list, as a copy; rows: int64 [n], on the device of the leaf."""
    if isinstance(leaf, torch.Tensor):
        if leaf.ndim > 1 and not leaf.is_contiguous() and leaf.transpose(0, 1).is_contiguous():
            return _take(leaf.transpose(0, 1), rows, 1).transpose(0, 1)
        return _take(leaf, rows, 0)
    if isinstance(leaf, np.ndarray):
        return leaf.take(rows.numpy(), axis=0)
    return [leaf[row] for row in rows.tolist()]


def _take(leaf: torch.Tensor, rows: torch.Tensor, axis: int) -> torch.Tensor:
    if leaf.device.type == "cpu" and leaf.is_contiguous() and leaf.dtype != torch.bfloat16 and not leaf.requires_grad:
        # Same rows as index_select, faster on one core; of a tensor with gaps it would copy everything first.
        return torch.from_numpy(leaf.numpy().take(rows.numpy(), axis=axis))
    return leaf.index_select(axis, rows)


def _parts(columns: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([_part(columns, name) for name in names])


def _part(columns: Any, name: str) -> Any:
    """Return a column, or a part of one by its dotted name; None if it is not there."""
    if isinstance(columns, MaskedColumn):
        columns = columns._asdict()
    if not isinstance(columns, Mapping):
        return None
    if name in columns:
        return columns[name]
    head, dot, rest = name.partition(".")
    return _part(columns.get(head), rest) if dot else None


def _split(leaf: Any, sizes: list[int]) -> list[Any]:
    covered = sum(sizes)
    if isinstance(leaf, torch.Tensor):
        return list(torch.split(leaf[:covered], sizes))
    edges = np.cumsum([0, *sizes]).tolist()
    return [leaf[start:stop] for start, stop in pairwise(edges)]


def _rows_error(name: str, expected: str, found: str, do: str = "") -> ColumnError:
    return ColumnError(
        f"column {name!r} of a train batch",
        expected=expected,
        found=found,
        do=do or "find the learner piece that writes this column and make it write one entry per row",
    )


def _check_number(num_minibatches: Any, size: int | None) -> None:
    """Raise if a number of minibatches is none, or given beside their size."""
    if num_minibatches is None or (size is None and _is_positive(num_minibatches)):
        return
    both = f" beside size {size}" if size is not None else ""
    raise ConfigError(
        "minibatches",
        expected="num_minibatches, a whole number from 1, or a size, not both",
        found=f"num_minibatches {num_minibatches!r}{both}",
        do="give one of them",
    )


def _is_positive(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and bool(number >= 1)


def _too_few_error(rows: int, num_minibatches: int) -> BatchLayoutError:
    return BatchLayoutError(
        "minibatches",
        expected=f"at least {num_minibatches} rows or sequences, for num_minibatches={num_minibatches}",
        found=f"{rows}",
        do="collect more steps, or make fewer minibatches",
    )


def _no_loss_error(batch: Mapping[str, Any], rows: int) -> BatchLayoutError:
    """Return the error about a batch without rows that carry loss; for sequences it names their lengths."""
    if Columns.SEQ_LENS not in batch:
        return _empty_error(f"{rows} rows, all with a False loss_mask")
    longest = int(torch.as_tensor(batch[Columns.SEQ_LENS]).max())
    places = int(np.shape(batch[Columns.LOSS_MASK])[-1])
    found = f"{rows} sequences of at most {longest} steps in {places} places, all with a False loss_mask"
    if longest >= places:
        return _empty_error(found, "let pieces that write loss_mask leave some rows True")
    return _empty_error(
        found,
        "take sequence_end='pad' or 'overlap' in the model_config, since 'drop' learns from whole sequences only; "
        f"or a max_seq_len of at most {longest}; or longer chunks (a larger rollout_fragment_length, if they are cut "
        "and no whole episodes)",
    )


def _empty_error(found: str, do: str = "") -> BatchLayoutError:
    do = do or "hand the learner episodes with at least one step, and leave modules without data out of the batch"
    return BatchLayoutError("minibatches", expected="at least one row to learn from", found=found, do=do)
