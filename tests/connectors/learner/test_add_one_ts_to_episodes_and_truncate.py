"""Bootstrap rows without touching the episodes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner import (
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import EpibatchError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import Lab


def without_gae():
    return Lab.defaults("learner", ppo=True)[:-1]


def batch_of(lab, episodes, pieces=None, **keywords):
    keywords = {"rl_module": lab.module(), **keywords}
    batch = lab.run("learner", pieces or without_gae(), episodes, **keywords)
    return {name: np.asarray(column).tolist() for name, column in batch.items() if name != "state_in"}


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
    pieces = without_gae()
    pieces.insert(1, lab.user(lambda batch, episodes: seen.extend((e.is_terminated, e.is_truncated) for e in episodes)))
    for own in (without_gae(), pieces):
        batch = batch_of(lab, [episode], own)
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


def test_user_pieces_in_front_see_the_episodes_as_they_happened(lab):
    lengths = []
    user = lab.user(lambda batch, episodes: lengths.extend(len(episode) for episode in episodes))
    batch = batch_of(lab, [lab.episode("a", 2)], [user, *without_gae()])
    assert lengths == [2]
    assert batch["loss_mask"] == [True, True, False]


def test_user_pieces_behind_see_lengthened_copies(lab):
    seen = []

    def look(batch, episodes):
        for episode in episodes:
            seen.append(
                (
                    len(episode),
                    episode.get_observations()[:, 0].tolist(),
                    episode.get_actions().tolist(),
                    episode.get_rewards().tolist(),
                    episode.get_extra_model_outputs("action_logp").tolist(),
                    episode.id_,
                )
            )

    episode = lab.episode("a", 2, end="terminated")
    pieces = without_gae()
    pieces.insert(1, lab.user(look))
    batch_of(lab, [episode], pieces)
    assert seen == [(3, [0, 1, 2, 2], [0, 1, 1], [0.5, 1.5, 0.0], [0.0, -1.0, -1.0], "a")]
    assert len(episode) == 2


def test_rewards_written_behind_reach_the_batch(lab):
    def shape(batch, episodes):
        for episode in episodes:
            rewards = np.array(episode.get_rewards())
            episode.set_rewards(new_data=rewards + 100.0)

    pieces = without_gae()
    pieces.insert(1, lab.user(shape))
    batch = batch_of(lab, [lab.episode("a", 2)], pieces)
    assert batch["rewards"][:2] == [100.5, 101.5]
    assert batch["loss_mask"] == [True, True, False]


def test_infos_written_behind_are_not_those_of_the_episode():
    def mark(batch, episodes):
        for info in episodes[0].get_infos():
            info["seen"] = True

    episode = Lab.episode("a", 2)
    before = copy.deepcopy(episode.get_infos())
    seen = []
    pieces = [AddOneTsToEpisodesAndTruncate(), Lab.user(mark), Lab.user(lambda batch, episodes: seen.extend(episodes))]
    LearnerConnectorPipeline(connectors=pieces)(rl_module=None, episodes=[episode])
    assert episode.get_infos() == before
    assert [info.get("seen") for info in seen[0].get_infos()] == [True] * 4


def test_custom_data_written_behind_stays_with_the_episode(lab):
    def count(batch, episodes):
        for episode in episodes:
            episode.custom_data["calls"] = episode.custom_data.get("calls", 0) + 1

    episode = lab.episode("a", 2)
    for _ in range(2):
        pieces = without_gae()
        pieces.insert(1, lab.user(count))
        batch_of(lab, [episode], pieces)
    assert episode.custom_data == {"calls": 2}


def test_shared_data_of_another_call_adds_no_rows(lab):
    shared = {}
    episodes = [lab.episode("a", 2)]
    assert len(batch_of(lab, episodes, shared_data=shared)["rewards"]) == 3
    assert len(batch_of(lab, episodes, lab.defaults("learner"), shared_data=shared)["rewards"]) == 2


def test_episodes_whose_observations_were_rewritten_are_lengthened(lab):
    """The environment gives numbers; a piece made vectors of them."""
    episode = SingleAgentEpisode(observation_space=Discrete(3))
    episode.add_env_reset(2)
    episode.set_observations(new_data=np.array([0.0, 0.0, 1.0]), at_indices=-1)
    for newest in (np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])):
        episode.add_env_step(1, 0, 0.5)
        episode.set_observations(new_data=newest, at_indices=-1)
    seen = []
    pieces = without_gae()
    pieces.insert(1, lab.user(lambda batch, episodes: seen.append(episodes[0].get_observations().tolist())))
    rows = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert batch_of(lab, [episode], pieces)["obs"] == rows
    assert seen == [[*rows, rows[-1]]]


def test_lengthened_copies_keep_their_lookback(lab):
    seen = []
    pieces = without_gae()
    pieces.insert(
        1,
        lab.user(
            lambda batch, episodes: seen.append(
                (
                    episodes[0].t_started,
                    episodes[0].get_observations(slice(-2, 1), neg_index_as_lookback=True)[:, 0].tolist(),
                )
            )
        ),
    )
    batch_of(lab, [lab.episode("a", 2, t_started=5, lookback=2)], pieces)
    assert seen == [(5, [3, 4, 5])]


@pytest.mark.parametrize(("given", "expected"), [([7.0, 8.0], [7.0, 8.0, 8.0]), ([7.0, 8.0, 9.0], [7.0, 8.0, 9.0])])
def test_columns_of_pieces_in_front_gain_the_row_once(lab, given, expected):
    mine = {"extra": {("a",): given}}
    assert batch_of(lab, [lab.episode("a", 2)], batch=mine)["extra"] == expected


def test_given_rewards_gain_a_zero(lab):
    mine = {"rewards": {("a",): [7.0, 8.0]}}
    assert batch_of(lab, [lab.episode("a", 2)], batch=mine)["rewards"] == [7.0, 8.0, 0.0]


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_columns_with_any_other_number_of_rows_are_named(lab, rows):
    mine = {"extra": {("good",): [0.0, 0.0], ("bad",): [0.0] * rows}}
    with pytest.raises(EpibatchError, match="extra") as raised:
        batch_of(lab, [lab.episode("good", 2), lab.episode("bad", 2)], batch=mine)
    message = str(raised.value)
    assert "bad" in message
    assert f"found:    {rows}" in message


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


def test_observations_without_the_last_ones_row_are_refused(lab):
    def one_per_step(batch, episodes):
        for episode in episodes:
            rows = episode.get_observations(slice(0, len(episode)))
            ConnectorV2.add_n_batch_items(batch, "obs", rows, len(episode), episode)

    def with_the_last(batch, episodes):
        for episode in episodes:
            ConnectorV2.add_n_batch_items(batch, "obs", episode.get_observations(), len(episode) + 1, episode)

    episodes = [lab.episode("a", 2), lab.episode("b", 3, offset=50)]
    message = r"'obs', episode 'a'[\s\S]*3 rows[\s\S]*whose value bootstraps[\s\S]*2 rows"
    with pytest.raises(EpibatchError, match=message):
        batch_of(lab, episodes, [lab.user(one_per_step), *without_gae()])
    batch = batch_of(lab, episodes, [lab.user(with_the_last), *without_gae()])
    assert [row[0] for row in batch["obs"]] == [0, 1, 2, 50, 51, 52, 53]


def test_a_subclass_adds_the_rows_like_the_piece():
    class Own(AddOneTsToEpisodesAndTruncate):
        pass

    batches = []
    for piece in (AddOneTsToEpisodesAndTruncate(), Own()):
        pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), piece, BatchIndividualItems()]
        batches.append(LearnerConnectorPipeline(connectors=pieces)(episodes=[Lab.episode("a", 3)]))
    assert batches[0].keys() == batches[1].keys() and len(batches[1]["obs"]) == 4
    for name, column in batches[0].items():
        np.testing.assert_array_equal(batches[1][name], column)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_observations_of_another_number_need_one_row_more_than_steps(lab, rows):
    class Own(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in episodes:
                self.add_n_batch_items(batch, "obs", np.zeros((rows, 2)), rows, episode)
            return batch

    with pytest.raises(EpibatchError) as error:
        batch_of(lab, [lab.episode("a", 3)], [Own(), *without_gae()])
    assert "expected: 4 rows: one per step and one for the last observation" in str(error.value)
    assert f"found:    {rows} rows" in str(error.value)
