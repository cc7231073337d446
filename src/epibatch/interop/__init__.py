"""Exchange with other libraries: one package for each, which loads the library when it is used."""

from __future__ import annotations

__all__: list[str] = []
