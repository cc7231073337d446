"""What an `Algorithm` tells its callbacks, and what they log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epibatch.core.metrics import MetricsLogger, with_logged

from ..env_runner.callbacks import ALGORITHM_EVENTS
from ..env_runner.listeners import Listeners

if TYPE_CHECKING:
    from .algorithm import Algorithm

__all__ = ["AlgorithmCallbacks"]


class AlgorithmCallbacks:
    """Calls an algorithm's callbacks.

    Args:
        algorithm: the algorithm.

    Attributes:
        logged: what callbacks are given as `metrics_logger`.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.logged = MetricsLogger(times_pieces=False)
        self._algorithm = algorithm
        self._listeners = Listeners(algorithm.config, ALGORITHM_EVENTS)

    def call(self, event: str, **keywords: Any) -> None:
        """Call what listens to an event."""
        if event in self._listeners:
            self._listeners.call(event, algorithm=self._algorithm, metrics_logger=self.logged, **keywords)

    def checkpoint_loaded(self) -> None:
        """The algorithm has taken over a checkpoint."""
        if "on_checkpoint_loaded" in self._listeners:
            self._listeners.call("on_checkpoint_loaded", algorithm=self._algorithm)

    def train_result(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The results with what was logged, as `on_train_result` leaves them.

        Raises:
            ConfigError: a callback logs under a name that is there anyway.
        """
        result = with_logged(results, self.logged, "algorithm")
        self.call("on_train_result", result=result)
        return result
