"""Who is told about every step of a pipeline's run, and how long it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .plan import Step

if TYPE_CHECKING:
    from ..connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["MetricsTimers", "PieceSeconds", "StepWatch", "watches_of"]


class StepWatch(Protocol):
    """What watches a pipeline: its `watch`, or one of its `watches`. Without one nothing is measured.

    A pipeline that is a piece of another one is watched too while that one runs.
    """

    def stepped(self, step: Step, seconds: float, batch: dict[str, Any]) -> None:
        """Take note of one piece.

        Args:
            step: The piece with its name.
            seconds: What it took, bringing the batch into the layout it takes included.
            batch: What it left.
        """

    def finished(self, seconds: float) -> None:
        """Take note of the end of the pipeline's run.

        Args:
            seconds: What all of it took.
        """


class PieceSeconds:
    """Adds up the seconds of each piece over many calls.

    Example:
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

    def stepped(self, step: Step, seconds: float, batch: dict[str, Any]) -> None:
        """Add one piece's seconds."""
        self._seconds[step.name] = self._seconds.get(step.name, 0.0) + seconds

    def finished(self, seconds: float) -> None:
        """Nothing: the pieces' seconds are all that is kept."""

    def take(self) -> dict[str, float]:
        """Seconds by piece since the last call of this method."""
        taken, self._seconds = self._seconds, {}
        return taken


class MetricsTimers:
    """Logs each piece's seconds into a metrics logger, under the keys that RLlib uses.

    They are `<prefix>/timers/connectors/<piece>` and `<prefix>/connector_pipeline_timer`, means over the calls.

    Args:
        metrics: The logger.
        prefix: Where in the results the keys stand.
    """

    def __init__(self, metrics: Any, prefix: tuple[Any, ...]) -> None:
        self._metrics, self._prefix = metrics, prefix

    def stepped(self, step: Step, seconds: float, batch: dict[str, Any]) -> None:
        """Log one piece's seconds."""
        self._metrics.log_value((*self._prefix, "timers", "connectors", step.name), seconds)

    def finished(self, seconds: float) -> None:
        """Log the pipeline's seconds."""
        self._metrics.log_value((*self._prefix, "connector_pipeline_timer"), seconds)


class _PartWatch:
    """Tells the watch of a nested pipeline about the steps of that pipeline alone."""

    def __init__(self, watch: StepWatch, pipeline: ConnectorPipelineV2) -> None:
        self._watch = watch
        self._steps = {id(step.piece): step for step in pipeline.plan().steps}
        self._seconds = 0.0

    def stepped(self, step: Step, seconds: float, batch: dict[str, Any]) -> None:
        own = self._steps.get(id(step.piece))
        if own is not None:
            self._seconds += seconds
            self._watch.stepped(own, seconds, batch)

    def finished(self, seconds: float) -> None:
        self._watch.finished(self._seconds)


def watches_of(pipeline: ConnectorPipelineV2) -> list[StepWatch]:
    """Who watches a pipeline, or a pipeline among its pieces."""
    from ..connector_pipeline_v2 import ConnectorPipelineV2

    watches: list[StepWatch] = [] if pipeline.watch is None else [pipeline.watch]
    watches += pipeline.watches
    for piece in pipeline.connectors:
        if isinstance(piece, ConnectorPipelineV2):
            watches += [_PartWatch(watch, piece) for watch in watches_of(piece)]
    return watches
