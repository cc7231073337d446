"""Type aliases and decorators that files ported from RLlib import; the decorators change nothing.

New code does not need them: annotate with the real classes, and leave the decorators out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

__all__ = [
    "AgentID",
    "DeveloperAPI",
    "DeviceType",
    "EpisodeID",
    "EpisodeType",
    "ModuleID",
    "OverrideToImplementCustomLogic",
    "OverrideToImplementCustomLogic_CallToSuperRecommended",
    "PublicAPI",
    "ResultDict",
    "StateDict",
    "TensorType",
    "override",
]

AgentID: TypeAlias = Any
DeviceType: TypeAlias = Any
EpisodeID: TypeAlias = "int | str"
EpisodeType: TypeAlias = Any
ModuleID: TypeAlias = str
ResultDict: TypeAlias = dict[str, Any]
StateDict: TypeAlias = dict[str, Any]
TensorType: TypeAlias = Any

T = TypeVar("T")


@overload
def _mark(target: T, /) -> T: ...
@overload
def _mark(**options: Any) -> Callable[[T], T]: ...
def _mark(*target: Any, **options: Any) -> Any:
    if target and not options:
        return target[0]
    return lambda marked: marked


@overload
def override(parent: type, /) -> Callable[[T], T]: ...
@overload
def override(parent: Callable[..., Any], /) -> Callable[..., Any]: ...
def override(parent: Any, /) -> Any:
    """Mark a method as overriding one of `parent`; also usable bare.

    Example:
        >>> class Base:
        ...     pass
        >>> class Child(Base):
        ...     @override(Base)
        ...     def name(self):
        ...         return "child"
        >>> Child().name()
        'child'
    """
    if isinstance(parent, type):
        return lambda method: method
    return parent


@overload
def PublicAPI(target: T, /) -> T: ...
@overload
def PublicAPI(**options: Any) -> Callable[[T], T]: ...
def PublicAPI(*target: Any, **options: Any) -> Any:
    """Mark a class or function as public.

    Example:
        >>> @PublicAPI(stability="alpha")
        ... def double(x):
        ...     return 2 * x
        >>> double(2)
        4
    """
    return _mark(*target, **options)


@overload
def DeveloperAPI(target: T, /) -> T: ...
@overload
def DeveloperAPI(**options: Any) -> Callable[[T], T]: ...
def DeveloperAPI(*target: Any, **options: Any) -> Any:
    """Mark a class or function as meant for developers of extensions."""
    return _mark(*target, **options)


@overload
def OverrideToImplementCustomLogic(target: T, /) -> T: ...
@overload
def OverrideToImplementCustomLogic(**options: Any) -> Callable[[T], T]: ...
def OverrideToImplementCustomLogic(*target: Any, **options: Any) -> Any:
    """Mark a method as a place for users' own logic."""
    return _mark(*target, **options)


@overload
def OverrideToImplementCustomLogic_CallToSuperRecommended(target: T, /) -> T: ...
@overload
def OverrideToImplementCustomLogic_CallToSuperRecommended(**options: Any) -> Callable[[T], T]: ...
def OverrideToImplementCustomLogic_CallToSuperRecommended(*target: Any, **options: Any) -> Any:
    """Mark a method as a place for users' own logic that should call the inherited method too."""
    return _mark(*target, **options)
