"""The infos of a vector environment, and one environment's part of them."""

from __future__ import annotations

from typing import Any

import numpy as np

ENV_INFOS = "env_infos"
"""The key of a vector environment's infos with a list of each environment's own info dict."""


def infos_by_env(infos: dict[str, Any]) -> Any:
    """Return what a vector environment's infos hold as a dict for each environment, if anything: a list or the like."""
    found = infos.get(ENV_INFOS)
    if isinstance(found, np.ndarray):
        return found if found.dtype == object and found.ndim == 1 else ()
    return found if isinstance(found, (list, tuple)) else ()


def env_infos(infos: Any, env: int, num_envs: int) -> dict[str, Any]:
    """One environment's part of a vector environment's infos, in a new dict.

    Args:
        infos: A list with a dict or None for each environment; or Gymnasium's dict of columns, with such a list under
            `env_infos` if the vector environment gives one. A tuple or an object array counts as a list.
        env: The environment's number.
        num_envs: N. What has not N rows belongs to every environment.
    """
    if not isinstance(infos, dict):
        info = infos[env] if _is_column(infos, num_envs) else None
        return dict(info) if isinstance(info, dict) else {}
    found = infos_by_env(infos)
    if len(found) != num_envs or not isinstance(found[env], (dict, type(None))):
        return _row_of_columns(infos, env, num_envs)
    return {
        **(found[env] or {}),
        **_row_of_columns({key: infos[key] for key in infos if key != ENV_INFOS}, env, num_envs),
    }


def _is_column(value: Any, num_envs: int) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.shape[:1] == (num_envs,))
    return isinstance(value, (list, tuple)) and len(value) == num_envs


def _row_of_columns(infos: dict[Any, Any], env: int, num_envs: int) -> dict[str, Any]:
    """One environment's part of a dict of columns; a boolean array `_key` says which environments have `key`."""
    part: dict[Any, Any] = {}
    for key, value in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue
        mask: Any = infos.get(f"_{key}")
        if _is_column(mask, num_envs) and not mask[env]:
            continue
        if isinstance(value, dict):
            part[key] = _row_of_columns(value, env, num_envs)
        else:
            part[key] = value[env] if _is_column(value, num_envs) else value
    return part
