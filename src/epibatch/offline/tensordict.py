"""Memory-mapped folders of TensorDict, with the steps as TorchRL has them: what follows a step is in `next`.

The files are read without tensordict, as its own loader may run what a stranger pickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError
from epibatch.core.files import refuse_links
from epibatch.core.imports import import_extra
from epibatch.core.structs import map_struct

from ..episodes import SingleAgentEpisode, columns_to_episodes, episodes_to_columns
from ..episodes.flat_columns import codes_of
from ..episodes.store import Leaf
from .foreign import new_target, read_json, reading, with_steps

_KIND, _EXTRA, _ABOUT, _NEXT = "a memory-mapped folder of TensorDict", "tensordict", "meta.json", "next"
_ENDS = ("done", "terminated", "truncated")


def finds(path: str | Path) -> bool:
    """True for a folder with `meta.json` and memory-mapped arrays."""
    place = Path(path)
    return (place / _ABOUT).is_file() and next(place.rglob("*.memmap"), None) is not None


def read(path: str | Path, *, names: Mapping[str, str | None] | None = None) -> list[SingleAgentEpisode]:
    """Read a memory-mapped folder with the steps of one agent, [N] or [environments, time].

    Args:
        path: The folder.
        names: Names of entries at the top, such as {"pixels": "obs"}; see `columns_to_episodes`.

    Raises:
        DataError: No such folder; a file is damaged, missing or shorter than it should be; entries that are no plain
            arrays of numbers, such as pickles.
        CheckpointError: A link is in the folder.
        ColumnError: see `columns_to_episodes`.
    """
    place = Path(path)
    refuse_links(place)
    with reading(place, _KIND):
        tree, shape = _folder(place)
        following = tree.pop(_NEXT, None)
        if not isinstance(following, dict) or not 1 <= len(shape) <= 2:
            found = f"entries {', '.join(tree)} of batch size {list(shape)}"
            do = "save what a collector of TorchRL gave"
            raise DataError(str(place), expected=f"steps with {_NEXT!r}, of one or two axes", found=found, do=do)
        ids = tree.pop("collector", {}).get("traj_ids")
        observed = next((name for name, target in (names or {}).items() if target == Columns.OBS), "observation")
        columns = {name: part for name, part in tree.items() if name not in _ENDS}
        known = {"observation": Columns.OBS} if observed == "observation" in columns else {}
        columns[Columns.REWARDS] = following["reward"]
        columns[Columns.NEXT_OBS] = following.get(observed)
        columns.update({f"{name}s": following[name] for name in _ENDS[1:] if name in following})
        if "terminated" not in following and "done" in following:
            columns["dones"] = following["done"]
        columns = {name: _flat(part, len(shape)) for name, part in columns.items() if part is not None}
        columns[Columns.EPS_ID] = _pieces(columns, shape) if ids is None else _flat(ids, len(shape)).reshape(-1)
        return columns_to_episodes(columns, {**known, **(names or {})})


def _folder(place: Path) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the arrays of a folder, mapped, and the shape of its steps."""
    about = read_json(place / _ABOUT)
    tree: dict[str, Any] = {}
    for name, kind in about.items():
        if not isinstance(kind, dict):
            continue
        if not name.strip(".") or set(name) & set("/\\"):
            do = "rename the entry"
            raise DataError(str(place / _ABOUT), expected="names of entries of this folder", found=repr(name), do=do)
        if kind.get("type") == "TensorDict":
            tree[name], _ = _folder(place / name)
            continue
        if "dtype" not in kind:
            do = "leave it out when you save the folder"
            raise DataError(f"{place / name}", expected="an array", found=f"{kind.get('type')}", do=do)
        dtype = np.dtype(str(kind["dtype"]).removeprefix("torch.").replace("bool", "bool_"))
        shape = tuple(kind["shape"])
        if kind.get("is_nested") or dtype.kind not in "biufc" or not math.prod(shape):
            do = "save it as an array of one shape, or leave it out"
            raise DataError(f"{place / name}", expected="an array with rows", found=f"{kind}", do=do)
        tree[name] = np.memmap(place / f"{name}.memmap", dtype, "r", shape=shape)
    return tree, tuple(about["shape"])


def _flat(part: Any, axes: int) -> Any:
    """Return rows of one axis."""
    return map_struct(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[axes:]), part)


def _pieces(columns: Mapping[str, Any], shape: tuple[int, ...]) -> Leaf:
    """Number the episodes: one begins after an end, and with each environment."""
    begins = np.zeros((math.prod(shape[:-1]), shape[-1]), np.bool_)
    for name in ("terminateds", "truncateds", "dones"):
        if name in columns:
            begins[:, 1:] |= columns[name].reshape(begins.shape)[:, :-1]
    begins[:, 0] = True
    return begins.reshape(-1).cumsum() - 1


def write(episodes: Iterable[Any], path: str | Path) -> None:
    """Write the steps of episodes as a memory-mapped folder, `TensorDict.load_memmap(path)`.

    Names of episodes become numbers, in `("collector", "traj_ids")`; the step of its episode is `t`.

    Args:
        episodes: Episodes of one agent.
        path: The new folder.

    Raises:
        DataError: The path is taken; no episode has a step, or one has several agents; tuples, or numbers that torch
            does not have.
        MissingExtraError: tensordict is not installed.
        StorageError: the disk is full, say.
    """
    library = import_extra("tensordict", _EXTRA, "folders of TensorDict")
    columns = episodes_to_columns(list(with_steps(episodes, _KIND)))
    del columns[Columns.INFOS]
    ends = {name: columns.pop(f"{name}s")[:, None] for name in _ENDS[1:]}
    ends["done"] = ends["terminated"] | ends["truncated"]
    steps = {
        "observation": columns.pop(Columns.OBS),
        "action": columns.pop(Columns.ACTIONS),
        **{name: np.zeros_like(flags) for name, flags in ends.items()},
        "collector": {"traj_ids": codes_of(columns.pop(Columns.EPS_ID))[0]},
        _NEXT: {"observation": columns.pop(Columns.NEXT_OBS), "reward": columns.pop(Columns.REWARDS)[:, None], **ends},
        **columns,
    }
    with new_target(path) as temporary:
        library.TensorDict(steps, batch_size=[len(ends["done"])]).memmap(temporary)
