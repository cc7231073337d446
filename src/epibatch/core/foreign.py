"""Objects of RLlib where one of epibatch is expected: recognised by their classes, without importing ray."""

from __future__ import annotations

from typing import Any

__all__ = ["advice_for_episode", "advice_for_piece", "is_rllibs"]


def is_rllibs(kind: type) -> bool:
    """True if a class comes from RLlib, or inherits from such a class.

    Example:
        >>> is_rllibs(dict)
        False
    """
    return any(base.__module__.startswith("ray.rllib.") for base in kind.__mro__)


def advice_for_piece(piece: Any) -> str:
    """Return the advice for one of RLlib's pieces; empty for other objects."""
    if not is_rllibs(piece if isinstance(piece, type) else type(piece)):
        return ""
    return (
        "it inherits RLlib's ConnectorV2: change the imports of its file (`epibatch port FILE --write`), "
        "or wrap it with epibatch.interop.rllib.from_rllib_piece"
    )


def advice_for_episode(kind: type) -> str:
    """Return the advice for one of RLlib's episodes; empty for other classes."""
    return "convert it with epibatch.interop.rllib.from_rllib(episode)" if is_rllibs(kind) else ""
