"""The bonus for rare observations against a loop with a dict, and statistics in the state of a pipeline."""

from __future__ import annotations

import copy
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import CountBasedReward, NormalizeReward, RewardScaling
from epibatch.core import load_state, save_state
from epibatch.core.errors import ColumnError, ConfigError, StateError, UnknownNameError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import played


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
    one = played(rows)
    with pytest.raises(ColumnError, match="rows of numbers or strings"):
        batch_of(CountBasedReward(), [one])


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.tuples(SEEN, SEEN), min_size=1, max_size=4))
def test_copies_that_are_merged_again_and_again(rounds):
    copies, seen = [CountBasedReward(), CountBasedReward()], Counter()
    for both in rounds:
        for own, lists in zip(copies, both):
            batch_of(own, [episode(rows, id_=f"e{i}") for i, rows in enumerate(lists)])
            seen.update(row for rows in lists for row in rows[:-1])
        merged = copies[0].merge_states([own.get_state() for own in copies])
        for own in copies:
            own.set_state(copy.deepcopy(merged))
    copies[1].freeze()
    bonuses = batch_of(copies[1], [episode([*range(5), 0])])["rewards"]
    np.testing.assert_allclose(bonuses, [1 / (seen[row] + 1) for row in range(5)])


def test_copies_that_went_apart_are_refused():
    one, other = CountBasedReward(), CountBasedReward()
    batch_of(one, [episode([1, 1])]), batch_of(other, [episode([2, 2])])
    states = [own.merge_states([own.get_state()]) for own in (one, other)]
    with pytest.raises(StateError, match="last synchronised with another state"):
        one.merge_states(states)


NO_COUNTS = [{}, {"keys": [2, 1], "numbers": [1, 1]}, {"keys": [1, 1], "numbers": [1, 1]}, {"keys": [1], "numbers": []}]
NONE_YET = {part: {"keys": [], "numbers": []} for part in ["synchronised", "since"]}


@pytest.mark.parametrize("wrong", [{}, None, *({**NONE_YET, part: own} for part in NONE_YET for own in NO_COUNTS)])
def test_states_that_are_none(wrong):
    piece = CountBasedReward()
    batch_of(piece, [episode([1, 1])])
    state = copy.deepcopy(piece.get_state())
    state["modules"] = dict.fromkeys(state["modules"], wrong)
    with pytest.raises(StateError, match="get_state or merge_states"):
        piece.set_state(state)


BOX, TWO = gym.spaces.Box(-9.0, 9.0, (2,)), gym.spaces.Discrete(2)


def learner():
    pieces = [NormalizeReward(), CountBasedReward()]
    defaults = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    return LearnerConnectorPipeline(BOX, TWO, connectors=[*pieces, *defaults])


def episodes():
    observations = np.arange(8, dtype=np.float32).reshape(4, 2)
    return [
        SingleAgentEpisode(id_="e", observations=observations, actions=[0, 1, 0], rewards=[1.0, 2.0, 4.0],
                           len_lookback_buffer=0, observation_space=BOX, action_space=TWO)
    ]  # fmt: skip


def test_a_state_of_before_the_first_call_takes_back_what_was_learned():
    pipe = learner()
    fresh = copy.deepcopy(pipe.get_state())
    assert fresh == {"normalize_reward": {}, "count_based_reward": {}}
    first = pipe(episodes=episodes())["rewards"]["e",][0]
    assert pipe.get_state()["normalize_reward"]["modules"]["default_policy"]["since"]["count"] == 3
    pipe.set_state(fresh)
    assert pipe.get_state() == fresh
    np.testing.assert_array_equal(pipe(episodes=episodes())["rewards"]["e",][0], first)


def test_pieces_that_a_state_says_nothing_of_stay_as_they_are():
    pipe, fresh = learner(), learner().get_state("normalize_reward")
    assert set(fresh) == {"normalize_reward"}
    pipe(episodes=episodes())
    counted = copy.deepcopy(pipe.get_state()["count_based_reward"])
    assert counted
    pipe.set_state(fresh)
    assert pipe.get_state()["normalize_reward"] == {}
    np.testing.assert_equal(pipe.get_state()["count_based_reward"], counted)
    pipe.set_state({})
    np.testing.assert_equal(pipe.get_state()["count_based_reward"], counted)


def test_a_refused_state_leaves_pieces_as_they_were_that_knew_nothing():
    known = learner()
    known(episodes=episodes())
    pipe = learner()
    with pytest.raises(Exception, match="CountBasedReward"):
        pipe.set_state({**known.get_state(), "count_based_reward": {"counts": 3}})
    assert pipe.get_state() == {"normalize_reward": {}, "count_based_reward": {}}


def test_pipelines_in_pipelines_are_reset_as_well():
    inner = EnvToModulePipeline(connectors=[MeanStdFilter()])
    fresh = inner.get_state()
    outer = EnvToModulePipeline(BOX, TWO, connectors=[inner, AddObservationsFromEpisodesToBatch()])
    name = next(iter(outer.names))
    outer(episodes=[SingleAgentEpisode(observations=[np.ones(2, np.float32)], observation_space=BOX)])
    assert inner.get_state()["mean_std_filter"]["since"]["count"] == 1
    outer.set_state({name: fresh})
    assert inner.get_state()["mean_std_filter"]["since"]["count"] == 0


def test_only_states_that_say_something_need_their_piece():
    pipe = EnvToModulePipeline(BOX, TWO, connectors=[AddObservationsFromEpisodesToBatch()])
    pipe.set_state({"get_actions": {}})
    with pytest.raises(UnknownNameError, match="get_actions"):
        pipe.set_state({"get_actions": {"generator": 1}})


def test_merged_are_the_copies_that_know_something():
    fresh, known = learner(), learner()
    known(episodes=episodes())
    merged = fresh.merge_states([fresh.get_state(), known.get_state()])
    assert merged["normalize_reward"]["modules"]["default_policy"]["synchronised"]["count"] == 3
    assert fresh.merge_states([fresh.get_state()]) == {}
