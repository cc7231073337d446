"""What episodes have got so far, against sums of their rewards by hand."""

from __future__ import annotations

import pytest

from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.rewards.reward_sum import returns_before, returns_so_far
from epibatch.core.errors import LookbackError
from epibatch.episodes import SingleAgentEpisode


class Asks(ColumnarPiece):
    """Keeps what both functions say of a call's chunks."""

    def run(self, batch, call):
        self.before, self.so_far = (one(call, "Asks").tolist() for one in (returns_before, returns_so_far))
        return batch


def asked(*episodes):
    piece = Asks()
    EnvToModulePipeline(connectors=[piece])(rl_module=None, batch={}, episodes=list(episodes))
    return piece


def stepped(episode, *rewards):
    for reward in rewards:
        episode.add_env_step(0.0, 0, reward)
    return episode


def test_chunks_go_on_from_the_ones_before_whatever_their_lookback():
    whole, other = SingleAgentEpisode(), SingleAgentEpisode()
    for episode in (whole, other):
        episode.add_env_reset(0.0)
    stepped(whole, 1.0, 2.0, 4.0)
    for lookback in (0, 2):
        chunk = stepped(whole.cut(len_lookback_buffer=lookback), 8.0)
        piece = asked(whole, chunk, other)
        assert piece.before == [0.0, 7.0, 0.0]
        assert piece.so_far == [7.0, 15.0, 0.0]


def test_a_chunk_of_data_that_starts_in_the_middle_does_not_know():
    rows = {"observations": [0.0, 1.0], "actions": [0], "rewards": [1.0], "len_lookback_buffer": 0}
    with pytest.raises(LookbackError, match=r"(?s)Asks.*starts at t=5.*episode\.cut\(\)"):
        asked(SingleAgentEpisode(**rows, t_started=5))
