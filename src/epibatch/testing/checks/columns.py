"""Checks of a piece's columns against its declarations and its spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.connectors import ChunkGroup, EpisodeColumn
from epibatch.connectors.columnar_piece import Piece
from epibatch.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from epibatch.core.columns import Columns
from epibatch.core.structs import convert_to_numpy, flatten, map_struct
from epibatch.testing.checks.calls import plain_neighbour
from epibatch.testing.comparing import difference
from epibatch.testing.contract import RUNS, ContractFault, Fault, NotApplied, contract_check
from epibatch.testing.harness import PieceHarness
from epibatch.testing.recorded_episodes import refused_actions

_NOT_DECLARED = "it declares no reads, so that pipelines trust it"


class Probe(Piece):
    """Calls a function with the batch, and passes the batch on.

    Args:
        look: Called with the columns; its result, if any, replaces the batch.
    """

    reads: ClassVar[tuple[str, ...]] = ()

    def __init__(self, look: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.look = look

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Call the function with the batch."""
        changed = self.look(columns)
        return columns if changed is None else changed


class _Enough(Exception):
    """Ends a run after the piece."""


def _columns_around(harness: PieceHarness, without: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns before and after the piece in the first call: each one's layout, and a copy of its content.

    Args:
        harness: The piece.
        without: A column that is removed before it.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}

    def look_before(batch: dict[str, Any]) -> Any:
        batch = {name: column for name, column in batch.items() if name != without}
        before.clear()
        before.update({str(name): (_layout_of(column), _copied(column)) for name, column in batch.items()})
        return batch

    def look_after(batch: dict[str, Any]) -> None:
        after.clear()
        after.update({str(name): (_layout_of(column), _copied(column)) for name, column in batch.items()})
        if without:
            raise _Enough

    with suppress(_Enough):
        harness.outputs(harness.pipeline(before=[Probe(look_before)], after=[Probe(look_after)]))
    return before, after


def _layout_of(column: Any) -> str:
    """Return the layout of a column: "episodes", "arrays", "tensors", or "" for anything else."""
    if isinstance(column, EpisodeColumn):
        return "episodes"
    leaves = flatten(column)[0] if not isinstance(column, list) else []
    if leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return "arrays"
    return "tensors" if leaves and all(hasattr(leaf, "requires_grad") for leaf in leaves) else ""


def _copied(column: Any) -> Any:
    data = column.data if isinstance(column, EpisodeColumn) else column
    return list(data) if isinstance(data, list) else map_struct(np.array, convert_to_numpy(data))


@contract_check()
def writes(harness: PieceHarness) -> Iterator[Fault]:
    """It writes the columns that it declares, and no others."""
    if not harness.declared:
        raise NotApplied(_NOT_DECLARED)
    piece = harness.piece
    before, after = _columns_around(harness)
    where = f"{harness.name}.writes"
    for name, (layout, data) in after.items():
        existed = name in before
        converted = piece.output_layout is not None or isinstance(piece, AddOneTsToEpisodesAndTruncate)
        same_layout = existed and before[name][0] == layout and not converted
        if name in piece.writes or (existed and not same_layout):
            continue
        mismatch = difference(before[name][1], data) if existed else "it is new"
        if mismatch:
            do = f"name {name!r} in writes"
            yield Fault(where, "every column it writes", f"{tuple(piece.writes)}, and column {name!r}: {mismatch}", do)
    undone = harness.side == "env_to_module" and hasattr(piece, "undo")  # it changes the space of actions there
    missing = [name for name in piece.writes if name not in after and not (undone and name == Columns.ACTIONS)]
    if missing:
        do = f"leave {missing[0]!r} out of writes, unless it is written in other circumstances"
        yield Fault(where, "columns that exist after it", f"no column {missing[0]!r}", do)


@contract_check()
def reads(harness: PieceHarness) -> Iterator[Fault]:
    """It needs the columns that it declares, and does without any other."""
    if not harness.declared:
        raise NotApplied(_NOT_DECLARED)
    before, after = _columns_around(harness)
    where, declared = f"{harness.name}.reads", tuple(harness.piece.reads or ())
    for name in before:
        fails = ""
        try:
            _, other = _columns_around(harness, without=name)
        except Exception as error:
            fails = f"{type(error).__name__}: {error}".splitlines()[0]
        if fails and name not in declared:
            do = f"name {name!r} in reads, so that a pipeline without it is refused when it is built"
            yield Fault(where, "every column it cannot do without", f"{declared}; without {name!r}: {fails}", do)
        elif not fails and name in declared:
            rest = [{key: column for key, column in columns.items() if key != name} for columns in (after, other)]
            if not difference(*rest):
                do = f"leave {name!r} out of reads"
                yield Fault(where, "columns that make a difference", f"{name!r}, without which it gives the same", do)


