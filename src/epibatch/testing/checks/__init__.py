"""The checks of the contract, grouped by what they look at; importing a module of this package makes its checks."""

from __future__ import annotations

__all__: list[str] = []
