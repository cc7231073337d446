"""Plain NumPy and torch, written for speed: a pipeline's tensors from plain columns, without episodes and pieces."""
