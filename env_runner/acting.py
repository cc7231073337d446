"""From a batch to actions: the module's forward pass and the module-to-env pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns, note_columns
from epibatch.core.errors import ColumnError, add_context
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, paths_of, unflatten

from ..connectors._engine.modules import describe_batch

__all__ = ["act", "blame_observations", "check_actions", "forward", "with_members"]

_MISSING = (
    "Read what is known in training alone, as views of this step or later ones are, in _forward_train only. An "
    "env-to-module piece adds columns, or a view of earlier steps, which modules declare on the class: pipelines are "
    "made before the module."
)


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
    """Return the columns of one vector step: actions and the module's other outputs.

    Args:
        module: The module that acts.
        module_to_env: The pipeline after it.
        batch: The output of the env-to-module pipeline.
        episodes: The running episodes, one per environment.
        explore: Whether actions explore.
        t: The steps taken so far, for the module.
        **call: `shared_data` and `metrics` for the pipeline.

    Raises:
        ColumnError: no actions, or not one per environment; actions of the module's own that are not in its space; or
            NaN among the module's outputs. The error names the observations instead if they have NaN already.
    """
    outputs = forward(module, batch, explore=explore, t=t)
    if Columns.ACTIONS in outputs:
        outputs = with_members(module, outputs)
    columns: dict[str, Any]
    try:
        columns = module_to_env(rl_module=module, batch=outputs, episodes=episodes, explore=explore, **call)
    except ColumnError as error:
        newest = ((f"environment {env}", episode.get_observations(-1)) for env, episode in enumerate(episodes))
        blame_observations(error, newest, [("environment", batch.get(Columns.OBS))])
        raise
    check_actions(columns, len(episodes))
    return columns


def blame_observations(
    error: ColumnError, newest: Iterable[tuple[str, Any]], batches: Iterable[tuple[str, Any]]
) -> None:
    """Raise an error about an observation that is NaN if it caused the NaN in the module's outputs.

    Args:
        error: The error about the module's outputs.
        newest: Pairs of the observation's owner, and the observation as the environment gave it.
        batches: Pairs of the owner of a row, and the observations as a module got them. Pieces may have made the NaN.

    Raises:
        ColumnError: there is such an observation.
    """
    if "NaN" not in str(error):
        return
    for whose, row in newest:
        found = _first_nan(row)
        if found is not None:
            raise _nan(f"observation{found[0]} of {whose}", "environment") from error
    for whose, column in batches:
        found = _first_nan(column)
        if found is not None:
            name = f"column {Columns.OBS!r}, part{found[0]} of {whose} {found[1]}"
            raise _nan(name, "env-to-module piece that makes it of the observations") from error


def _nan(name: str, source: str) -> ColumnError:
    return ColumnError(
        f"{name}, of which the module made its outputs",
        expected="numbers",
        found="NaN",
        do=f"correct the {source}, or let a piece replace NaN",
    )


def _first_nan(struct: Any) -> tuple[str, int] | None:
    """Return the place of the first NaN in observations: the path of the part, and the row."""
    leaves, form = flatten(struct)
    for path, leaf in zip(paths_of(form), leaves):
        array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"{path and f' {path}'}", int(np.argwhere(np.isnan(array)).flat[0]) if array.ndim else 0
    return None


def forward(module: Any, batch: dict[str, Any], *, explore: bool, t: int) -> dict[str, Any]:
    """Return the module's outputs; an error in it names the module and the input shapes.

    Raises:
        ColumnError: the module returned something other than a dict.
        KeyError: the module reads a column that the batch to act on does not have; a note lists those that it has.
    """
    try:
        outputs: dict[str, Any]
        outputs = module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
    except Exception as error:
        note_columns(error, batch, _MISSING)
        add_context(error, f"in {type(module).__name__}'s forward pass, with {describe_batch(batch)}:")
        raise
    if not isinstance(outputs, Mapping):
        raise ColumnError(
            f"outputs of {type(module).__name__}'s forward pass",
            expected="a dict of columns, such as {'action_dist_inputs': tensor}",
            found=type(outputs).__name__,
            do="return a dict from _forward",
        )
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
        "what the module-to-env pipeline left",
        expected=f"a column {Columns.ACTIONS!r} with {num_envs} rows, one per environment",
        found=str(found),
        do="keep the column in every module-to-env piece",
    )


def with_members(module: Any, outputs: Any) -> Any:
    """Return the outputs after checking that the module's own actions are members of its Discrete and similar spaces.

    Whole numbers of another type are cast to the space's type.

    Raises:
        ColumnError: an action is not a member.
    """
    space = getattr(module, "action_space", None)
    if space is None:
        return outputs
    spaces, form = flatten(get_base_struct_from_space(space))
    try:
        given = flatten_like(form, outputs[Columns.ACTIONS])
    except ColumnError:
        return outputs  # the pipeline says how they must be nested
    leaves = [_members(leaf, own, type(module).__name__) for leaf, own in zip(given, spaces)]
    return {**outputs, Columns.ACTIONS: unflatten(form, leaves)}


def _members(actions: Any, space: Any, name: str) -> Any:
    low: Any
    high: Any
    if isinstance(space, gym.spaces.Discrete):
        low = int(space.start)
        high = low + int(space.n) - 1
    elif isinstance(space, gym.spaces.MultiDiscrete):
        starts: Any = space.start
        sizes: Any = space.nvec
        low, high = starts, starts + sizes - 1
    elif isinstance(space, gym.spaces.MultiBinary):
        low, high = 0, 1
    else:
        return actions
    array = np.asarray(actions.detach().cpu() if hasattr(actions, "detach") else actions)
    wrong = array if array.dtype.kind not in "fiub" else array[~((array >= low) & (array <= high) & (array % 1 == 0))]
    if wrong.size:
        raise ColumnError(
            f"column {Columns.ACTIONS!r} of {name}'s outputs",
            expected=f"members of {space}",
            found=", ".join(map(repr, dict.fromkeys(wrong.reshape(-1)[:5].tolist()))),
            do=f"return whole numbers of the space, or {Columns.ACTION_DIST_INPUTS!r} alone, to have them drawn",
        )
    if array.dtype.kind != "f":
        return actions
    return actions.long() if hasattr(actions, "long") else array.astype(np.int64)
