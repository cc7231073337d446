"""Checks of column transforms: the inverse, and equal results in every layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.structs import map_struct
from epibatch.testing.column_rows import column_rows
from epibatch.testing.comparing import difference
from epibatch.testing.contract import RUNS, Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal

__all__ = ["every_layout", "inverse"]


@contract_check(once=True)
def inverse(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Rows that its `inverse` gives back are transformed to the same again."""
    piece = rehearsal.make()
    if not getattr(piece, "has_inverse", False):
        yield NotApplied("it has no inverse")
        return
    rehearsal.outputs(rehearsal.pipeline(piece))
    for path, number, rows in column_rows(rehearsal, piece):
        if rows is None:
            yield NotApplied(f"recorded episodes have no {path.column!r}")
            return
        once = piece.changed(path, map_struct(np.array, rows), piece.transform)
        again = piece.changed(path, piece.changed(path, once, piece.inverse), piece.transform)
        unlike = difference(_numbers(once), _numbers(again), near=True)
        if unlike:
            where = f"transform(inverse(transform(x))), column {str(path)!r} of episode {number}"
            do = "let inverse(y) give rows of which transform makes y; what was lost on the way stays lost"
            yield Fault(where, "transform(x)", unlike, do)
            return


@contract_check(sides=("env_to_module", "learner"), after=(*RUNS, "layouts"))
def every_layout(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It gives the same in every layout that it takes, on tensors as on arrays."""
    layouts = [layout for layout in rehearsal.piece.input_layouts or () if layout in ("episodes", "arrays", "tensors")]
    if len(layouts) < 2 or rehearsal.draws:
        yield NotApplied("it draws random numbers" if rehearsal.draws else "it takes one layout, or says none")
        return
    if rehearsal.piece.reads or rehearsal.piece.output_layout:
        yield NotApplied("it comes after the pieces that write the columns it reads")
        return
    known: list[Any] = []
    for layout in layouts:
        try:
            found = rehearsal.outputs_in(layout)
        except Exception as error:
            lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
            do = f"mend it for {layout}, or leave them out of input_layouts"
            yield Fault(f"{rehearsal.name} on {layout}", "what it gives in the others", " ".join(lines), do)
            return
        known.append([_numbers(_real_rows(batch)) for batch in found])
        unlike = difference(known[0], known[-1], near=True)
        if unlike:
            do = f"mend it for {layout}, or leave them out of input_layouts"
            yield Fault(f"{rehearsal.name} on {layout}", f"what it gives on {layouts[0]}", unlike, do)
            return


def _real_rows(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch without rows that have no loss, such as bootstrap rows."""
    mask = batch.get(Columns.LOSS_MASK)
    if not isinstance(mask, np.ndarray):
        return batch

    def real(leaf: Any) -> Any:
        return leaf[mask] if isinstance(leaf, np.ndarray) and leaf.shape[: mask.ndim] == mask.shape else leaf

    return {name: map_struct(real, column) for name, column in batch.items()}


def _numbers(struct: Any) -> Any:
    """Return numbers without their types, as a module's tensors and an environment's actions differ in type."""
    if isinstance(struct, list):
        return [_numbers(one) for one in struct]
    return map_struct(lambda leaf: leaf.astype(np.float64) if _is_numeric(leaf) else leaf, struct)


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
