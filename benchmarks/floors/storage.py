"""A growing episode, and a stored one, as plain lists and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.columns import Array


def grown(observations: Sequence[Array], step: dict[str, Any]) -> dict[str, Array]:
    """A list per column, appended to at every step, then made an array.

    Args:
        observations: The reset observation and one per step.
        step: What else belongs to each step, by column; the same every time.
    """
    obs = [observations[0]]
    lists: dict[str, list[Any]] = {name: [] for name in step}
    for observation in observations[1:]:
        obs.append(observation)
        for name, own in lists.items():
            own.append(step[name])
    return {"obs": np.array(obs), **{name: np.array(own) for name, own in lists.items()}}
