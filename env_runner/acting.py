"""From a batch to actions: the module's forward pass and the module-to-env pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, add_context, explain
from epibatch.core.structs import flatten, map_struct, paths_of

__all__ = ["act", "check_actions", "forward"]


def act(
    module: Any,
    module_to_env: Any,
    batch: dict[str, Any],
    episodes: Sequence[Any],
    *,
    explore: bool,
    t: int,
    **call: Any,
) -> dict[str, Any]:
    """The columns of one vector step: actions, and whatever else the module gave.

    Args:
        module: The module that acts.
        module_to_env: The pipeline behind it.
        batch: What the env-to-module pipeline made.
        episodes: The running episodes, one per environment.
        explore: Whether actions explore.
        t: The steps taken so far, for the module.
        **call: `shared_data` and `metrics` for the pipeline.

    Raises:
        ColumnError: no actions, or not one per environment; or NaN among the module's outputs, which observations
            that are NaN are blamed for if there are any.
    """
    outputs = forward(module, batch, explore=explore, t=t)
    columns: dict[str, Any]
    try:
        columns = module_to_env(rl_module=module, batch=outputs, episodes=episodes, explore=explore, **call)
    except ColumnError as error:
        _blame_observations(error, batch, episodes)
        raise
    check_actions(columns, len(episodes))
    return columns


def _blame_observations(error: ColumnError, batch: dict[str, Any], episodes: Sequence[Any]) -> None:
    """Raise an error about an observation that is NaN if the one about the module's outputs comes of it.

    Observations are looked for as the environment gave them, or, where pieces made others of them that are NaN
    only now, as the module got them.
    """
    if "NaN" not in str(error):
        return
    given = [episode.get_observations(-1) for episode in episodes]
    for env, row in [*enumerate(given), (None, batch.get(Columns.OBS))]:
        place = _first_nan(row, env)
        if place is not None:
            name = f"column {Columns.OBS!r}, part" if env is None else "observation"
            whose = "env-to-module piece that makes it of the observations" if env is None else "environment"
            raise ColumnError(
                explain(
                    f"{name}{place}, of which the module made its outputs",
                    expected="numbers",
                    found="NaN",
                    do=f"correct the {whose}, or let a piece replace NaN",
                )
            ) from error


def _first_nan(struct: Any, env: int | None) -> str | None:
    """Where in observations there is NaN: the path of the part, and the environment."""
    leaves, form = flatten(struct)
    for path, leaf in zip(paths_of(form), leaves):
        array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
        if array.dtype.kind == "f" and np.isnan(array).any():
            row = env if env is not None else int(np.argwhere(np.isnan(array))[0][0])
            return f"{path and f' {path}'} of environment {row}"
    return None


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
    actions = columns.get(Columns.ACTIONS)
    if type(actions) is np.ndarray and actions.ndim and len(actions) == num_envs:
        return
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
