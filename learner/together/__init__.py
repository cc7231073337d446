"""Learners that update together, in threads and in processes."""

__all__: list[str] = []
