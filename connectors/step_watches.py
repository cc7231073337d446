"""Watches of pipelines: what is told of each piece's run, and the seconds that pieces take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._engine.columns import Batch
    from ._engine.plan import Step


class StepWatch:
    """Callbacks for a pipeline: its `watch`, or one of its `watches`. Without one nothing is measured.

    A pipeline that is a piece of another one is watched too while that one runs.
    """

    def stepped(self, step: Step, seconds: float, batch: Batch | Mapping[str, Any]) -> None:
        """Take note of one piece.

        Args:
            step: The piece with its name.
            seconds: What it took, bringing the batch into the layout it takes included.
            batch: What it left: columns by group of chunks, or the plain dict of a piece that takes one.
        """

    def finished(self, seconds: float) -> None:
        """Take note of the end of the pipeline's run; nothing, by default.

        Args:
            seconds: What all of it took.
        """


class PieceSeconds(StepWatch):
    """Adds up the seconds of each piece over many calls.

    Examples:
        >>> from epibatch.connectors.env_to_module import EnvToModulePipeline
        >>> from epibatch.connectors.common import AddObservationsFromEpisodesToBatch
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> pipeline = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])
        >>> pipeline.watch = PieceSeconds()
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(0.5)
        >>> batch = pipeline(episodes=[episode])
        >>> list(pipeline.watch.take())
        ['add_observations_from_episodes_to_batch']
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def stepped(self, step: Step, seconds: float, batch: Batch | Mapping[str, Any]) -> None:
        """Add one piece's seconds."""
        self._seconds[step.name] = self._seconds.get(step.name, 0.0) + seconds

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what another object took.

        Args:
            seconds: By piece.
        """
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def take(self) -> dict[str, float]:
        """Seconds by piece since the last call of this method."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class MetricsTimers(StepWatch):
    """Logs each piece's seconds into a metrics logger, under the keys that RLlib uses.

    They are `<prefix>/timers/connectors/<piece>` and `<prefix>/connector_pipeline_timer`, means over the calls.

    Args:
        metrics: The logger.
        prefix: Where in the results the keys stand.
    """

    def __init__(self, metrics: Any, prefix: tuple[Any, ...]) -> None:
        self._metrics, self._prefix = metrics, prefix

    def stepped(self, step: Step, seconds: float, batch: Batch | Mapping[str, Any]) -> None:
        """Log one piece's seconds."""
        self._metrics.log_value((*self._prefix, "timers", "connectors", step.name), seconds)

    def finished(self, seconds: float) -> None:
        """Log the pipeline's seconds."""
        self._metrics.log_value((*self._prefix, "connector_pipeline_timer"), seconds)


class PartWatch(StepWatch):
    """Passes the steps of a nested pipeline, and of that pipeline alone, on to a watch of it.

    Args:
        watch: Of the nested pipeline.
        steps: That pipeline's.
    """

    def __init__(self, watch: StepWatch, steps: Sequence[Step]) -> None:
        self._watch = watch
        self._steps = {id(step.piece): step for step in steps}
        self._seconds = 0.0

    def stepped(self, step: Step, seconds: float, batch: Batch | Mapping[str, Any]) -> None:
        """Pass the step on under its name in the nested pipeline."""
        inner_step = self._steps.get(id(step.piece))
        if inner_step is not None:
            self._seconds += seconds
            self._watch.stepped(inner_step, seconds, batch)

    def finished(self, seconds: float) -> None:
        """Pass the seconds of the nested pipeline's steps on."""
        self._watch.finished(self._seconds)
