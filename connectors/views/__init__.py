"""Pieces that show columns at other steps."""

from __future__ import annotations

from epibatch.core.lazy import lazy_exports

__all__: list[str] = []

__getattr__, __dir__ = lazy_exports(__name__, {})
