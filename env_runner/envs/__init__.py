"""Environments: how they are made, checked, called together and made again; nothing here knows a module."""

__all__: list[str] = []
