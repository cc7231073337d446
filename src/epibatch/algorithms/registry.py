"""Algorithms by their names: built-in ones, those of installed packages, and those that a script registers."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from epibatch.core.errors import ConfigError, EpibatchWarning, RegistryError, nearest
from epibatch.core.imports import ALLOW_IMPORTS, load_object
from epibatch.core.lazy import public_names

from .config.settings import algorithm_settings

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

ENTRY_POINT_GROUP = "epibatch.algorithms"
"""The group of entry points by which packages offer algorithms: name -> `module:ConfigClass`."""
ConfigClassT = TypeVar("ConfigClassT", bound="type[AlgorithmConfig]")
_registered: dict[str, type[AlgorithmConfig]] = {}


def register_algorithm(name: str) -> Callable[[ConfigClassT], ConfigClassT]:
    """Give a config class the name that YAML files, checkpoints and the command line know its algorithm by.

    The settings of the algorithm follow from the class's `training_model`. A class that is defined again under the same
    name in the same place, by running a notebook's cell twice, takes the place of the earlier one.

    Args:
        name: The name, such as "my_sac".

    Raises:
        RegistryError: the name is no identifier, or another class has it.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> config_class("ppo") is PPOConfig
        True
    """
    if not name.isidentifier():
        raise RegistryError(
            "register_algorithm", expected="a name of letters, digits and _", found=repr(name), do='write "my_sac"'
        )

    def registered(cls: ConfigClassT) -> ConfigClassT:
        taken = _path(_registered[name]) if name in _registered else _built_in().get(name)
        if taken not in (None, _path(cls)):
            raise RegistryError(
                f"register_algorithm({name!r})",
                expected="a name that is free",
                found=f"that of {taken}",
                do="rename it",
            )
        if "model" not in vars(cls):
            cls.use_settings(algorithm_settings(name, cls.training_model, cls))
        _registered[name] = cls
        return cls

    return registered


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def import_path(cls: type) -> str | None:
    """Return the import path of a class; None if it was defined in a function or a script."""
    return None if "<locals>" in cls.__qualname__ or cls.__module__ == "__main__" else _path(cls)


def _path_beside_name(cls: type[AlgorithmConfig]) -> str | None:
    """Return the import path of a config class that no installed package offers by its name; None for others."""
    path = import_path(cls)
    return None if path == _offered().get(cls.model.default_of("algorithm")) else path


def name_in_files(cls: type[AlgorithmConfig]) -> str:
    """Return what files call the algorithm of a config: its import path if a module registers the name, else the name.

    Examples:
        >>> from epibatch.algorithms.ppo import PPOConfig
        >>> name_in_files(PPOConfig)
        'ppo'
    """
    name: str = cls.model.default_of("algorithm")
    return (_path_beside_name(cls) if _registered.get(name) is cls else None) or name


def _built_in() -> dict[str, str]:
    """Return the path of the config class of each algorithm of epibatch: `XConfig` in the module `x`."""
    found = {}
    for name, module in public_names("epibatch.algorithms").items():
        stem = module.rpartition(".")[2]
        if name == f"{stem.upper()}Config":
            found[stem] = f"{module}:{name}"
    return found


@cache
def _offered() -> dict[str, str]:
    points = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return {**points, **_built_in()}


def algorithm_names() -> list[str]:
    """Return the names of all algorithms that can be used."""
    return sorted({*_offered(), *_registered})


def config_class(algorithm: str, *, allow_imports: bool = False) -> type[AlgorithmConfig]:
    """Return the config class of an algorithm.

    Args:
        algorithm: Its name, or the import path `module:Config` of a registered class.
        allow_imports: True if a module that was not imported yet may be; importing runs code.

    Raises:
        ConfigError: no algorithm has this name, imports are not allowed, or the path leads to no registered class.
        RegistryError: the class cannot be imported.
    """
    where, path = f"algorithm {algorithm!r}", _offered().get(algorithm)
    known = {**{_path(cls): cls for cls in _registered.values()}, **_registered}
    if algorithm in known:
        return known[algorithm]
    if path is None and not (allow_imports and ":" in algorithm):
        found, do = "no algorithm that is installed", nearest(algorithm, algorithm_names())
        do += "; others come with the package that offers them, or are named by path, algorithm: my_module:MyConfig"
        if ":" in algorithm:
            found, do = "an import path, which runs code when it is loaded", f"allow it with {ALLOW_IMPORTS}"
        raise ConfigError(where, expected="a known algorithm", found=found, do=do)
    cls: type[AlgorithmConfig] = load_object(path or algorithm, where)
    if path is None and cls not in _registered.values():
        do = 'write @register_algorithm("my_sac") above the class, and name the class itself'
        raise ConfigError(where, expected="a config that is registered", found=f"{cls!r}, which is not", do=do)
    return cls


def describe_class(cls: type[AlgorithmConfig]) -> dict[str, str | None]:
    """Return what a checkpoint says of the class of a config.

    Returns:
        `algorithm`: its name; `config_class`: its import path, if no installed package offers it by that name;
        `package`: the distribution that does, if that is not epibatch.
    """
    name = cls.model.default_of("algorithm")
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
    package = next((point.dist.name for point in points if point.dist), None)
    return {"algorithm": name, "config_class": _path_beside_name(cls), "package": package}


def described_class(description: Mapping[str, Any], *, allow_imports: bool) -> type[AlgorithmConfig]:
    """Return the config class that `describe_class` described, by its name, or by its path if that is another class's.

    Raises:
        ConfigError: as for `config_class`.
    """
    name, path = str(description["algorithm"]), description.get("config_class")  # of earlier versions: the name alone
    found = config_class(name) if name in algorithm_names() else None
    if path and allow_imports and (found is None or import_path(found) != path):
        found = load_object(path, "config_class")
    elif found is not None and path not in (None, import_path(found)):
        warning = EpibatchWarning(
            f"checkpoint of {path}",
            expected="its own config class, which may add pieces, a rule or a source",
            found=f"{found.__name__}, since loading the other one runs code",
            do="pass allow_imports=True for a checkpoint that you trust, or config=",
        )
        warnings.warn(warning, stacklevel=4)
    return found or config_class(name if description.get("package") or not path else path)
