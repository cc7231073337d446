"""Wrappers by name, Gymnasium's and ours, as a config lists them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym

from epibatch.core.errors import ConfigError, nearest

from .reset_wrappers import EpisodicLife, NoopStarts
from .step_wrappers import ActionChunks, FrameSkip

__all__ = ["WrapperSpec", "wrapper_functions", "wrapper_problem"]

WrapperSpec: TypeAlias = "str | Mapping[str, Any] | Callable[[Any], Any]"


_OURS = {wrapper.__name__: wrapper for wrapper in (ActionChunks, EpisodicLife, FrameSkip, NoopStarts)}


def wrapper_names() -> list[str]:
    """Return the names that a config can list: those of `gymnasium.wrappers`, and of the wrappers here."""
    return [*(name for name in gym.wrappers.__all__ if name != "vector"), *_OURS]


def _wrapper_class(name: str) -> Any:
    return _OURS[name] if name in _OURS else getattr(gym.wrappers, name)


def wrapper_problem(spec: Any) -> str | None:
    """Return the problem of a config's wrapper as text; None if it is valid.

    Args:
        spec: The name of a class in `gymnasium.wrappers`, or of a wrapper here; `{"wrapper": name, keyword: value,
            ...}`; or a function (or class) that is called with an environment and returns one.

    Example:
        >>> wrapper_problem({"wrapper": "TimeLimit", "max_episode_step": 5})
        "TimeLimit has no argument 'max_episode_step'. did you mean 'max_episode_steps'? Known: max_episode_steps"
    """
    if callable(spec):
        return None
    name, keywords = _parts(spec)
    if name is None:
        return f"expected a wrapper's name, {{wrapper: name, ...}} or a function, found {type(spec).__name__} {spec!r}"
    names = wrapper_names()
    if name not in names:
        return f"there is no wrapper {name!r} in gymnasium.wrappers or here. {nearest(name, names)}"
    try:
        parameters = list(inspect.signature(_wrapper_class(name)).parameters.values())[1:]
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        return f"{name} needs a package that is not installed: {error}"
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    known = {parameter.name: parameter.default is parameter.empty for parameter in parameters}
    for key in keywords:
        if key not in known:
            return f"{name} has no argument {key!r}. {nearest(key, known)}"
    missing = next((key for key, needed in known.items() if needed and key not in keywords), None)
    return None if missing is None else f"{name} needs the argument {missing!r}"


def wrapper_functions(specs: Sequence[WrapperSpec]) -> list[Callable[[Any], Any]]:
    """Return one function from environment to environment per wrapper of a config; the first is the innermost.

    Raises:
        ConfigError: a wrapper that does not exist, or keywords that it does not accept.
    """
    functions: list[Callable[[Any], Any]] = []
    for position, spec in enumerate(specs):
        problem = wrapper_problem(spec)
        if problem is not None:
            raise ConfigError(
                f"environment.wrappers[{position}]",
                expected="a wrapper's name with its keywords, or a function",
                found=problem,
                do="correct it",
            )
        if callable(spec):
            functions.append(spec)
        else:
            name, keywords = _parts(spec)
            functions.append(partial(_wrapper_class(str(name)), **keywords))
    return functions


def _parts(spec: Any) -> tuple[str | None, dict[str, Any]]:
    """Return name and keywords of a wrapper given as data."""
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, Mapping) and isinstance(spec.get("wrapper"), str):
        return spec["wrapper"], {key: value for key, value in spec.items() if key != "wrapper"}
    return None, {}
