"""The checks of the contract, grouped by topic; importing a module of this package registers its checks."""

from __future__ import annotations

__all__: list[str] = []
