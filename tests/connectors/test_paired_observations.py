"""Next observations go through what observations go through, or the pipeline is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.columns import COLUMNS_LEFT_OUT
from epibatch.core.errors import PipelineError
from epibatch.episodes import SingleAgentEpisode

BOX = gym.spaces.Box(0.0, 8.0, (2,), np.float32)


class Scale(ColumnTransform):
    """Divides by the upper bound."""

    columns: Any = "obs"
    uses_spaces = True

    def transform(self, x):
        return x / self.row_space.high


class Shift(ColumnTransform):
    """Adds 100."""

    columns: Any = "obs"

    def transform(self, x):
        return x + 100


def defaults():
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddNextObservationsFromEpisodesToTrainBatch(),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]


def episode(observations, **more):
    steps = len(observations) - 1
    return SingleAgentEpisode(
        observations=observations, actions=[0] * steps, rewards=[0.0] * steps, len_lookback_buffer=0, **more
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_both_are_transformed_in_front_of_the_piece_that_makes_them_or_behind(lengths, bootstraps, behind):
    episodes = [episode([np.float32([10 * i + t, t]) for t in range(n + 1)]) for i, n in enumerate(lengths)]
    piece, others = Shift(columns=("obs", "new_obs")), defaults()
    pieces = [*others[:3], piece, others[3]] if behind else [piece, *others]
    pieces = [AddOneTsToEpisodesAndTruncate(), *pieces] if bootstraps else pieces
    batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=None, episodes=episodes)
    expected = []
    for one in episodes:
        rows = [one.get_observations(t + 1) + 100 for t in range(len(one))]
        expected += [*rows, rows[-1]] if bootstraps else rows
    np.testing.assert_array_equal(batch["new_obs"], np.stack(expected))


def test_their_space_is_that_of_observations():
    pipeline = LearnerConnectorPipeline(BOX, connectors=[Scale(columns=("obs", "new_obs")), *defaults()])
    batch = pipeline(rl_module=None, episodes=[episode([np.float32([0, 8]), np.float32([4, 2])])])
    assert batch["obs"].tolist() == [[0.0, 1.0]] and batch["new_obs"].tolist() == [[0.5, 0.25]]


def test_while_acting_there_are_none():
    pieces = [Shift(columns=("obs", "new_obs")), AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    batch = EnvToModulePipeline(connectors=pieces)(rl_module=None, episodes=[episode([np.float32([1, 2])])])
    assert batch["obs"].tolist() == [[101, 102]] and list(batch) == ["obs"]


def test_they_are_not_made_where_nobody_reads_them():
    pipeline = LearnerConnectorPipeline(connectors=[Shift(columns=("obs", "new_obs")), *defaults()])
    shared = {COLUMNS_LEFT_OUT: {"default_policy": frozenset(["new_obs"])}}
    rows = [np.float32([1, 2]), np.float32([3, 4])]
    assert "new_obs" not in pipeline(rl_module=None, episodes=[episode(rows)], shared_data=shared)


@pytest.mark.parametrize(
    ("pieces", "match"),
    [
        (lambda: [Shift(), *defaults()], r'piece 0 \(Shift\)(?s:.*)columns = \("obs", "new_obs"\)'),
        (lambda: [*defaults()[:3], Shift(), defaults()[3]], r"piece 3 \(Shift\)(?s:.*)by .*piece 1 \(AddNext"),
        (lambda: [Shift(columns="obs/a"), *defaults()], r'columns = \("obs/a", "new_obs/a"\)'),
        (lambda: [Shift(), Shift(columns=("obs", "new_obs")), *defaults()], r"piece 1 \(Shift\)"),
        (lambda: [Scale(), Shift(columns="new_obs"), *defaults()], r"piece 0 \(Scale\)"),
    ],
)
def test_a_transform_of_observations_alone_is_refused(pieces, match):
    with pytest.raises(PipelineError, match=match):
        LearnerConnectorPipeline(connectors=pieces())


class Augments(Shift):
    """Is meant for one side."""

    training_only = True


class Own(ConnectorV2):
    """Declares nothing, and so is trusted."""

    transforms = ("obs",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


@pytest.mark.parametrize(
    "pieces",
    [
        lambda: [Shift(), Shift(columns="new_obs"), *defaults()],
        lambda: [Shift(columns="rewards"), *defaults()],
        lambda: [Shift(), *defaults()[:1], *defaults()[2:]],
        lambda: [Augments(), *defaults()],
        lambda: [Own(), *defaults()],
    ],
)
def test_others_are_not(pieces):
    assert len(LearnerConnectorPipeline(connectors=pieces())) >= 4
