"""What connector pieces report of an iteration: the values that they log, and their seconds where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epibatch.core.metrics import MetricsLogger, with_logged

from ..connectors._engine.step_watch import PieceSeconds
from ..connectors.connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["PieceReports"]


class PieceReports:
    """Gathers what the learner's pieces log, and the seconds of all pieces.

    Args:
        pipelines: the pipelines by name.
        time_pieces: whether to measure each piece; without, no clock is read.

    Attributes:
        logged: what the learner's pieces are given as `metrics`.
    """

    def __init__(self, pipelines: Mapping[str, ConnectorPipelineV2], *, time_pieces: bool) -> None:
        self.logged = MetricsLogger(times_pieces=False)
        self._watches = {name: PieceSeconds() for name in pipelines} if time_pieces else {}
        for name, watch in self._watches.items():
            pipelines[name].watch = watch

    def learners(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The learner's results with what its pieces logged.

        Raises:
            ConfigError: a piece logs under a name of the learner's own.
        """
        return with_logged(results, self.logged, "learner")

    def timers(self) -> dict[str, dict[str, float]]:
        """Seconds of each piece of each pipeline since the last call; nothing when they are not measured."""
        return {name: watch.take() for name, watch in self._watches.items()}
