"""What a pipeline did and costs: traces, column spaces and profiles."""

__all__: list[str] = []
