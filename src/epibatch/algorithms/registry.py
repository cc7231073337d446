"""Algorithms by their names: built-in ones, those of installed packages, and those that a script registers."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from epibatch.core.errors import ConfigError, RegistryError, nearest
from epibatch.core.imports import load_object
from epibatch.core.lazy import public_names

from .config.settings import algorithm_settings

if TYPE_CHECKING:
    from .algorithm_config import AlgorithmConfig

__all__ = ["algorithm_names", "config_class", "register_algorithm"]

ENTRY_POINT_GROUP = "epibatch.algorithms"
"""The group of entry points by which packages offer algorithms: name -> `module:ConfigClass`."""
ConfigClassT = TypeVar("ConfigClassT", bound="type[AlgorithmConfig]")
_registered: dict[str, type[AlgorithmConfig]] = {}


def register_algorithm(name: str) -> Callable[[ConfigClassT], ConfigClassT]:
    """Give a config class the name that YAML files, checkpoints and the command line know its algorithm by.

    The settings of the algorithm follow from the class's `training_model`. A class that is defined again under the same
    name in the same place, by running a notebook's cell twice, takes the place of the earlier one.

    Args:
        name: the name, such as "my_sac".

    Raises:
        RegistryError: the name is no identifier, or another class has it.

    Example:
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


def config_class(algorithm: str) -> type[AlgorithmConfig]:
    """Return the config class of an algorithm's name.

    Raises:
        ConfigError: no algorithm has this name.
    """
    if algorithm in _registered:
        return _registered[algorithm]
    path = _offered().get(algorithm)
    if path is None:
        raise ConfigError(
            "algorithm",
            expected="a known algorithm",
            found=repr(algorithm),
            do=f"{nearest(str(algorithm), algorithm_names())}; others come with the package that offers them",
        )
    found: type[AlgorithmConfig] = load_object(path, "algorithm")
    return found
