"""A config: its sections, its methods, its YAML form, and what is built from them."""

__all__: list[str] = []
