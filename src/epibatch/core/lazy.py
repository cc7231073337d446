"""Packages whose public names load when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__` for names that live in other modules.

    Args:
        package: The package's `__name__`.
        homes: For each public name its module, absolute or relative to the package (".learner").

    Example:
        >>> getattr_, dir_ = lazy_exports("epibatch.core", {"Columns": ".columns"})
        >>> getattr_("Columns").OBS
        'obs'
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
