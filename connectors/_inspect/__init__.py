"""Traces, column spaces and profiles of a pipeline."""

__all__: list[str] = []
