"""Some parts of a state, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from epibatch.core.errors import UnknownNameError, nearest

__all__ = ["chosen_parts"]


def chosen_parts(
    parts: Mapping[str, Callable[[], Any]],
    components: str | Collection[str] | None,
    not_components: str | Collection[str] | None,
) -> dict[str, Any]:
    """Make the parts of a state that are asked for.

    Args:
        parts: What makes each part, by name.
        components: Names of those to make; None: all.
        not_components: Names of those to leave out.

    Raises:
        UnknownNameError: a name that is none of the parts'.

    Example:
        >>> chosen_parts({"weights": dict, "counts": list}, None, "weights")
        {'counts': []}
    """
    left_out = [not_components] if isinstance(not_components, str) else list(not_components or ())
    wanted = [components] if isinstance(components, str) else list(components or parts)
    for name in (*left_out, *wanted):
        if name not in parts:
            raise UnknownNameError(
                "get_state(...)", expected="parts of the state", found=repr(name), do=nearest(name, parts)
            )
    return {name: part() for name, part in parts.items() if name in wanted and name not in left_out}
