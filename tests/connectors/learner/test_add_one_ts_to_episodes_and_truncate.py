"""Bootstrap rows without touching the episodes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner import (
    AddOneTsToEpisodesAndTruncate,
)
from epibatch.core.errors import EpibatchError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import Lab, trained


def batch_of(lab, episodes, *behind, before=(), **keywords):
    """The train batch of the default pieces, with others after the bootstrap piece and before all."""
    first, *rest = lab.defaults("learner", ppo=True)[:-1]
    keywords = {"rl_module": lab.module(), **keywords}
    batch = lab.run("learner", [*before, first, *behind, *rest], episodes, **keywords)
    return {name: np.asarray(column).tolist() for name, column in batch.items() if name != "state_in"}


def each(lab, function):
    """A user's piece that calls a function with each episode."""
    return lab.user(lambda batch, episodes: [function(episode) for episode in episodes] and None)


def test_one_masked_row_follows_each_chunk(lab):
    batch = batch_of(lab, [lab.episode("a", 2, end="terminated"), lab.episode("b", 1, offset=100)])
    assert batch == {
        "obs": [[0, 10], [1, 11], [2, 12], [100, 110], [101, 111]],
        "actions": [0, 1, 1, 0, 0],
        "rewards": [0.5, 1.5, 0.0, 100.5, 0.0],
        "action_logp": [0, -1, -1, -100, -100],
        "loss_mask": [True, True, False, True, False],
        "terminateds": [False, True, False, False, False],
        "truncateds": [False, False, False, True, False],
    }


@pytest.mark.parametrize(
    ("end", "terminateds", "truncateds"),
    [
        (None, [False, False, False], [False, True, False]),
        ("truncated", [False, False, False], [False, True, False]),
        ("terminated", [False, True, False], [False, False, False]),
    ],
)
def test_flags_sit_on_the_last_real_step(lab, end, terminateds, truncateds):
    batch = batch_of(lab, [lab.episode("a", 2, end=end)])
    assert (batch["terminateds"], batch["truncateds"]) == (terminateds, truncateds)


def test_an_episode_that_ended_both_ways_keeps_both_flags(lab):
    episode, seen = lab.episode("a", 2, terminated=True, truncated=True), []
    for pieces in ([], [each(lab, lambda own: seen.append((own.is_terminated, own.is_truncated)))]):
        batch = batch_of(lab, [episode], *pieces)
        assert (batch["terminateds"], batch["truncateds"]) == ([False, True, False], [False, True, False])
    assert seen == [(True, True)]


def test_episodes_stay_as_they_are_and_two_runs_give_the_same(lab):
    episodes = [lab.episode("a", 2), lab.episode("a", 3, t_started=2, lookback=1)]
    before = [(len(episode), episode.get_rewards().copy(), episode.get_observations().copy()) for episode in episodes]
    first, second = batch_of(lab, episodes), batch_of(lab, episodes)
    assert first == second
    for episode, (length, rewards, observations) in zip(episodes, before, strict=True):
        assert (len(episode), episode.id_, episode.is_truncated) == (length, "a", False)
        assert np.array_equal(episode.get_rewards(), rewards)
        assert np.array_equal(episode.get_observations(), observations)


def test_user_pieces_see_the_episodes_as_they_happened_before_and_lengthened_copies_after(lab):
    lengths, seen = [], []

    def look(episode):
        observations = episode.get_observations()[:, 0].tolist()
        columns = (episode.get_actions(), episode.get_rewards(), episode.get_extra_model_outputs("action_logp"))
        seen.append((len(episode), episode.id_, observations, *(column.tolist() for column in columns)))

    episode = lab.episode("a", 2, end="terminated")
    batch = batch_of(lab, [episode], each(lab, look), before=[each(lab, lambda own: lengths.append(len(own)))])
    assert seen == [(3, "a", [0, 1, 2, 2], [0, 1, 1], [0.5, 1.5, 0.0], [0.0, -1.0, -1.0])]
    assert lengths == [2] and len(episode) == 2 and batch["loss_mask"] == [True, True, False]


def test_rewards_written_after_it_reach_the_batch(lab):
    shape = each(lab, lambda episode: episode.set_rewards(new_data=np.array(episode.get_rewards()) + 100.0))
    batch = batch_of(lab, [lab.episode("a", 2)], shape)
    assert batch["rewards"][:2] == [100.5, 101.5] and batch["loss_mask"] == [True, True, False]


def test_infos_written_after_it_are_not_those_of_the_episode_but_custom_data_are(lab):
    seen, episode = [], lab.episode("a", 2)

    def write(own):
        own.custom_data["calls"] = own.custom_data.get("calls", 0) + 1
        for info in own.get_infos():
            info["seen"] = True

    before = copy.deepcopy(episode.get_infos())
    for _ in range(2):
        batch_of(lab, [episode], each(lab, write), each(lab, seen.append))
    assert episode.get_infos() == before and episode.custom_data == {"calls": 2}
    assert [info.get("seen") for info in seen[0].get_infos()] == [True] * 4


