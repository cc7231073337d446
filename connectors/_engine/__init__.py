"""How one call of a pipeline runs: episodes, groups of chunks, columns, layouts, and the loop over pieces."""

__all__: list[str] = []
