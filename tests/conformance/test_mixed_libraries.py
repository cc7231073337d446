"""RLlib's own objects where epibatch's are expected: the error says how to bring them over."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, PieceError, PipelineError
from oracle.libraries import EPIBATCH, RLLIB

COLUMNS = {"observations": [np.zeros(2), np.ones(2)], "actions": [0], "rewards": [1.0], "len_lookback_buffer": 0}


class Theirs(RLLIB.ConnectorV2):
    """A user's piece whose imports were not changed."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def test_a_piece_in_a_pipeline():
    with pytest.raises(PieceError, match="epibatch port FILE"):
        EPIBATCH.learner.LearnerConnectorPipeline(connectors=[Theirs()])


def test_a_piece_in_a_config():
    config = EPIBATCH.PPOConfig().learners(learner_connector=lambda obs_space, act_space: Theirs())
    with pytest.raises(PieceError, match="epibatch port FILE"):
        config.build_learner_connector()


def test_an_episode_in_a_pipeline():
    pieces = [EPIBATCH.learner.AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    pipeline = EPIBATCH.learner.LearnerConnectorPipeline(connectors=pieces)
    with pytest.raises(PipelineError, match=r"from_rllib\(episode\)"):
        pipeline(episodes=[RLLIB.SingleAgentEpisode(**COLUMNS)])


def test_a_state_of_an_episode():
    with pytest.raises(CheckpointError, match="from_rllib"):
        EPIBATCH.SingleAgentEpisode.from_state(RLLIB.SingleAgentEpisode(**COLUMNS).get_state())
