"""`LearnerGroup`: all learners of an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["LearnerGroup"]

ResultT = TypeVar("ResultT")


class LearnerGroup:
    """All learners of an algorithm: one, in this process.

    Args:
        learner: the learner.

    Attributes:
        learner: the learner; its modules and connector are those that the algorithm shows and saves.
        is_local: True: the learner learns in this process.
        num_learners: learners in processes of their own, so 0.

    Example:
        >>> LearnerGroup("the learner").foreach_learner(len)
        [11]
    """

    is_local = True
    num_learners = 0

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def update(self, *, episodes: Sequence[Any], metrics: Any = None) -> dict[str, dict[str, float]]:
        """Learn from episodes, as `Learner.update` does.

        Args:
            episodes: chunks as an environment runner returns them.
            metrics: logger passed to the pipeline.
        """
        results: dict[str, dict[str, float]] = self.learner.update(episodes=episodes, metrics=metrics)
        return results

    def check_next_update(self) -> None:
        """Compare acting and training again in the next update, as after an edit of a pipeline that acts."""
        self.learner.check_next_update()

    def foreach_learner(self, func: Callable[[Any], ResultT]) -> list[ResultT]:
        """Return a function's result for each learner."""
        return [func(self.learner)]

    def get_state(self) -> dict[str, Any]:
        """Return the learners' state, as `Learner.get_state` does."""
        state: dict[str, Any] = self.learner.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`, of a group with as many learners or another number.

        Raises:
            CheckpointError: as `Learner.set_state`; nothing was changed.
        """
        self.learner.set_state(state)

    def fault_report(self) -> dict[str, int]:
        """Return counts of failures of processes; empty without processes."""
        return {}

    def stop(self) -> None:
        """End the processes of the learners, if there are any."""
