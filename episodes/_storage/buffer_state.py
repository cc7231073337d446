"""A buffer as plain data, as what is pickled, and as one that others are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from epibatch.core.errors import CheckpointError
from epibatch.core.structs import form_of, map_struct, unflatten

from .arrays import Leaf, copied, fits_exactly, owned
from .buffer_source import NOTHING

if TYPE_CHECKING:
    from ..infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["added", "buffer_from_state", "buffer_state", "from_slots", "rows_and_raw_row", "slots_of"]

B = TypeVar("B", bound="InfiniteLookbackBuffer")

_PARTS = ("data", "raw_row", "provisional", "lookback", "space")


def rows_and_raw_row(buffer: InfiniteLookbackBuffer) -> tuple[Any, list[Any]]:
    """Copies of the rows, None if there never were any, and apart from them a newest one not in their form yet."""
    raw = buffer.raw_row()
    stop = buffer.len_incl_lookback() - (raw is not NOTHING)
    leaves = [copied(leaf) for leaf in buffer.rows(-buffer.lookback, stop - buffer.lookback)]
    return unflatten(buffer.form, leaves) if stop or leaves else None, [] if raw is NOTHING else [owned(raw)]


def buffer_state(buffer: InfiniteLookbackBuffer) -> dict[str, Any]:
    """Copy a buffer's content into plain data; its space becomes a dict."""
    from epibatch.core.space_dicts import space_to_dict

    data, raw = rows_and_raw_row(buffer)
    space = None if buffer.space is None else space_to_dict(buffer.space)
    kept = {"lookback": buffer.lookback, "provisional": buffer.provisional, "finalized": True}
    return {"data": data, "raw_row": raw, **kept, "space": space}


def buffer_from_state(cls: type[B], state: Mapping[str, Any]) -> B:
    """Rebuild a buffer from `buffer_state`.

    Raises:
        CheckpointError: `state` is no buffer's.
    """
    from epibatch.core.space_dicts import space_from_dict

    missing = [name for name in _PARTS if name not in state] if isinstance(state, Mapping) else [*_PARTS]
    if missing:
        raise CheckpointError(
            f"{cls.__name__}.from_state",
            expected="the state of a buffer",
            found=f"no {', '.join(missing)}",
            do="pass what get_state of a buffer gave",
        )
    buffer = cls(state["data"], 0, None if state["space"] is None else space_from_dict(state["space"]))
    buffer.restore_newest(state["raw_row"], state["provisional"])
    buffer.lookback = state["lookback"]
    return buffer


def added(buffer: B, other: Any) -> B:
    """A new buffer: this one's rows and others behind them, or with a number added to every number in it."""
    total = buffer.len_incl_lookback()
    number = isinstance(other, (int, float, complex, np.number))
    if number and total:
        data = map_struct(lambda leaf: _plus(leaf, other), buffer.data)
        return type(buffer)(data, buffer.lookback, buffer.space)
    out: Any = buffer.copy_rows(range(total), buffer.lookback)
    if number:
        return out  # type: ignore[no-any-return]
    if isinstance(other, type(buffer)):
        out.concat(other)
    else:
        out.extend(other)
    return out  # type: ignore[no-any-return]


def _plus(leaf: Leaf, number: Any) -> Any:
    """Integers are added as 64-bit ones, so that none wraps around."""
    whole = leaf.dtype.kind in "bui" and isinstance(number, (int, np.integer))
    return leaf + (np.int64(number) if whole else number)


def slots_of(buffer: InfiniteLookbackBuffer) -> dict[str, Any]:
    """What is pickled of a buffer: its rows alone, without the room to grow."""
    total = buffer.len_incl_lookback()
    pending, leaves, newest = buffer._pending, buffer._leaves, []
    if pending is not NOTHING:
        values = None if leaves is None else buffer.leaves_of(pending)
        if leaves is None or (values is not None and all(map(fits_exactly, leaves, values))):
            leaves = buffer._with_pending(np.arange(total))
        else:
            newest = [pending]
    stop = total - len(newest)
    return {
        "form": form_of(pending) if buffer._leaves is None else buffer._form,
        "leaves": [np.ascontiguousarray(leaf[:stop]) for leaf in leaves] if leaves else None,
        "newest": newest,
        "provisional": buffer.provisional,
        "lookback": buffer.lookback,
        "t_started": buffer.t_started,
        "space": buffer.space,
    }


def from_slots(buffer: InfiniteLookbackBuffer, state: dict[str, Any]) -> None:
    """Fill a buffer that has only its space from what `slots_of` gave."""
    buffer.lookback, buffer.t_started = state["lookback"], state["t_started"]
    if state["leaves"] is not None:
        buffer._form = state["form"]
        buffer._leaves = [leaf if leaf.flags.writeable else leaf.copy() for leaf in state["leaves"]]
        buffer._stop = len(buffer._leaves[0])
        buffer._settle()
    buffer.restore_newest(state["newest"], state["provisional"])
