"""Numbers for each entry of a Box, as what arithmetic on many rows is quick with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError, explain

__all__ = ["box_of_rows", "cached_for", "check_continuous", "is_continuous", "one_for_all"]

_MOST_BOXES = 64


def cached_for(piece: Any, box: Any, make: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What `make(box)` gives, made once as long as a piece is asked about the same Boxes."""
    known: dict[int, tuple[Any, tuple[Any, ...]]] = piece.__dict__.setdefault("_of_boxes", {})
    found = known.get(id(box))
    if found is None or found[0] is not box:
        if len(known) > _MOST_BOXES:
            known.clear()
        found = known[id(box)] = box, make(box)
    return found[1]


def box_of_rows(piece: Any) -> Any:
    """The float Box of the rows that a transform is given; None if they are of another space.

    Raises:
        SpaceError: their space is not known.
    """
    space = piece.row_space
    if space is None:
        name = type(piece).__name__
        raise SpaceError(
            explain(
                name,
                expected="the space of the actions, on whose bounds its work depends",
                found="none",
                do=f"pass it to the pipeline, or to the piece: {name}(None, action_space, ...)",
            )
        )
    return space if is_continuous(space) else None


def check_continuous(piece: Any, space: Any) -> None:
    """Refuse action spaces of which a transform of continuous actions changes nothing.

    Args:
        piece: The transform, or an agent's copy of it; another agent may have what it is for.
        space: Of the actions that come in.

    Raises:
        SpaceError: there is no float Box among the actions that it is to change.
    """
    spaces, whole = [space], getattr(piece.whole, "input_action_space", None)
    if piece.part_of is not None and isinstance(whole, gym.spaces.Dict):
        spaces = list(whole.spaces.values())
    keys = [path.keys for path in piece.paths if path.column == Columns.ACTIONS]
    if keys and not any(_has_box(own, each) for own in spaces for each in keys):
        raise SpaceError(
            explain(
                type(piece).__name__,
                expected="a float Box among the actions",
                found=", ".join(map(str, spaces)),
                do="take the piece out: these actions are choices already",
            )
        )


def _has_box(space: Any, keys: tuple[str, ...]) -> bool:
    """Whether there is a float Box in the part of a space at some keys."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        named = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        return any(_has_box(own, keys[1:]) for key, own in named if not keys or str(key) == keys[0])
    return not keys and is_continuous(space)


def is_continuous(space: Any) -> bool:
    """Whether a space is a Box of floats."""
    return isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind == "f"


def one_for_all(entries: Any) -> Any:
    """The number that all entries have, or the array of them: rows of few entries take many times as long with arrays.

    Example:
        >>> one_for_all(np.array([2.0, 2.0])), one_for_all(np.array([1.0, 2.0]))
        (np.float64(2.0), array([1., 2.]))
    """
    first = entries.flat[0] if entries.size else None
    return first if first is not None and (entries == first).all() else entries
