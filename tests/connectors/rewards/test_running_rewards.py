"""Rewards by statistics of all data so far: against loops, across cuts, copies merged, and as state of a pipeline."""

from __future__ import annotations

import copy
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import CountBasedReward, NormalizeReward, RewardScaling
from epibatch.core.errors import ColumnError, ConfigError, StateError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import chunks_of_rewards, played, trained


def batch_of(piece, episodes, *front):
    return trained([*front, piece.share()], episodes)


def scaled(piece, episodes, *front):
    return batch_of(piece, episodes, *front)["rewards"]


def known(piece, of="since"):
    """What a piece knows of the default module."""
    return piece.get_state()["modules"]["default_policy"][of]


# -- rare observations -----------------------------------------------------------------------------

SEEN = st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=7), min_size=1, max_size=4)


def episode(observations, rewards=None, **more):
    return played(observations, rewards, actions=[t % 2 for t in range(len(observations) - 1)], **more)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(SEEN, min_size=1, max_size=3), exponent=st.sampled_from([0.5, 1.0]), scale=st.floats(0.1, 3))
def test_bonuses_equal_the_loop_over_steps(calls, exponent, scale):
    piece, visits = CountBasedReward(scale=scale, exponent=exponent), Counter()
    for lists in calls:
        bonuses, rewards = [], [[float(t) for t in range(len(own) - 1)] for own in lists]
        for observation in (one for observations in lists for one in observations[:-1]):  # the last is not acted on
            visits[observation] += 1
            bonuses.append(scale / visits[observation] ** exponent)
        batch = batch_of(piece, [episode(*own, id_=f"e{i}") for i, own in enumerate(zip(lists, rewards))])
        np.testing.assert_allclose(batch["rewards"], bonuses + np.concatenate(rewards))
        np.testing.assert_allclose(batch["intrinsic_rewards"], bonuses, atol=1e-12)


def test_a_chunk_begins_with_the_observation_that_the_last_one_ended_with():
    whole = episode([3, 3, 5, 3])
    rest = whole.cut(len_lookback_buffer=2)
    rest.add_env_step(5, 0, 0.0)
    assert scaled(CountBasedReward(), [whole, rest]).tolist() == [1.0, 0.5, 1.0, 1 / 3]


def test_pairs_of_observations_and_actions_and_the_bonus_alone():
    batch = batch_of(CountBasedReward(columns=["obs", "actions"], add=False), [episode([1, 1, 1, 1])])
    assert batch["intrinsic_rewards"].tolist() == [1.0, 1.0, 0.5] and "rewards" not in batch


def test_bonuses_of_bootstrap_rows_and_of_rewards_that_were_changed_before():
    front = [AddOneTsToEpisodesAndTruncate(), RewardScaling(scale=10.0)]
    batch = batch_of(CountBasedReward(), [episode([1, 2, 1], [1.0, 2.0])], *front)
    assert batch["rewards"].tolist() == [11.0, 21.0, 0.0]
    assert batch["intrinsic_rewards"].tolist() == [1.0, 1.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(rounds=st.lists(st.tuples(SEEN, SEEN), min_size=1, max_size=4))
def test_copies_that_are_merged_again_and_again_count_all(rounds):
    copies, seen = [CountBasedReward(), CountBasedReward()], Counter()
    for both in rounds:
        for own, lists in zip(copies, both):
            batch_of(own, [episode(rows, id_=f"e{i}") for i, rows in enumerate(lists)])
            seen.update(row for rows in lists for row in rows[:-1])
        merged = copies[0].merge_states([own.get_state() for own in copies])
        for own in copies:
            own.set_state(copy.deepcopy(merged))
    copies[1].freeze()
    for _ in range(2):
        bonuses = scaled(copies[1], [episode([*range(5), 0])])
        np.testing.assert_allclose(bonuses, [1 / (seen[row] + 1) for row in range(5)])


def test_copies_that_went_apart_are_refused():
    one, other = CountBasedReward(), CountBasedReward()
    batch_of(one, [episode([1, 1])]), batch_of(other, [episode([2, 2])])
    states = [own.merge_states([own.get_state()]) for own in (one, other)]
    with pytest.raises(StateError, match="last synchronised with another state"):
        one.merge_states(states)


# -- normalised rewards ----------------------------------------------------------------------------

CHUNKS = st.lists(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6), min_size=1, max_size=5)


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


