"""Arguments of a piece's constructor: names, defaults, and values of the annotated types."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

_PLAIN = {"greater than or equal to": "at least", "less than or equal to": "at most", "greater than": "above"}
_CHECKED = (bool, int, float, str, type(None))


def constructor_keywords(cls: type) -> dict[str, bool]:
    """Keywords that a class's constructor names, each with whether it must be given."""
    return {name: parameter.default is parameter.empty for name, parameter in constructor_parameters(cls).items()}


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Parameters that a class's constructor names and that can be given as keywords.

    A constructor that ends in `**kwargs` passes the rest on, so the classes above it are read too.
    Whatever no constructor names counts as unknown: it would be swallowed in silence.
    """
    return {name: parameter for name, (parameter, _) in _parameters(cls).items()}


def _parameters(cls: type) -> dict[str, tuple[inspect.Parameter, Any]]:
    """Each parameter with the constructor that names it."""
    by_name: dict[str, tuple[inspect.Parameter, Any]] = {}
    for owner in cls.__mro__:
        init = owner.__dict__.get("__init__")
        if init is None or owner is object:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                by_name.setdefault(parameter.name, (parameter, init))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return by_name


def wrong_values(cls: type, values: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Values of another type than the constructor says, each as (what was expected, what was found).

    Only numbers, strings, booleans, None, literals and unions of these are checked, by the rules of configs: a
    string is no number, a boolean no integer, an integer is a float. `Annotated[int, Ge(1)]` has bounds, those of
    `annotated_types`.

    Args:
        cls: The class.
        values: Keyword -> value.

    Examples:
        >>> from epibatch.connectors.common import FrameStacking
        >>> wrong_values(FrameStacking, {"num_frames": "4"})
        {'num_frames': ('a valid integer', "str '4'")}
    """
    misfits = {}
    for name, hint in _hints(cls).items():
        if name not in values:
            continue
        value = values[name].item() if isinstance(values[name], np.generic) else values[name]
        expected = _misfit(hint, value)
        if expected:
            misfits[name] = (expected, f"{type(value).__name__} {value!r}")
    return misfits


def _misfit(hint: Any, value: Any) -> str:
    """Return the expected form of a value; empty if the value fits."""
    from pydantic import ValidationError

    try:
        _adapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        texts = [detail["msg"].removeprefix("Input should be ") for detail in error.errors(include_url=False)]
        text = " or ".join(dict.fromkeys(texts))
        for phrase, plain in _PLAIN.items():
            text = text.replace(phrase, plain)
        return text
    return ""


@functools.lru_cache(maxsize=512)
def _hints(cls: type) -> dict[str, Any]:
    """Return keyword -> type, for keywords with types that can be checked."""
    hints = {}
    for name, (_, init) in _parameters(cls).items():
        hint = _resolved(init).get(name)
        if hint is not None and _checkable(hint):
            hints[name] = hint
    return hints


def _resolved(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):  # names that exist only for type checkers
        return {}


def _checkable(hint: Any) -> bool:
    if get_origin(hint) is Annotated:  # with bounds
        return _checkable(hint.__origin__)
    if get_origin(hint) in (Union, types.UnionType):
        return all(map(_checkable, get_args(hint)))
    return hint in _CHECKED or get_origin(hint) is Literal


@functools.lru_cache(maxsize=128)
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter  # here, so that listing and importing pieces does not wait for it

    return TypeAdapter(hint)
