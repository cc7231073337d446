"""Checks of column transforms: the inverse, and equal results in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.structs import map_struct
from epibatch.testing.checks.calls import recorded_rows
from epibatch.testing.contract import RUNS, ContractFault, NotApplied, contract_check, require_equal
from epibatch.testing.harness import PieceHarness


@contract_check(once=True)
def inverse(harness: PieceHarness) -> None:
    """Rows that its `inverse` gives back are transformed to the same again."""
    piece = harness.make()
    if not getattr(piece, "has_inverse", False):
        raise NotApplied("it has no inverse")
    harness.outputs(harness.pipeline(piece))
    for path, number, rows in recorded_rows(harness, piece):
        once = piece.changed(path, map_struct(np.array, rows), piece.transform)
        again = piece.changed(path, piece.changed(path, once, piece.inverse), piece.transform)
        where = f"transform(inverse(transform(x))), column {str(path)!r} of episode {number}"
        do = "let inverse(y) give rows of which transform makes y; what was lost on the way stays lost"
        require_equal(_as_float64(once), _as_float64(again), where, "transform(x)", do, near=True)


@contract_check(sides=("env_to_module", "learner"), after=(*RUNS, "layouts"))
def every_layout(harness: PieceHarness) -> None:
    """It gives the same in every layout that it takes, on tensors as on arrays."""
    layouts = [layout for layout in harness.piece.input_layouts or () if layout in ("episodes", "arrays", "tensors")]
    if len(layouts) < 2 or harness.draws:
        raise NotApplied("it draws random numbers" if harness.draws else "it takes one layout, or says none")
    if harness.piece.reads or harness.piece.output_layout:
        raise NotApplied("it comes after the pieces that write the columns it reads")
    first: Any = None
    for layout in layouts:
        where, do = f"{harness.name} on {layout}", f"mend it for {layout}, or leave them out of input_layouts"
        try:
            batches = harness.outputs_in(layout)
        except Exception as error:
            found = " ".join(line.strip() for line in f"{type(error).__name__}: {error}".splitlines())
            raise ContractFault(where, "what it gives in the others", found, do) from error
        rows = [_as_float64(_rows_with_loss(batch)) for batch in batches]
        first = rows if first is None else first
        require_equal(first, rows, where, f"what it gives on {layouts[0]}", do, near=True)


def _rows_with_loss(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch without rows that have no loss, such as bootstrap rows."""
    mask = batch.get(Columns.LOSS_MASK)
    if not isinstance(mask, np.ndarray):
        return batch

    def masked(leaf: Any) -> Any:
        return leaf[mask] if isinstance(leaf, np.ndarray) and leaf.shape[: mask.ndim] == mask.shape else leaf

    return {name: map_struct(masked, column) for name, column in batch.items()}


def _as_float64(struct: Any) -> Any:
    """Return numbers without their types, as a module's tensors and an environment's actions differ in type."""
    if isinstance(struct, list):
        return [_as_float64(item) for item in struct]
    return map_struct(lambda leaf: leaf.astype(np.float64) if _is_numeric(leaf) else leaf, struct)


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
