"""Pieces made of plain functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from epibatch.core.errors import PieceError

from .column_transform import ColumnTransform
from .episode_transform import EpisodeTransform

PieceT = TypeVar("PieceT", bound=type)


def column_function(
    columns: str | Sequence[str],
    *,
    inverse: Callable[..., Any] | None = None,
    output_space: Callable[..., Any] | None = None,
    takes_tensors: bool = False,
    monotonic: bool = False,
) -> Callable[[Callable[..., Any]], type[ColumnTransform]]:
    """Make a `ColumnTransform` class of a function of rows.

    The function's first parameter is the array of rows; further ones are the piece's parameters. Instances are made by
    calling the decorated name. Its import path is the piece's name in files.

    Args:
        columns: What it is a function of.
        inverse: The function that undoes it, with the same parameters.
        output_space: Function of the space of a row, with the same parameters; default: found by trying.
        takes_tensors: Whether it works on tensors, too.
        monotonic: Whether each entry never falls, or never rises, with the same entry that goes in.

    Raises:
        PieceError: not a function of at least one parameter.

    Examples:
        >>> @column_function("rewards")
        ... def scaled(x, factor: float = 0.1):
        ...     return x * factor
        >>> scaled(factor=0.5)
        scaled(factor=0.5)
    """
    if not isinstance(columns, (str, tuple, list)):
        raise PieceError(
            "@column_function",
            expected="the column's name in parentheses",
            found="the function itself" if callable(columns) else repr(columns),
            do='write @column_function("rewards")',
        )

    def make(function: Callable[..., Any]) -> type[ColumnTransform]:
        methods = {"transform": function} | ({"inverse": inverse} if inverse else {})
        methods |= {"output_space": output_space} if output_space else {}
        attributes = {"columns": columns, "takes_tensors": takes_tensors, "monotonic": monotonic}
        return _class_of(ColumnTransform, function, methods, attributes)

    return make


def episode_function(function: Callable[..., Any]) -> type[EpisodeTransform]:
    """Make an `EpisodeTransform` class of a function of an episode.

    The function's first parameter is a SingleAgentEpisode; further ones are the piece's parameters.

    Args:
        function: Changes the episode; returns None.

    Raises:
        PieceError: not a function of at least one parameter.

    Examples:
        >>> @episode_function
        ... def penalised(episode, penalty: float = 0.5):
        ...     episode.set_rewards(new_data=episode.get_rewards() - penalty)
        >>> penalised()
        penalised(penalty=0.5)
    """
    return _class_of(EpisodeTransform, function, {"transform_episode": function}, {})


def _class_of(
    base: PieceT, function: Any, methods: dict[str, Callable[..., Any]], attributes: dict[str, Any]
) -> PieceT:
    """Return a subclass with methods that call functions with the piece's parameters."""
    parameters = _parameters(function)
    namespace: dict[str, Any] = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__annotations__": {name: _annotation(arg) for name, arg in parameters.items()},
        **{name: arg.default for name, arg in parameters.items() if arg.default is not arg.empty},
        **attributes,
        **{name: _method(method, tuple(parameters)) for name, method in methods.items()},
    }
    piece_class: Any = type(base)(function.__name__, (base,), namespace)
    return piece_class  # type: ignore[no-any-return]


def _method(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    def method(self: Any, x: Any) -> Any:
        return function(x, **{name: getattr(self, name) for name in names})

    return method


def _annotation(parameter: inspect.Parameter) -> Any:
    return Any if parameter.annotation is parameter.empty else parameter.annotation


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function after its first one."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if inspect.isfunction(function):
        parameters = list(inspect.signature(function).parameters.values())
        if parameters and not any(parameter.kind in kinds for parameter in parameters[1:]):
            return {parameter.name: parameter for parameter in parameters[1:]}
    raise PieceError(
        f"a piece of {getattr(function, '__name__', function)!r}",
        expected="a function of the rows (or the episode) and of named parameters",
        found=f"{type(function).__name__} {_signature(function)}",
        do="write def scaled(x, factor: float = 0.1): return x * factor",
    )


def _signature(function: Any) -> str:
    try:
        return f"of {inspect.signature(function)}"
    except (TypeError, ValueError):  # a class, or a function written in C
        return repr(function)
