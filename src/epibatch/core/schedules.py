"""Values that depend on a number of environment steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Schedule: TypeAlias = float | Sequence[Sequence[float]]
"""A number, or `[[0, value], [step, value], ...]`: values at counts of environment steps, which must increase."""


def value_at(schedule: Schedule, num_env_steps: int) -> float:
    """Return a schedule's value after some steps: linear between two points, constant after the last point.

    Args:
        schedule: A number, or the points; the form is RLlib's.
        num_env_steps: Environment steps so far.

    Examples:
        >>> value_at([[0, 1.0], [100, 0.5]], 50), value_at([[0, 1.0], [100, 0.5]], 200), value_at(0.1, 7)
        (0.75, 0.5, 0.1)
    """
    if isinstance(schedule, (int, float)):
        return float(schedule)
    steps, values = zip(*schedule)
    return float(np.interp(num_env_steps, steps, values))
