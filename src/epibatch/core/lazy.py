"""Packages with public names that load at first use (PEP 562), and suggestions for wrong names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any, NoReturn

from .errors import RenamedError, nearest

__all__ = ["MovedAttribute", "lazy_exports", "public_names"]

_ROOT = __name__.partition(".")[0]


@cache
def public_names(package: str) -> dict[str, str]:
    """Return the public names of a package, each with the module that it is imported from.

    The package's stub `__init__.pyi` states them: one import for each module, and annotations of the constants that the
    package itself defines.

    Args:
        package: The package's `__name__`.

    Examples:
        >>> public_names("epibatch.learner")["PPOLoss"]
        'epibatch.learner.ppo_loss'
    """
    spec: Any = find_spec(package)
    statements = ast.parse(spec.loader.get_data(f"{spec.origin}i")).body
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    targets = [statement.target for statement in statements if isinstance(statement, ast.AnnAssign)]
    constants = [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")]
    return dict.fromkeys(constants, package) | {
        alias.name: resolve_name("." * statement.level + (statement.module or ""), package)
        for statement in imports
        for alias in statement.names
    }


def lazy_exports(
    package: str, renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, which import the names of its stub when they are first used.

    Args:
        package: The package's `__name__`.
        renamed: The names that are gone, each with what to use in its place. Importing one is a named error.

    Examples:
        >>> getattr_, dir_ = lazy_exports("epibatch.learner")
        >>> getattr_("PPOLoss").__name__
        'PPOLoss'
    """

    def get(name: str) -> Any:
        names = public_names(package)
        if name == "__all__":
            return sorted(names)
        if name not in names:
            if renamed is not None and name in renamed:
                found = f"{name}, its old name"
                raise RenamedError(f"{package}.{name}", expected=renamed[name], found=found, do="change the import")
            # Python asks for a submodule here before it imports it.
            plain = name.startswith("_") or _is_submodule(package, name)
            raise AttributeError(_no_such_name(package, name, hint=not plain))
        if names[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(names[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public_names(package)})

    return get, names


class MovedAttribute:
    """Class attribute that is not there: reading it is an AttributeError that says what to use.

    Args:
        advice: What to use.

    Examples:
        >>> class Model:
        ...     predict = MovedAttribute("use act()")
        >>> Model.predict
        Traceback (most recent call last):
            ...
        AttributeError: Model has no attribute 'predict': use act()
        >>> hasattr(Model(), "predict")
        False
    """

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__} has no attribute {self.name!r}: {self.advice}")


class _WrongNames:
    """The last finder of `sys.meta_path`: what is asked of it is not in epibatch, and the error says what is.

    The import system drops an error that names the module which was asked for, so this one does not.
    """

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        package, _, name = fullname.rpartition(".")
        if package.partition(".")[0] != _ROOT or name.startswith("_"):
            return
        is_import = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"  # importlib.util.find_spec gets None
        if is_import and not getattr(sys.modules[package].__spec__, "_initializing", False):
            raise ModuleNotFoundError(_no_such_name(package, name))


def _no_such_name(package: str, name: str, *, hint: bool = True) -> str:
    text = f"module {package!r} has no attribute {name!r}"
    if not hint:
        return text
    packages = list(_packages_with(name))
    names = getattr(sys.modules[package], "__all__", ())
    return f"{text}; {'import it from ' + ' or '.join(packages) if packages else nearest(name, names)}"


def _is_submodule(package: str, name: str) -> bool:
    return PathFinder.find_spec(f"{package}.{name}", getattr(sys.modules[package], "__path__", None)) is not None


def _packages_with(name: str) -> Iterator[str]:
    """The packages of epibatch that export a name; importing them loads no torch."""
    import pkgutil  # here, because only errors need it

    for info in pkgutil.walk_packages(sys.modules[_ROOT].__path__, f"{_ROOT}."):
        if info.ispkg and name in getattr(import_module(info.name), "__all__", ()):
            yield info.name


sys.meta_path.append(_WrongNames())