@contract_check()
def layouts(harness: PieceHarness) -> None:
    """It leaves the layout that it declares: per-episode columns, arrays or tensors."""
    if not harness.declared:
        raise NotApplied(_NOT_DECLARED)
    seen: list[dict[str, str]] = []
    probes = [
        Probe(lambda batch: seen.append({str(name): _layout_of(column) for name, column in batch.items()}))
        for _ in range(2)
    ]
    harness.outputs(harness.pipeline(before=probes[:1], after=probes[1:]))
    if len(seen) < 2:
        raise NotApplied("it leaves no columns")
    declared = harness.piece.output_layout
    found = [layout for layout in seen[0].values() if layout]
    expected = declared or (found[0] if found else "episodes")
    for name, layout in seen[1].items():
        if layout and layout != expected and (declared or seen[0].get(name, expected) == expected):
            raise ContractFault(
                f"{harness.name}, column {name!r}",
                f"{expected}, " + ("as output_layout says" if declared else "which it found"),
                layout,
                f"say output_layout = {layout!r} in the class, or leave the layout as it was",
            )


@contract_check(sides=("env_to_module", "learner"))
def dtypes(harness: PieceHarness) -> Iterator[Fault]:
    """Columns keep their types: float32 does not become float64, unless the space says so."""
    if harness.multi_agent or harness.with_module:
        raise NotApplied("tensors have the types of the module")
    default = harness.outputs(harness.pipeline(plain_neighbour()))[-1] if harness.at_start else {}
    declared = [box.dtype for box in _boxes(harness.pipeline().observation_space)]
    for name, column in harness.base()[-1].items():
        found = _float_types(column)
        expected = declared if name == Columns.OBS else _float_types(default.get(name))
        if not found or not expected:
            continue
        widest, allowed = (max(types, key=lambda dtype: dtype.itemsize) for types in (found, expected))
        if widest.itemsize > max(allowed.itemsize, 4):
            do = f"give rows.astype(np.{allowed})"
            if name == Columns.OBS:
                do += f", or declare {widest} in recompute_output_observation_space"
            yield Fault(f"column {name!r}", str(allowed), str(widest), do)


def _float_types(column: Any) -> list[np.dtype[Any]]:
    leaves = flatten(column)[0] if column is not None and not isinstance(column, list) else []
    return [leaf.dtype for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"]


def _boxes(space: Any) -> list[Any]:
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        return [box for part in parts for box in _boxes(part)]
    return [space] if isinstance(space, gym.spaces.Box) else []


# ---------------------------------------------------------------------------------------------- spaces


@contract_check(sides=("env_to_module", "learner"))
def observation_space(harness: PieceHarness) -> None:
    """Observations have the nesting, shape, kind and bounds of its output space."""
    if harness.with_module:
        raise NotApplied("the module's input is padded, or is tensors")
    space = harness.pipeline().observation_space
    for batch in harness.base():
        if harness.multi_agent:
            observations = {name: columns[Columns.OBS] for name, columns in batch.items() if Columns.OBS in columns}
            _require_rows_in(gym.spaces.Dict(space), observations, "observations")
        elif Columns.OBS in batch:
            _require_rows_in(space, batch[Columns.OBS], "observations")
        else:
            raise NotApplied("its pipeline gives no observations")


def _require_rows_in(space: Any, rows: Any, where: str) -> None:
    """Raise a fault for the first leaf with rows outside of its space."""
    do = "declare it in recompute_output_observation_space, or give what it declares"
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(rows, dict) or set(rows) != set(space.spaces):
            found = ", ".join(map(str, rows)) if isinstance(rows, dict) else type(rows).__name__
            raise ContractFault(where, f"the keys {', '.join(map(str, space.spaces))}", found, do)
        for key, part in space.spaces.items():
            _require_rows_in(part, rows[key], f"{where}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(rows, tuple) or len(rows) != len(space.spaces):
            raise ContractFault(where, f"a tuple of {len(space.spaces)}", type(rows).__name__, do)
        for i, part in enumerate(space.spaces):
            _require_rows_in(part, rows[i], f"{where}[{i}]")
    elif isinstance(rows, np.ndarray) and space is not None and space.shape is not None:
        if rows.shape[1:] != space.shape:
            raise ContractFault(where, f"shape {space.shape}, as its output space says", str(rows.shape[1:]), do)
        if not np.can_cast(rows.dtype, space.dtype, "same_kind"):
            raise ContractFault(where, f"{space.dtype}, as its output space says", str(rows.dtype), do)
        outside = [row for row in rows if not space.contains(_typed(space, row))]
        if outside:
            raise ContractFault(where, f"rows in its output space {space}", str(np.asarray(outside[0]).tolist()), do)


def _typed(space: Any, row: Any) -> Any:
    typed = np.asarray(row).astype(space.dtype)
    return typed if typed.ndim or isinstance(space, gym.spaces.Box) else typed[()]


@contract_check(sides=("env_to_module", "module_to_env"), after=(*RUNS, "observation_space"))
def action_space(harness: PieceHarness) -> None:
    """In a runner every action that reaches the environment is in its action space."""
    if harness.multi_agent:
        raise NotApplied("no runner is tried with several agents")
    pieces = harness.pipeline().connectors
    refused = refused_actions(pieces, harness.side, harness.spaces, harness.model_config)
    if refused:
        raise ContractFault(
            "actions for the environment",
            f"actions in {harness.spaces[1]}",
            repr(refused[0]),
            "write actions_for_env, in the environment's units and inside its bounds",
        )
