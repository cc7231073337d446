"""The ground floor: what every part uses and that uses no part."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epibatch.core.columns import Columns

__all__ = ["ALL_MODULES", "Columns", "DEFAULT_AGENT_ID", "DEFAULT_MODULE_ID", "DEFAULT_POLICY_ID"]

DEFAULT_AGENT_ID = "default_agent"
DEFAULT_MODULE_ID = "default_policy"
DEFAULT_POLICY_ID = "default_policy"
ALL_MODULES = "__all_modules__"

_HOMES = {"Columns": "epibatch.core.columns"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
