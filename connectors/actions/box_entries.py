"""Numbers for each entry of a Box, as what arithmetic on many rows is quick with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError

from ..authoring.column_transform import ColumnTransform

__all__ = ["BoxActionTransform", "is_continuous", "numbers_for", "one_for_all"]

_MOST_SPACES = 64


def numbers_for(piece: Any, make: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """What `make(box)` gives for the float Box of the rows that a transform is given; None for rows of another space.

    It is made once as long as the rows are of the same spaces.

    Args:
        piece: The transform, while it runs.
        make: Function of a Box.

    Raises:
        SpaceError: the space of the rows is not known.
    """
    space = piece.row_space
    known: dict[int, tuple[Any, tuple[Any, ...] | None]] = piece.__dict__.setdefault("_of_spaces", {})
    found = known.get(id(space))
    if found is None or found[0] is not space:
        if space is None:
            raise SpaceError(
                type(piece).__name__,
                expected="the space of the actions, on whose bounds its work depends",
                found="none",
                do=f"pass it to the pipeline, or to the piece: {type(piece).__name__}(None, action_space, ...)",
            )
        if len(known) > _MOST_SPACES:
            known.clear()
        found = known[id(space)] = space, make(space) if is_continuous(space) else None
    return found[1]


class BoxActionTransform(ColumnTransform):
    """A transform of the float Boxes among actions, by the bounds of the agent's own space."""

    _is_base: ClassVar[bool] = True
    uses_spaces: ClassVar[bool] = True

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of transformed actions.

        Raises:
            SpaceError: there is no float Box among the actions that are to change.
        """
        spaces, whole = [input_action_space], getattr(self.whole, "input_action_space", None)
        if self.part_of is not None and isinstance(whole, gym.spaces.Dict):
            spaces = list(whole.spaces.values())  # another agent may have what the piece is for
        keys = [path.keys for path in self.paths if path.column == Columns.ACTIONS]
        if keys and not any(_has_box(own, each) for own in spaces for each in keys):
            raise SpaceError(
                type(self).__name__,
                expected="a float Box among the actions",
                found=", ".join(map(str, spaces)),
                do="take the piece out: these actions are choices already",
            )
        return super().recompute_output_action_space(input_observation_space, input_action_space)


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
