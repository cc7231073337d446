"""The leanest NumPy and torch that make the same tensors as a pipeline, from plain columns: no episodes, no pieces."""
