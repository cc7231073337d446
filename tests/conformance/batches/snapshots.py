"""What a batch holds at one stage, taken apart so that two libraries' batches can be laid beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from oracle.compare import Mismatch, mismatches

Flat = dict[tuple[Any, ...], Any]
PLAIN = {bool, int, float, str, np.bool_, np.int64, np.int32, np.float64, np.float32}


def snapshot(batch: Any, places: Mapping[Any, int] | None = None) -> Flat:
    """Copy a batch into `{path: leaf}`.

    A path has dict keys, `[i]` for places in lists, `(i)` for those in tuples, and ends with `batched` for arrays
    that are tagged as rows. Keys of chunks are replaced by the chunk's position, because the libraries name
    them differently.

    Args:
        batch: the batch.
        places: position of each chunk of the call, by its key.
    """
    out: Flat = {}
    places = places or {}
    for name, column in batch.items():
        if isinstance(column, (dict, Mapping)) and any(isinstance(key, tuple) for key in column):
            for key, items in column.items():
                _take(items, (name, f"chunk {places[key]}" if key in places else key), out)
        else:
            _take(column, (name,), out)
    return out


def _take(value: Any, path: tuple[Any, ...], out: Flat) -> None:
    kind = type(value)
    if kind in PLAIN:
        out[path] = value
    elif isinstance(value, np.ndarray):
        out[(*path, "batched") if kind.__name__ == "BatchedNdArray" else path] = np.array(value)
    elif isinstance(value, torch.Tensor):
        out[path] = value.clone()
    elif isinstance(value, (dict, Mapping)) and value:
        for key, own in value.items():
            _take(own, (*path, key), out)
    elif kind is list and value and _numbers(value):
        out[(*path, "[each]")] = np.array(value)
    elif isinstance(value, (list, tuple)) and len(value):
        left, right = "[]" if isinstance(value, list) else "()"
        for i, own in enumerate(value):
            _take(own, (*path, f"{left}{i}{right}"), out)
    elif isinstance(value, (Mapping, list, tuple)):
        out[path] = f"empty {'dict' if isinstance(value, Mapping) else kind.__name__}"
    else:
        out[path] = value


def _numbers(values: list[Any]) -> bool:
    kinds = {own.dtype.type if type(own) is np.ndarray and not own.ndim else type(own) for own in values}
    return len(kinds) == 1 and issubclass(kinds.pop(), (bool, int, float, np.bool_, np.number))


def flat_mismatches(theirs: Flat, ours: Flat, stage: str = "") -> list[Mismatch]:
    """Every column of two snapshots that differs, in one mismatch each.

    Returns:
        Mismatches whose path is (stage, column) and whose sides are that column's part of the snapshots.
    """
    if same_flat(theirs, ours):
        return []
    found = []
    both = [_columns(flat) for flat in (theirs, ours)]
    for name in dict.fromkeys([*both[0], *both[1]]):
        one, other = (columns.get(name, {}) for columns in both)
        if not one or not other:
            found.append(Mismatch((stage, name), "keys", one, other))
        elif list(one) != list(other):
            found.append(Mismatch((stage, name), "layout", one, other))
        elif not same_flat(one, other):
            found.append(Mismatch((stage, name), "value", one, other))
    return found


def same_flat(one: Flat, other: Flat) -> bool:
    """Whether two parts of snapshots are equal."""
    return list(one) == list(other) and all(_same(own, other[path]) for path, own in one.items())


def column_of(flat: Flat, name: str) -> Flat:
    """One column of a snapshot, by the name that mismatches have for it."""
    return _columns(flat).get(name, {})


def rows_of(flat: Flat) -> dict[Any, list[Any]]:
    """Rows by their place in the structure, whether they are items of lists or of arrays."""
    rows: dict[Any, list[Any]] = {}
    for path, leaf in flat.items():
        inner, single = _place(path)
        if isinstance(leaf, str) and leaf.startswith("empty "):
            continue
        own = [leaf] if single or np.ndim(leaf) == 0 else list(leaf)
        if own:
            rows.setdefault(inner, []).extend(own)
    return rows


@lru_cache(maxsize=4096)
def _place(path: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """A path without the places in lists, and whether it leads to one row in a list."""
    inner = tuple(part for part in path if part != "batched" and not str(part).startswith("["))
    single = any(str(part).startswith("[") and part != "[each]" for part in path) and "batched" not in path
    return inner, single


def same_rows(one: Flat, other: Flat) -> bool:
    """Whether both hold the same rows, of the same types, whether as items of lists or as arrays."""
    left, right = rows_of(one), rows_of(other)
    return left.keys() == right.keys() and all(
        len(own) == len(right[path])
        and all(np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b) for a, b in zip(own, right[path]))
        for path, own in left.items()
    )


def _columns(flat: Flat) -> dict[str, Flat]:
    """A snapshot by column, whether under a module or not."""
    columns: dict[str, Flat] = {}
    for path, own in flat.items():
        under = 1 + (path[0] == "default_policy" and len(path) > 1)
        columns.setdefault("/".join(map(str, path[:under])), {})[path[under:]] = own
    return columns


def _same(one: Any, other: Any) -> bool:
    arrays = type(one) is np.ndarray and type(other) is np.ndarray and one.dtype.kind != "O"
    if arrays and one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes():
        return True
    return not mismatches(one, other)
