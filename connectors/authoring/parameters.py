"""Pieces whose parameters are the annotated attributes of their class."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.errors import PieceError

from ...episodes._storage.arrays import same_value
from ..connector_v2 import ConnectorV2

__all__ = ["ParameterPiece"]

_SPACES = ("input_observation_space", "input_action_space")


class ParameterPiece(ConnectorV2):
    """A piece whose constructor, repr, equality and data form come from the annotated attributes of its class.

    Each annotated attribute is a keyword of the constructor, with the attribute's value as default; without one it must
    be given. Values are checked against numbers, strings, booleans, None, literals and unions of these, and kept as
    they are. A default that can be changed is written `dataclasses.field(default_factory=list)`. `__post_init__` is
    called when all are set, and the spaces are set after it. `ClassVar` attributes and those without annotation are
    no parameters. The mechanism is that of `dataclasses`; a class that writes `__init__` does without it, and so do
    its subclasses: arguments are kept as they were given.

    Args:
        input_observation_space: Space of the observations that come in.
        input_action_space: Space of the actions that come in.
        **parameters: The parameters of the class.

    Raises:
        PieceError: a parameter that is not given and has no default, one that is not known, or one without its name.
        ConfigError: a value of another type than its annotation.

    Example:
        >>> class Above(ParameterPiece):
        ...     threshold: float
        ...     strict: bool = True
        ...     def __call__(self, *, rl_module, batch, episodes, **kwargs):
        ...         return batch
        >>> Above(threshold=0.5)
        Above(threshold=0.5, strict=True)
        >>> Above(threshold=1) == Above(threshold=1.0)
        True
    """

    _is_base: ClassVar[bool] = True
    _fields: ClassVar[tuple[dataclasses.Field[Any], ...]] = ()
    _writes_constructor: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("_is_base"):
            return
        if cls._writes_constructor or "__init__" in cls.__dict__:
            cls._writes_constructor = True
            return
        _refuse_shared_defaults(cls)
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        cls._fields = tuple(field for field in dataclasses.fields(cls) if field.init)  # type: ignore[arg-type]
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        **parameters: Any,
    ) -> None:
        cls = type(self)
        _check_spaces(cls, input_observation_space, input_action_space)
        missing = [name for name, field in _named(cls).items() if name not in parameters and _needed(field)]
        if missing:
            raise PieceError(
                f"{cls.__name__}(...)",
                expected=f"the parameter{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
                found=", ".join(parameters) or "no parameters",
                do=f"pass {missing[0]}=..., or give it a default in the class",
            )
        for name, field in _named(cls).items():
            setattr(self, name, parameters[name] if name in parameters else _default(field))
        self.__post_init__()
        self._prepare()
        super().__init__(input_observation_space, input_action_space)

    def __post_init__(self) -> None:
        """Check the parameters, and make of them what the piece needs; they are set, the spaces are not."""

    def _prepare(self) -> None:
        """What a base class does once the parameters are set and checked."""

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """No positional arguments, and the parameters that are not what they are by default."""
        if self._writes_constructor:
            return super().get_ctor_args_and_kwargs()
        return (), {
            name: getattr(self, name)
            for name, field in _named(type(self)).items()
            if _needed(field) or not same_value(getattr(self, name), _default(field))
        }

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if self._writes_constructor:
            return same_value(self._ctor, other._ctor)
        return all(same_value(getattr(self, name), getattr(other, name)) for name in _named(type(self)))

    def __hash__(self) -> int:
        return hash(type(self))  # parameters may change, and pieces that are equal need one hash

    def __repr__(self) -> str:
        if self._writes_constructor:
            return super().__repr__()
        parameters = ", ".join(f"{name}={getattr(self, name)!r}" for name in _named(type(self)))
        return f"{type(self).__name__}({parameters})"


def _refuse_shared_defaults(cls: type[ParameterPiece]) -> None:
    """Refuse a default that all pieces of the class would have in common, and change together."""
    for name in inspect.get_annotations(cls):
        value = cls.__dict__.get(name)
        if getattr(type(value), "__hash__", None) is None:
            is_empty = isinstance(value, (list, dict, set)) and not value
            made = f"dataclasses.field(default_factory={type(value).__name__ if is_empty else f'lambda: {value!r}'})"
            do = f"write {name} = {made}" + (f", or a tuple, {tuple(value)!r}" if isinstance(value, list) else "")
            raise PieceError(
                f"{cls.__name__}.{name}",
                expected="a default that cannot be changed, or a function that makes one for each piece",
                found=f"{type(value).__name__} {value!r}, one for all pieces",
                do=do,
            )


def _named(cls: type[ParameterPiece]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in cls._fields}


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _constructor(cls: type[ParameterPiece]) -> Any:
    """The constructor of one class, whose signature says what its parameters are."""

    def __init__(
        self: Any, input_observation_space: Any = None, input_action_space: Any = None, **parameters: Any
    ) -> None:
        ParameterPiece.__init__(self, input_observation_space, input_action_space, **parameters)

    kind, hints = inspect.Parameter, _hints(cls)
    spaces = list(inspect.signature(__init__).parameters.values())[:3]
    keywords = [
        kind(name, kind.KEYWORD_ONLY, default=kind.empty if _needed(field) else _default(field))
        for name, field in _named(cls).items()
    ]
    __init__.__signature__ = inspect.Signature([*spaces, *keywords])  # type: ignore[attr-defined]
    __init__.__annotations__ = {name: hints[name] for name in _named(cls)}
    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    return __init__


def _hints(cls: type) -> dict[str, Any]:
    """Parameter -> its type, as far as the annotations can be read where they were written."""
    hints: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(owner).items():
            if isinstance(annotation, str):
                scope = {**vars(sys.modules[owner.__module__]), **vars(owner)}
                try:
                    annotation = eval(annotation, scope)
                except Exception:  # a name that exists only for type checkers
                    annotation = Any
            hints[name] = annotation
    return hints


def _check_spaces(cls: type[ParameterPiece], *spaces: Any) -> None:
    """Refuse a parameter that was given without its name, and so landed where a space belongs."""
    for name, space in zip(_SPACES, spaces):
        if space is not None and not isinstance(space, gym.Space):
            parameter = next(iter(_named(cls)), "parameter")
            raise PieceError(
                f"{cls.__name__}(...), {name}",
                expected="a gymnasium space",
                found=f"{type(space).__name__} {space!r}",
                do=f"give parameters by name: {cls.__name__}({parameter}={space!r})",
            )
