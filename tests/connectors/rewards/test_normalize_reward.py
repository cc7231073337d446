"""Rewards by running statistics: against loops, across cuts, copies merged, frozen, restored."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.rewards import NormalizeReward, RewardScaling
from epibatch.core.errors import ColumnError, ConfigError, StateError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import played

CHUNKS = st.lists(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6), min_size=1, max_size=5)


def chunks_of(lists, lookback=0):
    """One running episode, cut into chunks of these rewards."""
    episode, out = SingleAgentEpisode(), []
    episode.add_env_reset(0)
    for rewards in lists:
        for reward in rewards:
            episode.add_env_step(0, 0, float(reward))
        out.append(episode)
        episode = episode.cut(len_lookback_buffer=lookback)
    return out


def scaled(piece, episodes, front=()):
    pipeline = LearnerConnectorPipeline(connectors=[*front, piece.share(), BatchIndividualItems()])
    return pipeline(rl_module=None, batch={}, episodes=episodes)["rewards"]


def deviation(numbers):
    found = np.std(numbers, ddof=1) if len(numbers) > 1 else 0.0
    return float(np.sqrt(found**2 + 1e-8)) if found > 0 else 1.0


def discounted(rewards, gamma):
    """The discounted return up to each step."""
    out, so_far = [], 0.0
    for reward in rewards:
        so_far = gamma * so_far + reward
        out.append(so_far)
    return out


@settings(max_examples=40, deadline=None)
@given(calls=CHUNKS, lookback=st.integers(0, 7), gamma=st.sampled_from([0.0, 0.5, 0.99]))
def test_divided_by_the_deviation_of_discounted_returns_wherever_episodes_are_cut(calls, lookback, gamma):
    piece, flat = NormalizeReward(gamma=gamma, clip=None), []
    for chunk in chunks_of(calls, lookback):
        flat += chunk.get_rewards().tolist()
        expected = chunk.get_rewards() / deviation(discounted(flat, gamma))
        np.testing.assert_allclose(scaled(piece, [chunk]), expected, rtol=1e-6, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(calls=CHUNKS, center=st.booleans())
def test_by_the_rewards_own_moments(calls, center):
    piece, flat = NormalizeReward(gamma=None, center=center, clip=None), []
    for i, rewards in enumerate(calls):
        (chunk,) = chunks_of([rewards])
        flat += chunk.get_rewards().tolist()
        expected = (chunk.get_rewards() - (np.mean(flat) if center else 0.0)) / deviation(flat)
        np.testing.assert_allclose(scaled(piece, [chunk]), expected, rtol=1e-6, atol=1e-9, err_msg=f"call {i}")


def test_chunks_of_one_episode_in_one_call_in_any_order():
    lists = [[1.0, -2.0], [3.0], [0.5, 4.0]]
    flat = [reward for rewards in lists for reward in rewards]
    expected = np.array(flat) / deviation(discounted(flat, 0.9))
    for order in ([0, 1, 2], [2, 0, 1]):
        chunks = chunks_of(lists)
        found = scaled(NormalizeReward(gamma=0.9), [chunks[i] for i in order])
        parts = np.split(found, np.cumsum([len(lists[i]) for i in order])[:-1])
        np.testing.assert_allclose(np.concatenate([parts[order.index(i)] for i in range(3)]), expected)


def test_an_episode_that_ended_starts_anew_and_is_forgotten():
    piece = NormalizeReward(gamma=0.9)
    first = played([0, 1], [5.0], id_="a", terminated=True)
    running = played([0, 1], [2.0], id_="b")
    scaled(piece, [first, running])
    assert piece.get_state()["modules"]["default_policy"]["running"] == {"b": [1, 2.0]}


def test_the_middle_of_an_episode_that_nobody_saw_counts_by_its_lookback():
    chunk = chunks_of([[8.0, 4.0, 2.0], [1.0]], lookback=2)[1]
    piece = NormalizeReward(gamma=0.5)
    scaled(piece, [chunk])
    assert piece.get_state()["modules"]["default_policy"]["since"]["mean"].tolist() == [0.25 * 4 + 0.5 * 2 + 1]


def test_bootstrap_rows_are_zero_and_do_not_count():
    (chunk,) = chunks_of([[1.0, 2.0, 6.0]])
    one, other = NormalizeReward(gamma=None, center=True), NormalizeReward(gamma=None, center=True)
    with_bootstrap = scaled(one, [chunk], [AddOneTsToEpisodesAndTruncate()])
    assert with_bootstrap.tolist() == [*scaled(other, [chunk]).tolist(), 0.0]
    assert one.get_state()["modules"]["default_policy"]["since"]["count"] == 3


def test_rewards_of_a_piece_in_front_count():
    (chunk,) = chunks_of([[1.0, 2.0, 6.0]])
    piece = NormalizeReward(gamma=None)
    scaled(piece, [chunk], [RewardScaling(scale=100.0)])
    assert piece.get_state()["modules"]["default_policy"]["since"]["mean"].tolist() == [300.0]


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(CHUNKS, min_size=2, max_size=4), gamma=st.sampled_from([None, 0.9]))
def test_copies_that_are_merged_know_what_one_knows_that_saw_all(calls, gamma):
    pooled, copies = NormalizeReward(gamma=gamma), [NormalizeReward(gamma=gamma) for _ in range(2)]
    for i, lists in enumerate(calls):
        chunks = chunks_of(lists)
        scaled(pooled, chunks)
        scaled(copies[i % 2], chunks)
        if i % 2:
            merged = copies[0].merge_states([own.get_state() for own in copies])
            for own in copies:
                own.set_state(copy.deepcopy(merged))
    merged = copies[0].merge_states([own.get_state() for own in copies])
    one, other = merged["modules"]["default_policy"], pooled.get_state()["modules"]["default_policy"]["since"]
    assert one["synchronised"]["count"] == other["count"]
    for name in ("mean", "squares"):
        np.testing.assert_allclose(one["synchronised"][name], other[name], rtol=1e-9, atol=1e-9)


def test_frozen_restored_and_forgotten():
    lists = [[1.0, 2.0], [4.0, 8.0], [16.0]]
    piece, (first, second, third) = NormalizeReward(gamma=0.9), chunks_of(lists)
    scaled(piece, [first])
    again = NormalizeReward(gamma=0.9)
    again.set_state(copy.deepcopy(piece.get_state()))
    assert scaled(again, [second]).tolist() == scaled(piece, [second]).tolist()
    piece.freeze()
    state = piece.get_state()
    known = NormalizeReward(gamma=0.9, update_stats=False)
    known.set_state(state)
    assert scaled(piece, [third]).tolist() == scaled(known, [third]).tolist() != scaled(again, [third]).tolist()
    assert str(piece.get_state()) == str(state)
    piece.reset_state()
    assert piece.get_state() == {}
    assert scaled(NormalizeReward(update_stats=False), [third]).tolist() == [10.0]  # nothing known: the limit alone


def test_each_module_has_its_own():
    from epibatch.env_runner import MultiAgentEnvRunner, make_multi_agent

    made = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2}).debugging(seed=0)
    made.multi_agent(policies=["even", "odd"], policy_mapping_fn={"0": "even", "1": "odd"})
    runner = MultiAgentEnvRunner(config=made)
    sample = runner.sample(num_timesteps=20, random_actions=True)
    piece = NormalizeReward(gamma=0.5)
    made.learners(learner_connector=lambda o, a: piece.share())
    pipeline = made.build_learner_connector(runner.env.observation_space, runner.env.action_space)
    pipeline(rl_module=None, batch={}, episodes=sample)
    known = piece.get_state()["modules"]
    steps = {name: sum(len(e.agent_episodes[agent]) for e in sample) for agent, name in ((0, "even"), (1, "odd"))}
    assert {name: own["since"]["count"] for name, own in known.items()} == steps
    runner.stop()


@pytest.mark.parametrize(
    "kwargs", [{"gamma": 1.0}, {"gamma": -0.1}, {"center": True}, {"clip": 0.0}, {"epsilon": -1.0}]
)
def test_arguments_that_cannot_be_meant(kwargs):
    with pytest.raises(ConfigError, match=f"NormalizeReward.{next(iter(kwargs))}"):
        NormalizeReward(**kwargs)


def test_mistakes_are_named():
    piece = NormalizeReward()
    (chunk,) = chunks_of([[1.0, float("nan")]])
    with pytest.raises(ColumnError, match="spoil the statistics"):
        scaled(piece, [chunk])
    assert piece.get_state() == {}
    vectors = played([0, 1], [[1.0, 2.0]])
    with pytest.raises(ColumnError, match="LineariseRewards"):
        scaled(piece, [vectors])
    for state in ({"modules": 3}, {"x": 1}, {"modules": {"p": {"running": {}}}}, {"modules": {"p": {}}}):
        with pytest.raises(StateError, match="get_state or merge_states"):
            piece.set_state(state)


def test_chunks_that_overlap_are_counted_with_one_warning():
    (episode,) = chunks_of([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
    piece, parts = NormalizeReward(gamma=0.5, clip=None), [episode[0:4], episode[2:6], episode[2:6]]
    with pytest.warns(UserWarning, match="chunks of .* that overlap") as caught:
        first, _ = [scaled(piece, parts) for _ in range(2)]
    assert len(caught) == 1
    seen = [one for part in parts for one in discounted(part.rewards.data, 0.5)[-4:]]
    expected = np.concatenate([part.get_rewards() for part in parts]) / deviation(seen)
    np.testing.assert_allclose(first, expected)
