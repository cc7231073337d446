"""The arrays behind episodes: growing columns, blocks of environments that step together, and infos."""

__all__: list[str] = []
