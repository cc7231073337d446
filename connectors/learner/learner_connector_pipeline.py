"""The pipeline between recorded episodes and a loss."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from epibatch.core.errors import EpisodeError, explain

from ..agent_call import AgentCall
from ..call import Call
from ..connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["LearnerConnectorPipeline"]


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """Makes a train batch from whole episodes or chunks.

    Raises:
        EpisodeError: no episodes, or one without steps.
    """

    training: ClassVar[bool | None] = True

    def check_episodes(self, call: Call | AgentCall) -> None:
        """Refuse a call without episodes, and chunks without steps."""
        if not len(call.episodes):
            raise EpisodeError(
                explain(type(self).__name__, expected="at least one episode", found="none", do="sample first")
            )
        if call.grouped:
            if not call.groups:
                raise EpisodeError(
                    explain(
                        type(self).__name__,
                        expected="an episode in which an agent has made a step",
                        found=f"{len(call.episodes)} episodes without any",
                        do="leave them out, or sample more steps",
                    )
                )
            return
        empty = np.flatnonzero(call.lengths == 0)
        if len(empty):
            raise EpisodeError(
                explain(
                    f"{type(self).__name__}, {call.describe(int(empty[0]))}",
                    expected="at least one step",
                    found="a zero-length chunk (an observation, but no step)",
                    do="leave it out: [episode for episode in episodes if len(episode)]"
                    + self._all_lookback(call, int(empty[0])),
                )
            )

    def _all_lookback(self, call: Call, chunk: int) -> str:
        _, lookback = call.history(chunk)
        return f"; if its {lookback} steps of lookback are meant as steps, pass len_lookback_buffer=0" * bool(lookback)
