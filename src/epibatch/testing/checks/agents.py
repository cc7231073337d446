"""The check of multi-agent episodes against single-agent ones."""

from __future__ import annotations

from collections.abc import Iterator

from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from epibatch.testing.agents_rehearsal import unlike_single_agents
from epibatch.testing.contract import RUNS, Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal

__all__ = ["several_agents"]


@contract_check(after=(*RUNS, "row_by_row"))
def several_agents(rehearsal: Rehearsal) -> Iterator[Finding]:
    """An agent among several has the rows that it has alone."""
    piece = rehearsal.piece
    if not isinstance(piece, (ColumnarPiece, SingleAgentObservationPreprocessor)):
        yield NotApplied("it is a plain piece, which may be written for one agent")
        return
    if rehearsal.draws:
        yield NotApplied("it draws random numbers")
        return
    unlike = unlike_single_agents(rehearsal)
    if isinstance(unlike, NotApplied):
        yield unlike
    elif unlike:
        yield Fault(
            "an agent among several",
            "the rows it has alone",
            unlike,
            "go through single_agent_episode_iterator (in training with agents_that_stepped_only=False), and keep "
            "apart what belongs to different agents",
        )
