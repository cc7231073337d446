"""Results as flat rows: what metrics files hold, one row per iteration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["RETURN_MEAN", "flat_metrics", "in_reading_order", "nested_metrics"]

RETURN_MEAN = "env_runners/episode_return_mean"
_FIRST = ("training_iteration", "num_env_steps_sampled_lifetime", RETURN_MEAN)


def flat_metrics(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers, strings and booleans of nested results under `a/b/c` keys; numbers that are not finite become None.

    Example:
        >>> flat_metrics({"learners": {"default_policy": {"vf_loss": 0.5}}, "training_iteration": 1})
        {'learners/default_policy/vf_loss': 0.5, 'training_iteration': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in results.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping):
            flat.update(flat_metrics(value, f"{prefix}{key}/"))
        elif isinstance(value, float):
            flat[f"{prefix}{key}"] = value if math.isfinite(value) else None
        elif value is None or isinstance(value, (bool, int, str)):
            flat[f"{prefix}{key}"] = value
    return flat


def nested_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """A flat row as nested results again; a key below one that has a value of its own keeps its slash.

    Example:
        >>> nested_metrics({"learners/default_policy/vf_loss": 0.5, "training_iteration": 1})
        {'learners': {'default_policy': {'vf_loss': 0.5}}, 'training_iteration': 1}
        >>> nested_metrics({"learners/loss/entropy": 0.5, "learners/loss": 1.5})
        {'learners': {'loss/entropy': 0.5, 'loss': 1.5}}
    """
    nested: dict[str, Any] = {}
    for key, value in row.items():
        parts = key.split("/")
        above = (depth for depth in range(1, len(parts)) if "/".join(parts[:depth]) in row)
        last = next(above, len(parts)) - 1
        place = nested
        for part in parts[:last]:
            place = place.setdefault(part, {})
        place["/".join(parts[last:])] = value
    return nested


def in_reading_order(columns: Iterable[str]) -> list[str]:
    """Columns with those first that one looks for first; the others keep their order.

    Example:
        >>> in_reading_order(["timers/sample", "training_iteration"])
        ['training_iteration', 'timers/sample']
    """
    known = list(columns)
    return [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]
