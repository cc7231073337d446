"""Runners of a group: how one is made, and one in a process of its own."""

__all__: list[str] = []