@settings(max_examples=60, deadline=None)
@given(calls=CHUNKS, lookback=st.integers(0, 7), gamma=st.sampled_from([None, 0.0, 0.5, 0.99]), center=st.booleans())
def test_divided_by_the_deviation_of_returns_or_rewards_wherever_episodes_are_cut(calls, lookback, gamma, center):
    center = center and gamma is None
    piece, flat = NormalizeReward(gamma=gamma, center=center, clip=None), []
    for chunk in chunks_of_rewards(calls, lookback):
        flat += chunk.get_rewards().tolist()
        numbers = flat if gamma is None else discounted(flat, gamma)
        expected = (chunk.get_rewards() - (np.mean(flat) if center else 0.0)) / deviation(numbers)
        np.testing.assert_allclose(scaled(piece, [chunk]), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_chunks_of_one_episode_in_one_call_in_any_order(order):
    lists = [[1.0, -2.0], [3.0], [0.5, 4.0]]
    flat = [reward for rewards in lists for reward in rewards]
    chunks, divisor = chunks_of_rewards(lists), deviation(discounted(flat, 0.9))
    found = scaled(NormalizeReward(gamma=0.9), [chunks[i] for i in order])
    np.testing.assert_allclose(found, np.concatenate([lists[i] for i in order]) / divisor)


def test_an_episode_that_ended_starts_again_and_is_forgotten():
    piece = NormalizeReward(gamma=0.9)
    scaled(piece, [played([0, 1], [5.0], id_="a", terminated=True), played([0, 1], [2.0], id_="b")])
    assert known(piece, "running") == {"b": [1, 2.0]}


def test_the_middle_of_an_episode_counts_by_its_lookback():
    piece = NormalizeReward(gamma=0.5)
    scaled(piece, [chunks_of_rewards([[8.0, 4.0, 2.0], [1.0]], lookback=2)[1]])
    assert known(piece)["mean"].tolist() == [0.25 * 4 + 0.5 * 2 + 1]


def test_bootstrap_rows_do_not_count_and_rewards_of_a_piece_before_do():
    (chunk,) = chunks_of_rewards([[1.0, 2.0, 6.0]])
    one, other = NormalizeReward(gamma=None, center=True), NormalizeReward(gamma=None, center=True)
    with_bootstrap = scaled(one, [chunk], AddOneTsToEpisodesAndTruncate())
    assert with_bootstrap.tolist() == [*scaled(other, [chunk]).tolist(), 0.0]
    scaled(other, [chunk], RewardScaling(scale=100.0))
    assert known(one)["count"] == 3 and known(other)["mean"].tolist() == [(9 + 900) / 6]


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(CHUNKS, min_size=2, max_size=4), gamma=st.sampled_from([None, 0.9]))
def test_copies_that_are_merged_know_what_one_knows_that_saw_all(calls, gamma):
    pooled, copies = NormalizeReward(gamma=gamma), [NormalizeReward(gamma=gamma) for _ in range(2)]
    for i, lists in enumerate(calls):
        chunks = chunks_of_rewards(lists)
        scaled(pooled, chunks)
        scaled(copies[i % 2], chunks)
        if i % 2:
            merged = copies[0].merge_states([own.get_state() for own in copies])
            for own in copies:
                own.set_state(copy.deepcopy(merged))
    copies[0].set_state(copies[0].merge_states([own.get_state() for own in copies]))
    merged, expected = known(copies[0], "synchronised"), known(pooled)
    assert merged["count"] == expected["count"]
    for name in ("mean", "squares"):
        np.testing.assert_allclose(merged[name], expected[name], rtol=1e-9, atol=1e-9)


def test_a_merged_state_keeps_the_returns_of_running_episodes():
    copies, lists = [NormalizeReward(gamma=0.5) for _ in range(2)], [[[8.0, 4.0], [1.0]], [[2.0], [3.0]]]
    chunks = [chunks_of_rewards(own) for own in lists]
    for piece, (first, _) in zip(copies, chunks):
        scaled(piece, [first])
    merged = copies[0].merge_states([piece.get_state() for piece in copies])
    for piece, (_, second) in zip(copies, reversed(chunks)):  # each continues the episode that the other began
        piece.set_state(copy.deepcopy(merged))
        scaled(piece, [second])
    copies[0].set_state(copies[0].merge_states([piece.get_state() for piece in copies]))
    returns = [value for first, second in lists for value in discounted([*first, *second], 0.5)]
    assert known(copies[0], "synchronised")["mean"] == pytest.approx([np.mean(returns)])


