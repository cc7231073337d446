"""Moves files written for RLlib here: their imports are changed, and what is left to do is listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .module_table import module_here
    from .ported_source import Leftover, PortedSource, port_source

__all__ = ["Leftover", "PortedSource", "module_here", "port_source"]

__getattr__, __dir__ = lazy_exports(__name__)
