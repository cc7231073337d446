"""Tables of steps: Arrow columns as arrays, and arrays as Arrow columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError, nearest
from epibatch.core.files import open_file
from epibatch.core.imports import import_extra

from ..episodes.store import Leaf
from .foreign import check_size, flat_leaves, reading

_SHAPE, _RAY_SHAPE = b"shape", b"ARROW:extension:metadata"


def arrow(module: str = "pyarrow") -> Any:
    """Load pyarrow, or a module of it.

    Raises:
        MissingExtraError: it is not installed.
    """
    return import_extra(module, "parquet", "recorded data in Parquet files")


def read_tables(files: Sequence[Path], max_bytes: int | None) -> Any:
    """Read Parquet files into one table, text and bytes as dictionaries.

    Args:
        files: The files, which have the same columns.
        max_bytes: See `check_size`.

    Raises:
        DataError: a file is damaged, would take too much memory, or has other columns than the first one.
        MissingExtraError: pyarrow is not installed.
    """
    pa, parquet = arrow(), arrow("pyarrow.parquet")
    tables, size = [], 0
    for path in files:
        with reading(path, "a Parquet file"), open_file(path) as file:
            about = parquet.read_metadata(file)
            groups = [about.row_group(i) for i in range(about.num_row_groups)]
            columns = [group.column(i) for group in groups for i in range(group.num_columns)]
            size += sum(max(column.num_values * 8, column.total_uncompressed_size) for column in columns)
            check_size(path, size, files, max_bytes)
            file.seek(0)
            often = [field.name for field in parquet.read_schema(file) if is_text(field.type) or is_bytes(field.type)]
            file.seek(0)
            tables.append(parquet.read_table(file, read_dictionary=often))  # values that repeat take memory once
    with reading(files[-1], f"a file with the columns of {files[0]}"):
        first = tables[0].schema
        kinds = [(field.name, field.type) for field in first]
        for path, table in zip(files, tables):
            if [(field.name, field.type) for field in table.schema] != kinds:
                do = "read the files one by one, or convert them to the same columns"
                raise DataError(str(path), expected=f"the columns of {files[0]}", found=table.schema.names, do=do)
        return pa.concat_tables([table.cast(first) for table in tables]).unify_dictionaries().combine_chunks()


def is_text(kind: Any) -> bool:
    """True for the types of text, and of dictionaries of text."""
    return _value_type(kind) in ("string", "large_string", "string_view")


def is_bytes(kind: Any) -> bool:
    """True for the types of bytes, and of dictionaries of bytes."""
    return _value_type(kind) in ("binary", "large_binary", "binary_view")


def _value_type(kind: Any) -> str:
    return str(kind.value_type if hasattr(kind, "index_type") else kind)


def renamed(table: Any, names: Mapping[str, str | None]) -> Any:
    """Return a table with other names of columns, without those of the name None.

    Raises:
        DataError: a name that is no column.
    """
    if unknown := [name for name in names if name not in table.schema.names]:
        found = repr(unknown[0])
        do = nearest(unknown[0], table.schema.names)
        raise DataError("names", expected="names of columns", found=found, do=do)
    targets = {name: names.get(name, name) for name in table.schema.names}
    kept = {name: target for name, target in targets.items() if target is not None}
    about = table.schema.metadata  # which renaming would lose
    return table.select(list(kept)).rename_columns(list(kept.values())).replace_schema_metadata(about)


def step_columns(table: Any, rows: Any = None) -> dict[str, Any]:
    """Return the columns of a table as arrays, structs as dicts of them. Columns without a value are left out.

    Args:
        table: The table.
        rows: Which of its rows; None: all.

    Raises:
        DataError: a value is missing, or rows have several shapes, or a type that is no number or text.
    """
    columns: dict[str, Any] = {}
    for field in table.schema:
        column = table.column(field.name)
        column = column if rows is None else column.filter(rows)
        if len(column) and column.null_count == len(column):
            continue
        whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        shape, leaf = _shape_of(field), _column(field.name, whole)
        columns[field.name] = leaf if shape is None else leaf.reshape(len(leaf), *shape)
    return columns


def _shape_of(field: Any) -> tuple[int, ...] | None:
    about = field.metadata or {}
    text = about.get(_SHAPE, about.get(_RAY_SHAPE))
    given = getattr(field.type, "shape", None) if text is None else json.loads(text)
    return given if given is None else tuple(int(size) for size in given)


def _column(name: str, column: Any) -> Any:
    """Return an Arrow array as an array, or a dict of arrays."""
    if hasattr(column, "storage"):  # of an extension of Arrow
        return _column(name, column.storage)
    if hasattr(column, "field") and hasattr(column.type, "fields"):  # a struct
        _check_values(name, column)
        parts = [(field.name, column.field(i)) for i, field in enumerate(column.type.fields)]
        return {part: _column(f"{name}.{part}", rows) for part, rows in parts}
    return _leaf(name, column)


def _leaf(name: str, column: Any) -> Leaf:
    _check_values(name, column)
    kind, leaf = str(column.type), None
    if hasattr(column, "dictionary"):
        return np.asarray(_leaf(name, column.dictionary)[column.indices.to_numpy(zero_copy_only=False)])
    if hasattr(column.type, "list_size"):
        inner = _leaf(name, column.flatten())
        return inner.reshape(len(column), column.type.list_size, *inner.shape[1:])
    if hasattr(column, "offsets"):
        widths = np.diff(column.offsets.to_numpy())
        if len(widths) and (widths != widths[0]).any():
            row = int((widths != widths[0]).argmax())
            found, do = f"{widths[row]} in row {row}", "pad the rows to one length, or leave the column out"
            raise DataError(f"column {name!r}", expected=f"{widths[0]} values in each row", found=found, do=do)
        inner = _leaf(name, column.flatten())
        return inner.reshape(len(column), int(widths[0]) if len(widths) else 0, *inner.shape[1:])
    if is_text(kind) or kind in ("bool", "float", "double", "halffloat") or kind.lstrip("u").startswith("int"):
        leaf = column.to_numpy(zero_copy_only=False)
    if leaf is None:
        do = f"convert it, or leave it out: names={{{name!r}: None}}"
        raise DataError(f"column {name!r}", expected="numbers, or lists of numbers", found=kind, do=do)
    return np.asarray(leaf)


def _check_values(name: str, column: Any) -> None:
    if column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        do = f"fill the gaps, or leave it out: names={{{name!r}: None}}"
        raise DataError(f"column {name!r}, row {row}", expected="a value in each row", found="none (null)", do=do)


def table_of(columns: Mapping[str, Any], about: Mapping[str, str]) -> Any:
    """Return columns as a table: rows of several axes as lists of a fixed length, with the shape in the metadata.

    Args:
        columns: The columns, a nested one becomes several with dots in their names; rows of numbers or text.
        about: The metadata of the schema.

    Raises:
        DataError: a type that Parquet does not have, or rows without a number.
    """
    pa = arrow()
    arrays, fields = [], []
    for name, leaf in chain.from_iterable(flat_leaves(*column) for column in columns.items()):
        shape = leaf.shape[1:]
        size = math.prod(shape)
        if (
            (leaf.dtype.kind not in "biuf" and name != Columns.EPS_ID)
            or (leaf.dtype.kind == "f" and leaf.dtype.itemsize > 8)
            or not size
        ):
            do = "convert it to numbers of at most 64 bits, or leave it out"
            raise DataError(f"column {name!r}", expected="real numbers", found=f"{leaf.dtype} {shape}", do=do)
        flat = pa.array(leaf.astype(leaf.dtype.newbyteorder("="), copy=False).reshape(-1))
        arrays.append(pa.FixedSizeListArray.from_arrays(flat, size) if shape else flat)
        fields.append(pa.field(name, arrays[-1].type, metadata={_SHAPE: json.dumps(shape)} if shape else None))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=dict(about)))


def write_tables(tables: Iterable[Any], file: Path) -> None:
    """Write tables of the same columns to a Parquet file, each as a row group."""
    parquet, writer = arrow("pyarrow.parquet"), None
    try:
        for table in tables:
            if writer is None:
                writer = parquet.ParquetWriter(file, table.schema, compression="zstd")
            elif [(f.name, f.type) for f in table.schema] != [(f.name, f.type) for f in writer.schema]:
                do = "convert the episodes to the same columns"
                expected, found = "columns of the same names and types", f"\n{table.schema}\nafter\n{writer.schema}"
                raise DataError(str(file.name), expected=expected, found=found, do=do)
            writer.write_table(table, row_group_size=table.num_rows)
    finally:
        if writer is not None:
            writer.close()
