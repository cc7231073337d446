"""Module classes, spaces and options as data: what specs and the checkpoints of modules hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from epibatch.core.errors import ConfigError, EpibatchError, RegistryError, add_context, nearest
from epibatch.core.import_paths import load_object
from epibatch.core.registry import plain_data
from epibatch.core.space_dicts import space_from_dict, space_to_dict

__all__ = ["class_from_name", "class_name", "fields_from_data", "fields_to_data"]

_BUILT_IN = {
    "DefaultActorCritic": "epibatch.core.rl_module:DefaultActorCritic",
    "DefaultGRUActorCritic": "epibatch.core.rl_module:DefaultGRUActorCritic",
    "DefaultLSTMActorCritic": "epibatch.core.rl_module:DefaultLSTMActorCritic",
    "MultiRLModule": "epibatch.core.rl_module:MultiRLModule",
}
_SPACES = ("observation_space", "action_space")


def class_name(cls: type | None, where: str) -> str | None:
    """The name under which a class is found again: of a built-in one its own, of others the import path.

    Args:
        cls: the class; None stays None.
        where: the beginning of the error message.

    Raises:
        ConfigError: the class is defined in a function or a script.

    Example:
        >>> from epibatch.core.rl_module import DefaultActorCritic
        >>> class_name(DefaultActorCritic, "an example")
        'DefaultActorCritic'
    """
    if cls is None:
        return None
    name = cls.__name__
    if name in _BUILT_IN and cls is load_object(_BUILT_IN[name], where):
        return name
    if "<locals>" in cls.__qualname__ or cls.__module__ == "__main__":
        _refuse(where, f"the class {cls.__qualname__}, which is defined in a function or a script")
    return f"{cls.__module__}:{cls.__qualname__}"


def class_from_name(name: str | None, where: str, *, allow_imports: bool) -> Any:
    """The class that `class_name` named.

    Raises:
        RegistryError: it is no built-in one and imports are not allowed, or it cannot be imported.
    """
    if name is None:
        return None
    if name in _BUILT_IN:
        return load_object(_BUILT_IN[name], where)
    if not isinstance(name, str) or ":" not in name:
        raise RegistryError(
            where,
            expected="the name of a module class, or an import path module:Class",
            found=repr(name),
            do=nearest(str(name), _BUILT_IN),
        )
    if not allow_imports:
        raise RegistryError(
            where,
            expected="a module class that may be imported",
            found=f"the import path {name!r}, which runs code when it is loaded",
            do="pass allow_imports=True if you trust whoever wrote it",
        )
    return load_object(name, f"{where}: module class {name!r}")


def fields_to_data(spec: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Some fields of a spec: spaces, options and plain values.

    Raises:
        ConfigError: a field holds code.
    """
    where = f"{type(spec).__name__}.to_dict"
    data: dict[str, Any] = {}
    for name in names:
        value = getattr(spec, name)
        if name in _SPACES:
            data[name] = None if value is None else _described(value, f"{where}, {name}")
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        try:
            data[name] = plain_data(str(value) if isinstance(value, Path) else value)
        except TypeError as error:
            _refuse(where, f"{name} with {error}")
    return data


def fields_from_data(cls: type, data: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the keywords of a spec's class from the output of `fields_to_data`.

    Raises:
        ConfigError: it is no dict, or has entries that the class does not know.
        SpaceError: a space cannot be read.
    """
    where = f"{cls.__name__}.from_dict"
    if not isinstance(data, Mapping):
        raise ConfigError(
            where, expected="a dict", found=type(data).__name__, do=f"pass what {cls.__name__}.to_dict gave"
        )
    for name in data:
        if name not in names:
            raise ConfigError(where, expected="entries of to_dict", found=repr(name), do=nearest(str(name), names))
    return {
        name: space_from_dict(value) if name in _SPACES and value is not None else value for name, value in data.items()
    }


def _described(space: Any, where: str) -> dict[str, Any]:
    try:
        return space_to_dict(space)
    except EpibatchError as error:
        add_context(error, f"in {where}:")
        raise


def _refuse(where: str, found: str) -> NoReturn:
    raise ConfigError(
        where,
        expected="a spec that is data: an importable class, spaces, and options of plain values",
        found=found,
        do="define the class in a module, and name functions instead of passing them",
    )
