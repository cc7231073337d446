"""The bonus for rare observations, against a loop with a dict."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.rewards import CountBasedReward, RewardScaling
from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.episodes import SingleAgentEpisode


def episode(observations, rewards=None, **more):
    steps = len(observations) - 1
    rewards = [0.0] * steps if rewards is None else rewards
    more = {"len_lookback_buffer": 0, **more}
    return SingleAgentEpisode(
        observations=np.array(observations, np.int64), actions=[t % 2 for t in range(steps)], rewards=rewards, **more
    )


def batch_of(piece, episodes, front=()):
    pipeline = LearnerConnectorPipeline(connectors=[*front, piece.share(), BatchIndividualItems()])
    return pipeline(rl_module=None, batch={}, episodes=episodes)


SEEN = st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=7), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(SEEN, min_size=1, max_size=3), exponent=st.sampled_from([0.5, 1.0]), scale=st.floats(0.1, 3))
def test_equals_the_loop_over_steps(calls, exponent, scale):
    piece, visits = CountBasedReward(scale=scale, exponent=exponent), Counter()
    for lists in calls:
        expected = []
        for observations in lists:
            for t, observation in enumerate(observations[:-1]):  # the last one is not acted on
                visits[observation] += 1
                expected.append(t + scale / visits[observation] ** exponent)
        episodes = [episode(own, [float(t) for t in range(len(own) - 1)], id_=f"e{i}") for i, own in enumerate(lists)]
        batch = batch_of(piece, episodes)
        np.testing.assert_allclose(batch["rewards"], expected)
        steps = [float(t) for own in lists for t in range(len(own) - 1)]
        np.testing.assert_allclose(batch["intrinsic_rewards"], np.array(expected) - steps)


def test_a_chunk_begins_with_the_observation_that_the_last_one_ended_with():
    whole, visits = episode([3, 3, 5, 3]), []
    rest = whole.cut(len_lookback_buffer=2)
    rest.add_env_step(5, 0, 0.0)
    visits = batch_of(CountBasedReward(), [whole, rest])["rewards"]
    assert visits.tolist() == [1.0, 0.5, 1.0, 1 / 3]


def test_pairs_of_observations_and_actions_and_the_bonus_alone():
    batch = batch_of(CountBasedReward(columns=["obs", "actions"], add=False), [episode([1, 1, 1, 1])])
    assert batch["intrinsic_rewards"].tolist() == [1.0, 1.0, 0.5] and "rewards" not in batch


def test_bootstrap_rows_and_rewards_of_a_piece_in_front():
    front = [AddOneTsToEpisodesAndTruncate(), RewardScaling(scale=10.0)]
    batch = batch_of(CountBasedReward(), [episode([1, 2, 1], [1.0, 2.0])], front)
    assert batch["rewards"].tolist() == [11.0, 21.0, 0.0]
    assert batch["intrinsic_rewards"].tolist() == [1.0, 1.0, 0.0]


def test_saved_frozen_and_forgotten(tmp_path):
    piece = CountBasedReward()
    batch_of(piece, [episode([1, 1, 2, 9])])
    again = CountBasedReward()
    again.set_state(load_state(save_state(tmp_path / "state", piece.get_state())))
    assert batch_of(again, [episode([1, 2, 9])])["rewards"].tolist() == pytest.approx([1 / 3, 1 / 2])
    piece.freeze()
    for _ in range(2):
        assert batch_of(piece, [episode([1, 1, 3, 9])])["rewards"].tolist() == pytest.approx([1 / 3, 1 / 3, 1.0])
    piece.reset_state()
    assert piece.get_state() == {}


@pytest.mark.parametrize("kwargs", [{"exponent": 0.0}, {"exponent": -1.0}, {"scale": float("nan")}])
def test_arguments_that_cannot_be_meant(kwargs):
    with pytest.raises(ConfigError, match="an exponent above 0"):
        CountBasedReward(**kwargs)


def test_objects_are_refused():
    rows = [frozenset([1]), frozenset([2])]
    one = SingleAgentEpisode(observations=rows, actions=[0], rewards=[0.0], len_lookback_buffer=0)
    with pytest.raises(ColumnError, match="rows of numbers or strings"):
        batch_of(CountBasedReward(), [one])
