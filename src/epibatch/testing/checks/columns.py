"""Checks of a piece's columns against its declarations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from epibatch.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from epibatch.core.columns import Columns
from epibatch.core.structs import flatten
from epibatch.testing.comparing import difference
from epibatch.testing.contract import Fault, Finding, NotApplied, contract_check
from epibatch.testing.probes import Probe, layout_of, shown_columns
from epibatch.testing.rehearsal import Rehearsal, plain_neighbour

__all__ = ["dtypes", "layouts", "reads", "writes"]

_NOT_DECLARED = NotApplied("it declares no reads, so that pipelines trust it")


class _Enough(Exception):
    """Ends a run after the piece."""


def _ran(rehearsal: Rehearsal, without: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns before and after the piece, in the first call.

    Args:
        rehearsal: the piece.
        without: a column that is removed before it.
    """
    seen: dict[str, dict[str, Any]] = {}

    def in_front(batch: dict[str, Any]) -> Any:
        batch = {name: column for name, column in batch.items() if name != without}
        seen["before"] = shown_columns(batch)
        return batch

    def behind(batch: dict[str, Any]) -> None:
        seen["after"] = shown_columns(batch)
        if without:
            raise _Enough

    pipeline = rehearsal.pipeline(rehearsal.make(), [Probe(in_front)], [Probe(behind)])
    with suppress(_Enough):
        rehearsal.outputs(pipeline)
    return seen.get("before", {}), seen.get("after", {})


@contract_check()
def writes(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It writes the columns that it declares, and no others."""
    if not rehearsal.declared:
        yield _NOT_DECLARED
        return
    piece = rehearsal.piece
    before, after = _ran(rehearsal)
    where = f"{rehearsal.name}.writes"
    for name, (layout, data) in after.items():
        known = name in before
        remade = piece.output_layout is not None or isinstance(piece, AddOneTsToEpisodesAndTruncate)
        same_layout = known and before[name][0] == layout and not remade
        if name in piece.writes or (known and not same_layout):
            continue
        unlike = difference(before[name][1], data) if known else "it is new"
        if unlike:
            do = f"name {name!r} in writes"
            yield Fault(where, "every column it writes", f"{tuple(piece.writes)}, and column {name!r}: {unlike}", do)
    undone = rehearsal.side == "env_to_module" and hasattr(piece, "undo")  # it changes the space of actions there
    missing = [name for name in piece.writes if name not in after and not (undone and name == Columns.ACTIONS)]
    if missing:
        do = f"leave {missing[0]!r} out of writes, unless it is written in other circumstances"
        yield Fault(where, "columns that exist after it", f"no column {missing[0]!r}", do)


@contract_check()
def reads(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It needs the columns that it declares, and does without any other."""
    if not rehearsal.declared:
        yield _NOT_DECLARED
        return
    before, after = _ran(rehearsal)
    where, declared = f"{rehearsal.name}.reads", tuple(rehearsal.piece.reads or ())
    for name in before:
        fails = ""
        try:
            _, other = _ran(rehearsal, without=name)
        except Exception as error:
            fails = f"{type(error).__name__}: {error}".splitlines()[0]
        if fails and name not in declared:
            do = f"name {name!r} in reads, so that a pipeline without it is refused when it is built"
            yield Fault(where, "every column it cannot do without", f"{declared}; without {name!r}: {fails}", do)
        elif not fails and name in declared:
            rest = {key: own for key, own in after.items() if key != name}
            if not difference(rest, {key: own for key, own in other.items() if key != name}):
                do = f"leave {name!r} out of reads"
                yield Fault(where, "columns that make a difference", f"{name!r}, without which it gives the same", do)


@contract_check()
def layouts(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It leaves the layout that it declares: per-episode columns, arrays or tensors."""
    if not rehearsal.declared:
        yield _NOT_DECLARED
        return
    seen: list[dict[str, str]] = []

    def note(batch: dict[str, Any]) -> None:
        seen.append({str(name): layout_of(column) for name, column in batch.items()})

    rehearsal.outputs(rehearsal.pipeline(rehearsal.make(), [Probe(note)], [Probe(note)]))
    if len(seen) < 2:
        yield NotApplied("it leaves no columns")
        return
    layout_left = rehearsal.piece.output_layout
    known = [layout for layout in seen[0].values() if layout]
    expected = layout_left or (known[0] if known else "episodes")
    for name, layout in seen[1].items():
        if layout and layout != expected and (layout_left or seen[0].get(name, expected) == expected):
            yield Fault(
                f"{rehearsal.name}, column {name!r}",
                f"{expected}, " + ("as output_layout says" if layout_left else "which it found"),
                layout,
                f"say output_layout = {layout!r} in the class, or leave the layout as it was",
            )
            return


@contract_check(sides=("env_to_module", "learner"))
def dtypes(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Columns keep their types: float32 does not become float64, unless the space says so."""
    if rehearsal.several or rehearsal.with_module:
        yield NotApplied("tensors have the types of the module")
        return
    default = rehearsal.outputs(rehearsal.pipeline(_nothing()))[-1] if rehearsal.at_start else {}
    space = rehearsal.pipeline(rehearsal.make()).observation_space
    declared = [own.dtype for own in _boxes(space)]
    for name, column in rehearsal.base()[-1].items():
        found = _floats(column)
        known = declared if name == Columns.OBS else _floats(default.get(name))
        if not found or not known:
            continue
        widest, allowed = max(found, key=_size), max(known, key=_size)
        if _size(widest) > max(_size(allowed), 4):
            do = f"give rows.astype(np.{allowed})"
            if name == Columns.OBS:
                do += f", or declare {widest} in recompute_output_observation_space"
            yield Fault(f"column {name!r}", str(allowed), str(widest), do)


def _nothing() -> Any:
    return plain_neighbour()


def _size(dtype: Any) -> int:
    return int(np.dtype(dtype).itemsize)


def _floats(column: Any) -> list[Any]:
    leaves = flatten(column)[0] if column is not None and not isinstance(column, list) else []
    return [leaf.dtype for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"]


def _boxes(space: Any) -> list[Any]:
    import gymnasium as gym

    if isinstance(space, gym.spaces.Box):
        return [space]
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        return [box for part in parts for box in _boxes(part)]
    return []
