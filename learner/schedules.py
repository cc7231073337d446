"""Settings with values that depend on the number of environment steps learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import ConfigDict, PlainValidator, TypeAdapter, WithJsonSchema

from epibatch.core.settings import Coefficient, PositiveNumber

__all__ = ["Schedule", "ScheduledCoefficient", "ScheduledPositive", "value_at"]

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


def _scheduled(number: Any, **bounds: Any) -> Any:
    """Return the type of a number that may be a schedule.

    Args:
        number: The type of its values.
        **bounds: Bounds of a value, named as in JSON schemas.
    """
    check = TypeAdapter(number, config=ConfigDict(strict=True)).validate_python

    def checked(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return check(value)
        pairs = [list(point) if isinstance(point, (list, tuple)) else [] for point in value]
        steps = [pair[0] for pair in pairs if len(pair) == 2 and type(pair[0]) is int]
        if len(steps) < len(pairs) or steps[:1] != [0] or any(map(int.__ge__, steps, steps[1:])):
            raise ValueError("expected [[0, value], [step, value], ...] with steps that increase")
        return [[step, check(own)] for step, own in pairs]

    one = {"type": "number", **bounds}
    point = {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0}, one], "minItems": 2, "maxItems": 2}
    schema = {"anyOf": [one, {"type": "array", "items": point, "minItems": 1}]}
    return Annotated[Schedule, PlainValidator(checked), WithJsonSchema(schema)]


ScheduledPositive = _scheduled(PositiveNumber, exclusiveMinimum=0)
ScheduledCoefficient = _scheduled(Coefficient, minimum=0)
