"""Episodes with nested observations, and short pipelines around a piece."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.episodes import SingleAgentEpisode

POSE = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
SPEED = gym.spaces.Box(0.0, 2.0, (), np.float32)
SPACE = gym.spaces.Dict(pose=POSE, info=gym.spaces.Dict(gear=gym.spaces.Discrete(5), speed=SPEED))


def row(t):
    """The observation of step t."""
    return {"pose": np.float32([t, -t]), "info": {"gear": t % 5, "speed": np.float32(t / 8)}}


def episode(steps=3, id_="e", first=0, lookback=0):
    """Steps `first` to `first + steps`, the first `lookback` of them before the chunk."""
    return SingleAgentEpisode(
        id_=id_,
        observations=[row(first + t) for t in range(steps + 1)],
        actions=[t % 2 for t in range(steps)],
        rewards=[first + t + 0.5 for t in range(steps)],
        extra_model_outputs={"vf_preds": [10.0 * (first + t) for t in range(steps)]},
        len_lookback_buffer=lookback,
        t_started=first + lookback,
    )


def train(pieces, episodes, behind=(), space=SPACE):
    """A train batch: pieces before those that make columns, and right after them."""
    made = [*(piece.clone() for piece in pieces), AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    made += [AddColumnsFromEpisodesToTrainBatch(), *(piece.clone() for piece in behind), BatchIndividualItems()]
    pipeline = LearnerConnectorPipeline(space, gym.spaces.Discrete(2), connectors=made)
    return pipeline(rl_module=None, batch={}, episodes=episodes)


def act(pieces, episodes, space=SPACE):
    """The batch to act on, and the pipeline."""
    made = [*(piece.clone() for piece in pieces), AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    pipeline = EnvToModulePipeline(space, gym.spaces.Discrete(2), connectors=made)
    return pipeline(rl_module=None, batch={}, episodes=episodes), pipeline


@pytest.fixture(scope="session")
def nested():
    """All of these."""
    return SimpleNamespace(row=row, episode=episode, train=train, act=act, space=SPACE)