def test_shared_data_of_another_call_adds_no_rows(lab):
    shared, episodes = {}, [lab.episode("a", 2)]
    assert len(batch_of(lab, episodes, shared_data=shared)["rewards"]) == 3
    plain = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module(), shared_data=shared)
    assert len(plain["rewards"]) == 2


def test_episodes_whose_observations_were_rewritten_are_lengthened(lab):
    """The environment gives numbers; a piece made vectors of them."""
    episode = SingleAgentEpisode(observation_space=Discrete(3))
    episode.add_env_reset(2)
    episode.set_observations(new_data=np.array([0.0, 0.0, 1.0]), at_indices=-1)
    for newest in (np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])):
        episode.add_env_step(1, 0, 0.5)
        episode.set_observations(new_data=newest, at_indices=-1)
    seen, rows = [], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    look = each(lab, lambda own: seen.append(own.get_observations().tolist()))
    assert batch_of(lab, [episode], look)["obs"] == rows
    assert seen == [[*rows, rows[-1]]]


def test_lengthened_copies_keep_their_lookback(lab):
    seen = []

    def look(own):
        rows = own.get_observations(slice(-2, 1), neg_index_as_lookback=True)
        seen.append((own.t_started, rows[:, 0].tolist()))

    batch_of(lab, [lab.episode("a", 2, t_started=5, lookback=2)], each(lab, look))
    assert seen == [(5, [3, 4, 5])]


@pytest.mark.parametrize(
    ("column", "given", "expected"),
    [
        ("extra", [7.0, 8.0], [7.0, 8.0, 8.0]),
        ("extra", [7.0, 8.0, 9.0], [7.0, 8.0, 9.0]),
        ("rewards", [7.0, 8.0], [7.0, 8.0, 0.0]),
    ],
)
def test_columns_of_pieces_before_it_gain_the_row_once(lab, column, given, expected):
    assert batch_of(lab, [lab.episode("a", 2)], batch={column: {("a",): given}})[column] == expected


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_columns_with_any_other_number_of_rows_are_named(lab, rows):
    mine = {"extra": {("good",): [0.0, 0.0], ("bad",): [0.0] * rows}}
    with pytest.raises(EpibatchError, match=rf"extra[\s\S]*bad[\s\S]*found:    {rows}"):
        batch_of(lab, [lab.episode("good", 2), lab.episode("bad", 2)], batch=mine)


def test_recurrent_rows_count_real_steps_only(lab):
    episodes = [lab.episode("a", 4, state=2, end="terminated"), lab.episode("b", 5, state=2, offset=100)]
    batch = batch_of(lab, episodes, rl_module=lab.module(state=2, max_seq_len=4))
    # five rows of "a" make sequences of 4 and 1, the latter holding nothing but the bootstrap row
    assert batch["seq_lens"] == [4, 0, 4, 1]
    assert batch["loss_mask"] == [[True] * 4, [False] * 4, [True] * 4, [True, False, False, False]]
    assert batch["rewards"] == [
        [0.5, 1.5, 2.5, 3.5],
        [0.0, 0.0, 0.0, 0.0],
        [100.5, 101.5, 102.5, 103.5],
        [104.5, 0.0, 0.0, 0.0],
    ]
    assert batch["terminateds"][0] == [False, False, False, True]
    assert batch["truncateds"][3] == [True, False, False, False]
    assert batch["obs"][1] == [[4, 14], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_observations_of_pieces_before_it_need_one_row_more_than_steps(lab, rows):
    def add(batch, episodes):
        for episode in episodes:
            ConnectorV2.add_n_batch_items(batch, "obs", np.arange(2.0 * rows).reshape(rows, 2), rows, episode)

    if rows == 4:
        assert batch_of(lab, [lab.episode("a", 3)], before=[lab.user(add)])["obs"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        return
    words = rf"'obs', episode 'a'[\s\S]*expected: 4 rows: one per step and one for the last[\s\S]*found:    {rows} rows"
    with pytest.raises(EpibatchError, match=words):
        batch_of(lab, [lab.episode("a", 3)], before=[lab.user(add)])


def test_a_subclass_adds_the_rows_like_the_piece():
    class Own(AddOneTsToEpisodesAndTruncate):
        pass

    one, other = (trained([piece], [Lab.episode("a", 3)]) for piece in (AddOneTsToEpisodesAndTruncate(), Own()))
    assert one.keys() == other.keys() and len(other["loss_mask"]) == 4
    for name, column in one.items():
        np.testing.assert_array_equal(other[name], column)
