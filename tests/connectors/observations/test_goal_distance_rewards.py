"""Rewards for the way towards a goal, by a loop over steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.observations import GoalDistanceRewards
from epibatch.core.errors import ColumnError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import SingleAgentEpisode


def episodes(seed, lengths):
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode(
            id_=f"{i}",
            observations=list(rng.normal(size=(steps + 1, 2, 2))),
            actions=[0] * steps,
            rewards=list(rng.normal(size=steps)),
            len_lookback_buffer=0,
        )
        for i, steps in enumerate(lengths)
    ]


def rewards_of(piece, made, *more):
    pieces = [*more, piece, AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    tail = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=[*pieces, *tail])(rl_module=None, episodes=made)["rewards"]


class Sums(torch.nn.Module):
    def forward(self, x):
        return x.reshape(len(x), -1).sum(1, keepdim=True)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 99), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans()
)
def test_each_reward_is_that_of_a_loop(seed, lengths, progress, added, encoded):
    goal = np.arange(4.0).reshape(2, 2)
    made = episodes(seed, lengths)

    def distance(row):
        difference = [(row - goal).sum()] if encoded else (row - goal).ravel()
        return sum(value**2 for value in difference) ** 0.5

    expected = []
    for one in made:
        for t in range(len(one)):
            reward = -distance(one.get_observations(t + 1))
            reward += distance(one.get_observations(t)) if progress else 0.0
            expected.append(reward + (one.get_rewards(t) if added else 0.0))
    piece = GoalDistanceRewards(goal=goal.tolist(), module=Sums() if encoded else None, progress=progress, added=added)
    np.testing.assert_allclose(rewards_of(piece, made), expected, atol=1e-5)
    assert [one.get_rewards().tolist() for one in made] == [
        one.get_rewards().tolist() for one in episodes(seed, lengths)
    ]


def test_bootstrap_rows_have_none():
    made = episodes(0, [2, 1])
    plain = rewards_of(GoalDistanceRewards(goal=np.zeros((2, 2))), made)
    longer = rewards_of(GoalDistanceRewards(goal=np.zeros((2, 2))), made, AddOneTsToEpisodesAndTruncate())
    assert longer.tolist() == [*plain[:2].tolist(), 0.0, plain[2], 0.0]


def test_data_form_and_state():
    piece = GoalDistanceRewards(goal=[1.0], module="torch.nn:Linear", keywords={"in_features": 1, "out_features": 1})
    again = build_piece(piece_to_dict(piece), allow_imports=True)
    assert again == piece
    again.set_state(piece.get_state())
    for name, weights in again.get_state()["weights"].items():
        assert np.array_equal(weights, piece.get_state()["weights"][name])
    assert GoalDistanceRewards(goal=[1.0]).get_state() == {}


@pytest.mark.parametrize("goal", [[0.0, 0.0], np.zeros((2, 3))])
def test_a_goal_of_another_shape_is_named(goal):
    with pytest.raises(ColumnError, match=r"GoalDistanceRewards[\s\S]*found: +shape \(2, 2\)"):
        rewards_of(GoalDistanceRewards(goal=goal), episodes(0, [1]))
