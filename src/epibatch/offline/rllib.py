"""Parquet files that RLlib's runners record: a row for each step, or whole episodes.

By default RLlib packs the columns `obs` and `new_obs`: a pickle for each row, which can run any code when it is read.
Record with `output_compress_columns=[]` to have numbers.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError
from epibatch.core.imports import import_extra

from ..episodes import SingleAgentEpisode, columns_to_episodes, episodes_to_columns
from ..episodes.store import Leaf
from .foreign import array_columns, batches_of, files_of, new_target, reading, with_steps
from .tables import arrow, is_bytes, is_text, read_tables, step_columns, table_of, write_tables

_KIND, _EXTRA, _ITEM = "recorded data of RLlib", "rllib-data", "item"
_RUN = re.compile(r"(^|/)run-[^/]*-\d+(/|$)")
_IDS = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)


def finds(path: str | Path) -> bool:
    """True for a folder with Parquet files in folders that are called as RLlib does, such as `run-000001-00004`."""
    place = Path(path)
    file = next(place.rglob("*.parquet"), place) if place.is_dir() else place
    return file.suffix == ".parquet" and bool(_RUN.search(file.parent.as_posix()))


def read(
    path: str | Path,
    *,
    names: Mapping[str, str | None] | None = None,
    allow_pickle: bool = False,
    max_bytes: int | None = None,
) -> list[SingleAgentEpisode]:
    """Read what RLlib's runners recorded of one agent: steps, which are joined into episodes, or whole episodes.

    Args:
        path: A file, or a folder with files of the same columns, such as the `output` of the run.
        names: Names of columns of steps, see `columns_to_episodes`.
        allow_pickle: True unpacks packed columns, which runs the code that is in them.
        max_bytes: See `epibatch.offline.parquet.read`.

    Raises:
        DataError: No file; a file is damaged; packed columns or arrays of objects, which are pickles.
        ColumnError: see `columns_to_episodes`.
        MissingExtraError: pyarrow, or msgpack for episodes, or lz4 for packed columns, is not installed.
    """
    table = read_tables(files_of(path, (".parquet",), "Parquet files"), max_bytes)
    with reading(path, _KIND):
        if table.schema.names == [_ITEM] and is_bytes(table.schema.field(_ITEM).type):
            return [_episode(row, item.as_py()) for row, item in enumerate(table.column(_ITEM))]
        packed = [f.name for f in table.schema if (is_text(f.type) or is_bytes(f.type)) and f.name not in _IDS]
        if packed and not allow_pickle:
            raise DataError(
                f"column {packed[0]!r}",
                expected="numbers",
                found="packed values: pickles, which can run any code",
                do="record with output_compress_columns=[], or pass allow_pickle=True if you trust the files",
            )
        columns = step_columns(table.drop_columns(packed))
        columns.update({name: _unpacked(table.column(name).to_pylist()) for name in packed})
        return columns_to_episodes(columns, names)


def _unpacked(values: list[Any]) -> Leaf:
    lz4 = import_extra("lz4.frame", _EXTRA, "packed columns of RLlib")
    return np.stack([pickle.loads(lz4.decompress(base64.b64decode(value))) for value in values])


def _episode(row: int, item: bytes) -> SingleAgentEpisode:
    """Return an episode of RLlib from its state."""
    msgpack = import_extra("msgpack", _EXTRA, "recorded episodes of RLlib")
    state = msgpack.unpackb(item, object_hook=_array, strict_map_key=False)
    if not isinstance(state, dict) or Columns.REWARDS not in state:
        raise DataError(f"row {row}", expected="the state of an episode of RLlib", found=type(state).__name__, do=_DO)
    outputs = state["extra_model_outputs"] or {}
    return SingleAgentEpisode(
        state["id_"],
        observations=state["observations"]["data"],
        infos=[info or {} for info in state["infos"]["data"]],
        actions=state["actions"]["data"],
        rewards=state["rewards"]["data"],
        terminated=state["is_terminated"],
        truncated=state["is_truncated"],
        extra_model_outputs={name: buffer["data"] for name, buffer in outputs.items()},
        t_started=state["t_started"],
        len_lookback_buffer=state["rewards"]["lookback"],
        agent_id=state["agent_id"],
        module_id=state["module_id"],
        multi_agent_episode_id=state["multi_agent_episode_id"],
    )


_DO = "record with RLlib 2.60, whose data this reads"


def _array(item: Any) -> Any:
    """Return the array or number that a dict of msgpack describes; another dict as it is."""
    if b"nd" not in item:
        return item
    kind = item[b"type"]
    if item.get(b"kind") or not isinstance(kind, str) or np.dtype(kind).kind not in "biufc":
        found, do = f"an array of {kind}", "record numbers only"
        raise DataError("an episode of RLlib", expected="arrays of numbers (others are pickles)", found=found, do=do)
    values = np.frombuffer(item[b"data"], np.dtype(kind))
    return values.reshape(item[b"shape"]) if item[b"nd"] else values[0]


def write(episodes: Iterable[Any], path: str | Path) -> None:
    """Write a row for each step, as RLlib's `input_` takes with `input_compress_columns=[]`.

    Args:
        episodes: Episodes of one agent.
        path: The new folder.

    Raises:
        DataError: The path is taken; no episode has a step, or one has several agents; nested columns, which RLlib
            does not read.
        MissingExtraError: pyarrow is not installed.
        StorageError: the disk is full, say.
    """
    with new_target(path) as temporary:
        (temporary / "run-000000-00001").mkdir(parents=True)
        file = temporary / "run-000000-00001" / "000000.parquet"
        write_tables((_table(episodes_to_columns(batch)) for batch in batches_of(with_steps(episodes, _KIND))), file)


def _table(columns: dict[str, Any]) -> Any:
    """Return columns as a table in which Ray's tensors are columns of several axes."""
    pa = arrow()
    leaves = {name: column for name, column in columns.items() if name not in (Columns.INFOS, Columns.T)}
    table = table_of(array_columns(leaves, "RLlib"), {})
    fields = []
    for field in table.schema:
        if leaves[field.name].ndim > 1:
            shape = json.dumps(leaves[field.name].shape[1:])
            about = {"ARROW:extension:name": "ray.data.arrow_tensor_v2", "ARROW:extension:metadata": shape}
            field = pa.field(field.name, pa.large_list(field.type.value_type), metadata=about)
        fields.append(field)
    return table.cast(pa.schema(fields))
