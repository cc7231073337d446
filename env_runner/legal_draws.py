"""Random actions among the legal ones of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.spaces import random_legal_actions

from ..connectors._engine.call import ROWS
from ..connectors.authoring.column_transform import actions_for_env

__all__ = ["legal_actions_of_agents", "random_legal"]


def random_legal(
    env_to_module: Any, batch: Mapping[str, Any], space: Any, rng: np.random.Generator
) -> tuple[Any, Any] | None:
    """Draw random legal actions of one agent in each environment; None without an action mask.

    Args:
        env_to_module: The pipeline that made the batch.
        batch: The module's input; its `action_mask` marks the legal actions.
        space: The module's action space.
        rng: The random generator.

    Returns:
        The actions to store, and those for the environments.
    """
    if batch.get(Columns.ACTION_MASK) is None:
        return None
    actions = random_legal_actions(space, _rows(batch[Columns.ACTION_MASK]), rng)
    return actions, actions_for_env(env_to_module, actions)


def legal_actions_of_agents(
    env_to_module: Any,
    batch: Mapping[Any, Any],
    spaces: Mapping[Any, Any],
    shared: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[tuple[int, Any], tuple[Any, Any]]:
    """Draw random legal actions of the agents whose modules get an action mask.

    Args:
        env_to_module: The pipeline that made the batch.
        batch: Columns by module.
        spaces: Module -> (observation space, action space).
        shared: The pipelines' shared data, which maps rows to agents.
        rng: The random generator.

    Returns:
        (position of the episode in the call, agent) -> the action to store, and the one for the environment.
    """
    found: dict[tuple[int, Any], tuple[Any, Any]] = {}
    for module_id, columns in batch.items():
        rows = getattr(shared.get(ROWS), "rows", {}).get(module_id)
        if rows is None or not isinstance(columns, Mapping) or Columns.ACTION_MASK not in columns:
            continue
        actions = random_legal_actions(spaces[module_id][1], _rows(columns[Columns.ACTION_MASK]), rng)
        for i, (owner, agent) in enumerate(zip(rows.owners, rows.agents)):
            for_env = actions_for_env(env_to_module, actions[i : i + 1], agent)
            found[owner, agent] = actions[i], for_env[0]
    return found


def _rows(mask: Any) -> Any:
    """Return a mask as bool [rows, choices]; it may be a tensor, and may have a time axis."""
    array = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask)
    return array.reshape(-1, array.shape[-1]) != 0
