"""From a batch to actions: the module's forward pass and the module-to-env pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, add_context, explain
from epibatch.core.structs import flatten, map_struct

__all__ = ["act", "check_actions", "forward"]


def act(
    module: Any, module_to_env: Any, batch: dict[str, Any], episodes: Sequence[Any], *, explore: bool, **call: Any
) -> dict[str, Any]:
    """The columns of one vector step: actions, and whatever else the module gave.

    Args:
        module: The module that acts.
        module_to_env: The pipeline behind it.
        batch: What the env-to-module pipeline made.
        episodes: The running episodes, one per environment.
        explore: Whether actions explore.
        **call: `t`, the steps taken so far, for the module; `shared_data` and `metrics` for the pipeline.

    Raises:
        ColumnError: no actions, or not one per environment.
    """
    outputs = forward(module, batch, explore=explore, t=call.pop("t"))
    columns: dict[str, Any] = module_to_env(rl_module=module, batch=outputs, episodes=episodes, explore=explore, **call)
    check_actions(columns, len(episodes))
    return columns


def forward(module: Any, batch: dict[str, Any], *, explore: bool, t: int) -> dict[str, Any]:
    """The module's outputs; an error in it names the module and the shapes it was given."""
    try:
        outputs: dict[str, Any]
        outputs = module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
    except Exception as error:
        add_context(error, f"in {type(module).__name__}'s forward pass, with {_shapes(batch)}:")
        raise
    return outputs


def check_actions(columns: dict[str, Any], num_envs: int) -> None:
    """Refuse actions that are missing or not one per environment, before an environment sees them.

    Raises:
        ColumnError: they are.
    """
    found: Any = "none"
    if Columns.ACTIONS in columns:
        found = [len(leaf) if np.ndim(leaf) else "one" for leaf in flatten(columns[Columns.ACTIONS])[0]]
        if found.count(num_envs) == len(found):
            return
    raise ColumnError(
        explain(
            "what the module-to-env pipeline left",
            expected=f"a column {Columns.ACTIONS!r} with {num_envs} rows, one per environment",
            found=str(found),
            do="keep the column in every module-to-env piece",
        )
    )


def _shapes(batch: dict[str, Any]) -> str:
    """The columns of a batch and their shapes, for a message."""
    shapes = {name: map_struct(lambda leaf: list(getattr(leaf, "shape", ())), own) for name, own in batch.items()}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "an empty batch"
