"""Checks of a piece's output against its declared spaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.testing.contract import RUNS, Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal
from epibatch.testing.stage import sampled_with

__all__ = ["action_space", "observation_space"]


@contract_check(sides=("env_to_module", "learner"))
def observation_space(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Observations have the nesting, shape, kind and bounds of its output space."""
    if rehearsal.with_module:
        yield NotApplied("the module's input is padded, or is tensors")
        return
    space = rehearsal.pipeline(rehearsal.make()).observation_space
    for batch in rehearsal.base():
        if rehearsal.several:
            space, batch = gym.spaces.Dict(space), _observations_of_all(batch)
        if Columns.OBS not in batch:
            yield NotApplied("its pipeline gives no observations")
            return
        fault = _misfit(space, batch[Columns.OBS], "observations")
        if fault is not None:
            yield fault
            return


def _observations_of_all(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the observations of all modules in one column."""
    return {Columns.OBS: {name: own[Columns.OBS] for name, own in batch.items() if Columns.OBS in own}}


def _misfit(space: Any, rows: Any, where: str) -> Fault | None:
    """Return the first leaf with rows outside of its space, as a fault."""
    declares = "declare it in recompute_output_observation_space, or give what it declares"
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(rows, dict) or set(rows) != set(space.spaces):
            found = ", ".join(map(str, rows)) if isinstance(rows, dict) else type(rows).__name__
            return Fault(where, f"the keys {', '.join(map(str, space.spaces))}", found, declares)
        return _first(_misfit(own, rows[key], f"{where}[{key!r}]") for key, own in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(rows, tuple) or len(rows) != len(space.spaces):
            return Fault(where, f"a tuple of {len(space.spaces)}", type(rows).__name__, declares)
        return _first(_misfit(own, rows[i], f"{where}[{i}]") for i, own in enumerate(space.spaces))
    if not isinstance(rows, np.ndarray) or space is None or space.shape is None:
        return None
    if rows.shape[1:] != space.shape:
        return Fault(where, f"shape {space.shape}, as its output space says", str(rows.shape[1:]), declares)
    if not np.can_cast(rows.dtype, space.dtype, "same_kind"):
        return Fault(where, f"{space.dtype}, as its output space says", str(rows.dtype), declares)
    outside = [row for row in rows if not space.contains(_as(space, row))]
    if outside:
        return Fault(where, f"rows in its output space {space}", str(np.asarray(outside[0]).tolist()), declares)
    return None


def _as(space: Any, row: Any) -> Any:
    typed = np.asarray(row).astype(space.dtype)
    return typed if typed.ndim or isinstance(space, gym.spaces.Box) else typed[()]


def _first(faults: Any) -> Fault | None:
    return next((fault for fault in faults if fault is not None), None)


@contract_check(sides=("env_to_module", "module_to_env"), after=(*RUNS, "observation_space"))
def action_space(rehearsal: Rehearsal) -> Iterator[Finding]:
    """In a runner every action that reaches the environment is in its action space."""
    if rehearsal.several:
        yield NotApplied("no runner is tried with several agents")
        return
    refused = sampled_with(
        rehearsal.pipeline(rehearsal.make()).connectors, rehearsal.side, rehearsal.spaces, rehearsal.model_config
    )
    if refused:
        yield Fault(
            "actions for the environment",
            f"actions in {rehearsal.spaces[1]}",
            repr(refused[0]),
            "write actions_for_env, in the environment's units and inside its bounds",
        )
