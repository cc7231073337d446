"""A check that settings can be sent to other processes; it names the part that cannot."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from epibatch.core.errors import ConfigError
from epibatch.core.imports import import_extra

_DEEPEST = 8


def is_picklable(value: Any) -> bool:
    """True if a value can be sent to another process: classes and functions of a script can, open files cannot."""
    return _error_of(value) is None


def check_picklable(settings: Mapping[str, Any]) -> None:
    """Raise if a setting cannot be sent to other processes.

    Args:
        settings: Names of settings ("environment.env") and their values.

    Raises:
        ConfigError: Names the first such setting, and the smallest part of it that cannot be pickled.
        MissingExtraError: Ray is not installed.
    """
    for name, value in settings.items():
        error = _error_of(value)
        if error is None:
            continue
        path, part = _smallest(value, name, set())
        raise ConfigError(
            name,
            expected="a value that can be pickled, to send it to other processes",
            found=f"{type(part).__name__} at {path} ({error})",
            do="make such objects in the other process: open files, locks and connections inside of the function",
        )


def _error_of(value: Any) -> str | None:
    pickle = import_extra("ray.cloudpickle", "ray", "processes that sample or learn (num_env_runners, num_learners)")
    try:
        pickle.dumps(value)
    except Exception as error:  # whatever an object's own __reduce__ raises
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def _smallest(value: Any, path: str, seen: set[int]) -> tuple[str, Any]:
    """Return the innermost part that cannot be pickled, with its path."""
    seen.add(id(value))
    if path.count(" > ") < _DEEPEST:
        for name, part in _parts(value):
            if id(part) not in seen and _error_of(part) is not None:
                return _smallest(part, f"{path} > {name}", seen)
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{position}]", item) for position, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("object", value.__self__), ("function", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    else:
        yield from getattr(value, "__dict__", {}).items()


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"variable {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global {name}", function.__globals__[name]
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "default", default
