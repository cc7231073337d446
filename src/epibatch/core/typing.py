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
def override(parent: type, /) -> Callable[[T], T]: ...
@overload
def override(parent: Callable[..., Any], /) -> Callable[..., Any]: ...
def override(parent: Any, /) -> Any:
    """Mark a method as overriding one of `parent`; also usable bare.

    Examples:
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
    """Mark a class or function: public, for developers of extensions, or a place for users' own logic.

    `DeveloperAPI`, `OverrideToImplementCustomLogic` and `OverrideToImplementCustomLogic_CallToSuperRecommended` are
    other names of it.

    Examples:
        >>> @PublicAPI(stability="alpha")
        ... def double(x):
        ...     return 2 * x
        >>> double(2)
        4
    """
    if target and not options:
        return target[0]
    return lambda marked: marked


DeveloperAPI = PublicAPI
OverrideToImplementCustomLogic = PublicAPI
OverrideToImplementCustomLogic_CallToSuperRecommended = PublicAPI
