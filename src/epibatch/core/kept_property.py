"""A property that is computed once for each object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class kept_property(Generic[T]):
    """A property that is computed when it is first asked for, and kept in the object's `__dict__` from then on.

    It is `functools.cached_property` without the lock that this takes up to Python 3.11, which costs more than most of
    what the engine computes in an acting call. Deleting the attribute forgets the value.

    Args:
        compute: Returns the value of an object.

    Examples:
        >>> class Circle:
        ...     def __init__(self, radius):
        ...         self.radius = radius
        ...     @kept_property
        ...     def area(self):
        ...         return 3 * self.radius**2
        >>> circle = Circle(2)
        >>> circle.area, vars(circle)
        (12, {'radius': 2, 'area': 12})
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> kept_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
