"""Masks of legal actions: how they lie, and random actions within them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import SpaceError

__all__ = ["choice_counts", "has_legal_choices", "random_legal_actions"]

Mask = npt.NDArray[np.bool_]


def choice_counts(space: gym.Space[Any] | None) -> list[int]:
    """Return the number of choices of each entry of an action; a mask has one value per choice, concatenated.

    Raises:
        SpaceError: actions that are not chosen among a few.

    Example:
        >>> choice_counts(gym.spaces.MultiDiscrete([2, 3]))
        [2, 3]
    """
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts: list[int] = space.nvec.ravel().tolist()
        return counts
    if isinstance(space, gym.spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    raise SpaceError(
        "a mask of legal actions",
        expected="a Discrete, MultiDiscrete or MultiBinary action space",
        found=str(space),
        do="mask choices of such spaces; of a Dict's parts in a module of your own, with mask_logits",
    )


def has_legal_choices(mask: Mask, counts: list[int]) -> Mask:
    """True for each row in which every entry of an action has a legal choice: bool [rows].

    Args:
        mask: bool [rows, sum of counts].
        counts: Choices of each entry.
    """
    if len(counts) == 1:
        return np.asarray(mask.any(1))
    starts = np.cumsum([0, *counts[:-1]], dtype=np.int64)
    return np.asarray(np.logical_or.reduceat(mask, starts, axis=1).all(1))


def random_legal_actions(space: gym.Space[Any], mask: Mask, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Draw uniform legal actions of a space; an entry without a legal choice is drawn among all choices.

    Args:
        space: Discrete, MultiDiscrete or MultiBinary.
        mask: bool [rows, choices]; the choices of several entries are concatenated.
        rng: The random generator.

    Returns:
        An array [rows, ...] of the space's type.

    Example:
        >>> mask = np.array([[False, True, False], [False, False, True]])
        >>> random_legal_actions(gym.spaces.Discrete(3, start=5), mask, np.random.default_rng(0))
        array([6, 7])
    """
    counts = choice_counts(space)
    mask = np.where(has_legal_choices(mask, counts)[:, None], mask, True)
    numbers = np.where(mask, rng.random(mask.shape), -1.0)
    ends = np.cumsum(counts).tolist()
    columns = [numbers[:, end - count : end].argmax(1) for end, count in zip(ends, counts)]
    start = np.asarray(getattr(space, "start", 0))
    chosen = np.stack(columns, 1).reshape(len(mask), *(space.shape or ())) + start
    actions: npt.NDArray[Any] = chosen.astype(space.dtype)
    return actions
