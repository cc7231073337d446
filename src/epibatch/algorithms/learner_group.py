"""The learners of an algorithm under the name by which RLlib's users look for them; here there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["LearnerGroup"]

ResultT = TypeVar("ResultT")


class LearnerGroup:
    """All learners of an algorithm: one, in this process.

    Args:
        learner: the learner.

    Example:
        >>> LearnerGroup("the learner").foreach_learner(len)
        [11]
    """

    is_local = True

    def __init__(self, learner: Any) -> None:
        self._learner = learner

    def foreach_learner(self, func: Callable[[Any], ResultT]) -> list[ResultT]:
        """What a function returns for each learner."""
        return [func(self._learner)]
