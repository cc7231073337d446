"""Steps, cuts, states and facts of episodes."""

__all__: list[str] = []
