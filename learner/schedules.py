"""Settings with values that depend on the number of environment steps learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import ConfigDict, PlainValidator, TypeAdapter, WithJsonSchema

from epibatch.core.plain import python_scalar
from epibatch.core.settings import Coefficient, PositiveNumber

from ..episodes.vector_episodes import VectorEpisodes

Schedule: TypeAlias = float | Sequence[Sequence[float]]
"""A number, or `[[0, value], [step, value], ...]`: values at counts of environment steps, which must increase."""


def value_at(schedule: Schedule, num_env_steps: int) -> float:
    """Return a schedule's value after some steps: linear between two points, constant after the last point.

    Args:
        schedule: A number, or the points; the form is RLlib's.
        num_env_steps: Environment steps learned from so far.

    Example:
        >>> value_at([[0, 1.0], [100, 0.5]], 50), value_at([[0, 1.0], [100, 0.5]], 200), value_at(0.1, 7)
        (0.75, 0.5, 0.1)
    """
    if isinstance(schedule, (int, float)):
        return float(schedule)
    steps, values = zip(*schedule)
    return float(np.interp(num_env_steps, steps, values))


def count_steps(episodes: Sequence[Any]) -> int:
    """Count the environment steps of episodes; an item without a length has none.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> columns = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [0.0, 0.0]}
        >>> count_steps([SingleAgentEpisode(**columns, len_lookback_buffer=0)] * 3)
        6
    """
    if isinstance(episodes, VectorEpisodes):
        return int(episodes.lengths().sum())
    return sum(len(episode) for episode in episodes if hasattr(episode, "__len__"))


def _step(value: Any) -> float:
    """Return a whole number of steps as an int, and NaN for anything else; NaN is never in order."""
    is_int = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and value % 1 == 0
    return int(value) if is_int else float("nan")


def _scheduled(number: Any, **bounds: Any) -> Any:
    """Return the type of a number that may be a schedule, with values from 0.

    Args:
        number: The type of the number.
        **bounds: Of the number, as JSON schemas name them.
    """
    check, check_point = (
        TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python for kind in (number, Coefficient)
    )

    def checked(value: Any) -> Any:
        if callable(value) or isinstance(value, Mapping):
            raise ValueError("expected a number, or a schedule [[0, value], [step, value], ...]")
        value = python_scalar(value)
        if not isinstance(value, (list, tuple)):
            return check(value)
        pairs = [list(point) if isinstance(point, (list, tuple)) else [] for point in value]
        steps = [_step(pair[0]) for pair in pairs if len(pair) == 2]
        if len(steps) < len(pairs) or steps[:1] != [0] or not all(left < right for left, right in pairwise(steps)):
            raise ValueError("expected [[0, value], [step, value], ...] with whole numbers of steps that increase")
        return [[step, check_point(pair[1])] for step, pair in zip(steps, pairs)]

    constant, value = {"type": "number", **bounds}, {"type": "number", "minimum": 0}
    point = {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0}, value], "minItems": 2, "maxItems": 2}
    schema = {"anyOf": [constant, {"type": "array", "items": point, "minItems": 1}]}
    return Annotated[Schedule, PlainValidator(checked), WithJsonSchema(schema)]


ScheduledPositive = _scheduled(PositiveNumber, exclusiveMinimum=0)
ScheduledCoefficient = _scheduled(Coefficient, minimum=0)