def test_of_several_copies_the_one_that_saw_most_of_a_running_episode_counts():
    copies = [NormalizeReward(gamma=0.5) for _ in range(2)]
    first, second, third = chunks_of_rewards([[8.0, 4.0], [1.0], [2.0]])
    scaled(copies[0], [first])
    merged = copies[0].merge_states([piece.get_state() for piece in copies if piece.get_state()])
    for piece in copies:
        piece.set_state(copy.deepcopy(merged))
    scaled(copies[0], [second])  # the other copy knows the first chunk's end only
    for order in (copies, copies[::-1]):
        last = NormalizeReward(gamma=0.5)
        last.set_state(last.merge_states([piece.get_state() for piece in order]))
        scaled(last, [third])
        assert known(last)["mean"] == pytest.approx([discounted([8.0, 4.0, 1.0, 2.0], 0.5)[-1]])


def test_a_piece_that_does_not_update_applies_what_it_was_given():
    first, second = chunks_of_rewards([[1.0, 2.0, 4.0], [16.0]])
    piece, frozen = NormalizeReward(gamma=0.9), NormalizeReward(gamma=0.9, update_stats=False)
    assert scaled(frozen, [second]).tolist() == [10.0]  # nothing known: the limit alone
    scaled(piece, [first])
    frozen.set_state(piece.get_state())
    expected = 16.0 / deviation(discounted([1.0, 2.0, 4.0], 0.9))
    for _ in range(2):
        assert scaled(frozen, [second]) == pytest.approx([min(expected, 10.0)], rel=1e-5)


def test_each_module_has_its_own():
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, *_: agent)
    episode.add_env_reset(observations={"a": 0, "b": 0})
    for _ in range(3):
        acting = episode.get_agents_to_act()
        rewards = {agent: 1.0 + ord(agent) for agent in acting}
        episode.add_env_step({"a": 0, **({"b": 0} if episode.env_t else {})}, dict.fromkeys(acting, 0), rewards)
    piece = NormalizeReward(gamma=0.0)
    config = PPOConfig().multi_agent(policies=["a", "b"], policy_mapping_fn={"a": "a", "b": "b"})
    config.learners(learner_connector=lambda o, a: piece.share())
    spaces = [gym.spaces.Dict(a=space, b=space) for space in (gym.spaces.Discrete(2), gym.spaces.Discrete(2))]
    config.build_learner_connector(*spaces)(rl_module=None, batch={}, episodes=[episode])
    found = {name: (own["since"]["count"], *own["since"]["mean"]) for name, own in piece.get_state()["modules"].items()}
    assert found == {"a": (3, 98.0), "b": (2, 99.0)}


