"""Pieces that are their parameters: compared by them, written as them, shown with them."""

from __future__ import annotations

from typing import Any

from ...episodes._storage.arrays import same_value
from .fields import FieldPiece, default_of, fields_of, is_made_of_fields, must_be_given

__all__ = ["ParameterPiece"]


class ParameterPiece(FieldPiece):
    """A piece with constructor, repr, equality and data form made from the annotated attributes of its class.

    Each annotated attribute is a keyword of the constructor, with the attribute's value as default; without one it must
    be given. Values are checked against numbers, strings, booleans, None, literals and unions of these, and kept as
    they are. A default that can be changed is written `dataclasses.field(default_factory=list)`. `__post_init__` is
    called when all are set, and the spaces are set after it. `ClassVar` attributes and those without annotation are
    no parameters. The mechanism is that of `dataclasses`; a class that writes `__init__` does without it, and so do
    its subclasses: arguments are kept as they were given.

    Args:
        **parameters: The parameters of the class.

    Raises:
        PieceError: a parameter that is not given and has no default, one that is not known, or one without its name.
        ConfigError: a value of another type than its annotation.

    Example:
        >>> class Above(ParameterPiece):
        ...     threshold: float
        ...     strict: bool = True
        ...     def __call__(self, *, rl_module, batch, episodes, **kwargs):
        ...         return batch
        >>> Above(threshold=0.5)
        Above(threshold=0.5, strict=True)
        >>> Above(threshold=1) == Above(threshold=1.0)
        True
    """

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """No positional arguments, and the parameters that are not what they are by default."""
        if not is_made_of_fields(type(self)):
            return super().get_ctor_args_and_kwargs()
        return (), {
            name: getattr(self, name)
            for name, field in fields_of(type(self)).items()
            if must_be_given(field) or not same_value(getattr(self, name), default_of(field))
        }

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if not is_made_of_fields(type(self)):
            return same_value(self._ctor, other._ctor)
        return all(same_value(getattr(self, name), getattr(other, name)) for name in fields_of(type(self)))

    __hash__ = object.__hash__  # parameters may change

    def __repr__(self) -> str:
        if not is_made_of_fields(type(self)):
            return super().__repr__()
        parameters = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields_of(type(self)))
        return f"{type(self).__name__}({parameters})"
