"""Pieces that replace the newest observation of every episode."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError

from ..columnar_piece import ColumnarPiece
from ..connector_v2 import ConnectorV2
from .call import PipelineCall
from .chunks import ChunkGroup
from .columns import Batch

__all__ = ["ObservationRewriter", "refuse_taken"]


class ObservationRewriter(ColumnarPiece):
    """Writes observations back into the episodes, so that the learner sees what the module saw.

    Subclasses write `rewrite`, which gets the newest observations of all episodes as one structure
    of arrays, and `recompute_output_observation_space`. Such a piece stands in an env-to-module
    pipeline, before the piece that puts observations into the batch.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    rewrites_observations = True
    uses_spaces: ClassVar[bool] = True

    @abstractmethod
    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Return the new values of the newest observations.

        Args:
            observations: Arrays of shape [number of episodes, ...], not to be written to.
            group: The episodes and everything else the call is about.

        Returns:
            Arrays of shape [number of episodes, ...], nested and typed as the output space says.
        """

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Rewrite the newest observations; the batch stays as it is."""
        if not len(group.episodes):
            return columns
        refuse_taken(self, columns)
        rewritten = self.rewrite(group.reader.newest(Columns.OBS, copy=False)[0], group)
        group.reader.write_newest(rewritten, None if self.input_observation_space is None else self.observation_space)
        return columns

    def run_agents(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite the newest observations agent by agent, each with a copy of the piece."""
        for columns in batch.groups.values():
            refuse_taken(self, columns)
        return super().run_agents(batch, call)


def refuse_taken(piece: ConnectorV2, batch: dict[str, Any]) -> None:
    """Refuse a batch with observations, which would not show what the piece makes of them."""
    if Columns.OBS in batch:
        name = type(piece).__name__
        raise PipelineError(
            name,
            expected="a batch without observations, which are to be taken after they are rewritten",
            found=f"a column {Columns.OBS!r}, written by an earlier piece",
            do=f"move {name} before that piece",
        )
