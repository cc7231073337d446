"""Objects of RLlib where one of epibatch is expected: recognised by their classes, without importing ray."""

from __future__ import annotations

from typing import Any

__all__ = ["advice_for_episode", "advice_for_piece", "is_rllibs"]


def is_rllibs(kind: type) -> bool:
    """Whether a class comes from RLlib, or inherits from one that does.

    Example:
        >>> is_rllibs(dict)
        False
    """
    return any(base.__module__.startswith("ray.rllib.") for base in kind.__mro__)


def advice_for_piece(piece: Any) -> str:
    """What to do with one of RLlib's pieces; nothing if it is none of them."""
    if not is_rllibs(piece if isinstance(piece, type) else type(piece)):
        return ""
    return (
        "it inherits RLlib's ConnectorV2: change the imports of its file (`epibatch port FILE --write`), "
        "or wrap it with epibatch.interop.rllib.from_rllib_piece"
    )


def advice_for_episode(kind: type) -> str:
    """What to do with one of RLlib's episodes; nothing if it is none of them."""
    return "convert it with epibatch.interop.rllib.from_rllib(episode)" if is_rllibs(kind) else ""