def test_chunks_that_overlap_are_counted_with_one_warning():
    (episode,) = chunks_of_rewards([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
    piece, parts = NormalizeReward(gamma=0.5, clip=None), [episode[0:4], episode[2:6], episode[2:6]]
    with pytest.warns(UserWarning, match="chunks of .* that overlap") as caught:
        first, _ = [scaled(piece, parts) for _ in range(2)]
    assert len(caught) == 1
    seen = [one for part in parts for one in discounted(part.rewards.data, 0.5)[-4:]]
    expected = np.concatenate([part.get_rewards() for part in parts]) / deviation(seen)
    np.testing.assert_allclose(first, expected)


@pytest.mark.parametrize(
    ("piece", "keywords", "words"),
    [
        *((CountBasedReward, own, "an exponent above 0") for own in
          ({"exponent": 0.0}, {"exponent": -1.0}, {"scale": float("nan")})),
        *((NormalizeReward, own, f"NormalizeReward.{next(iter(own))}") for own in
          ({"gamma": 1.0}, {"gamma": -0.1}, {"center": True}, {"clip": 0.0}, {"epsilon": -1.0})),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant(piece, keywords, words):
    with pytest.raises(ConfigError, match=words):
        piece(**keywords)


@pytest.mark.parametrize(
    ("piece", "episode", "words"),
    [
        (CountBasedReward(), played([frozenset([1]), frozenset([2])]), "rows of numbers or strings"),
        (NormalizeReward(), played([0, 1, 2], [1.0, float("nan")]), "spoil the statistics"),
        (NormalizeReward(), played([0, 1], [[1.0, 2.0]]), "LineariseRewards"),
    ],
)
def test_episodes_that_have_no_statistics_change_none(piece, episode, words):
    with pytest.raises(ColumnError, match=words):
        batch_of(piece, [episode])
    counts = [own["since"].get("count", 0) for own in piece.get_state().get("modules", {}).values()]
    assert counts in ([], [0])


NO_COUNTS = [{}, {"keys": [2, 1], "numbers": [1, 1]}, {"keys": [1, 1], "numbers": [1, 1]}, {"keys": [1], "numbers": []}]
NONE_YET = {part: {"keys": [], "numbers": []} for part in ["synchronised", "since"]}
MODULES = [{}, None, *({**NONE_YET, part: own} for part in NONE_YET for own in NO_COUNTS)]
NO_STATES = [{"x": 1}, {"modules": 3}, {"modules": {"p": {"running": {}}}}, {"modules": {"p": {}}}]


@pytest.mark.parametrize(
    ("piece", "state"),
    [
        *((CountBasedReward, {"modules": {"p": own}}) for own in MODULES),
        *((NormalizeReward, own) for own in NO_STATES),
    ],
)
def test_states_that_are_none(piece, state):
    with pytest.raises(StateError, match="get_state or merge_states"):
        piece().set_state(state)


# -- what pipelines do with such state -------------------------------------------------------------

BOX, TWO = gym.spaces.Box(-9.0, 9.0, (2,)), gym.spaces.Discrete(2)


def learner():
    pieces = [NormalizeReward(), CountBasedReward()]
    defaults = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    return LearnerConnectorPipeline(BOX, TWO, connectors=[*pieces, *defaults])


def episodes():
    observations = np.arange(8, dtype=np.float32).reshape(4, 2)
    return [played(observations, [1.0, 2.0, 4.0], id_="e", observation_space=BOX, action_space=TWO)]


def test_a_state_of_before_the_first_call_takes_back_what_was_learned():
    pipe = learner()
    fresh = copy.deepcopy(pipe.get_state())
    assert fresh == {"normalize_reward": {}, "count_based_reward": {}}
    first = pipe(episodes=episodes())["rewards"]["e",][0]
    assert known(pipe["NormalizeReward"])["count"] == 3
    pipe.set_state(fresh)
    assert pipe.get_state() == fresh
    np.testing.assert_array_equal(pipe(episodes=episodes())["rewards"]["e",][0], first)


def test_pieces_that_a_state_says_nothing_of_stay_as_they_are():
    pipe, fresh = learner(), learner().get_state("normalize_reward")
    assert set(fresh) == {"normalize_reward"}
    pipe(episodes=episodes())
    counted = copy.deepcopy(pipe.get_state()["count_based_reward"])
    assert counted
    for state in (fresh, {}):
        pipe.set_state(state)
        assert pipe.get_state()["normalize_reward"] == {}
        np.testing.assert_equal(pipe.get_state()["count_based_reward"], counted)


def test_pipelines_in_pipelines_are_reset_as_well():
    inner = EnvToModulePipeline(connectors=[MeanStdFilter()])
    fresh = inner.get_state()
    outer = EnvToModulePipeline(BOX, TWO, connectors=[inner, AddObservationsFromEpisodesToBatch()])
    outer(episodes=[SingleAgentEpisode(observations=[np.ones(2, np.float32)], observation_space=BOX)])
    assert inner.get_state()["mean_std_filter"]["since"]["count"] == 1
    outer.set_state({next(iter(outer.names)): fresh})
    assert inner.get_state()["mean_std_filter"]["since"]["count"] == 0


def test_only_states_that_say_something_need_their_piece():
    pipe = EnvToModulePipeline(BOX, TWO, connectors=[AddObservationsFromEpisodesToBatch()])
    pipe.set_state({"get_actions": {}})
    with pytest.raises(UnknownNameError, match="get_actions"):
        pipe.set_state({"get_actions": {"generator": 1}})


def test_merged_are_the_copies_that_know_something():
    fresh, full = learner(), learner()
    full(episodes=episodes())
    merged = fresh.merge_states([fresh.get_state(), full.get_state()])
    assert merged["normalize_reward"]["modules"]["default_policy"]["synchronised"]["count"] == 3
    assert fresh.merge_states([fresh.get_state()]) == {}
