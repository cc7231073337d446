"""What episodes recorded per step in train batches, and bootstrap rows that leave the episodes alone."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete

from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import ColumnError, EpibatchError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import Lab, played, trained


def pieces():
    return [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]


def test_columns_and_types(lab):
    chunk = lab.episode("b", 2, t_started=4, lookback=2, state=2)
    columns = lab.columns("learner", pieces(), [lab.episode("a", 3, state=2), chunk])
    expected = {
        "actions": ([0, 1, 0], [0, 1], np.int64),
        "rewards": ([0.5, 1.5, 2.5], [4.5, 5.5], np.float64),
        "terminateds": ([False] * 3, [False] * 2, np.bool_),
        "truncateds": ([False] * 3, [False] * 2, np.bool_),
        "action_logp": ([0.0, -1.0, -2.0], [-4.0, -5.0], np.float32),
    }
    for name, (first, second, dtype) in expected.items():
        assert columns[name]["a",].tolist() == first, name
        assert columns[name]["b",].tolist() == second, name
        assert columns[name]["a",].dtype == dtype, name
    assert set(columns) == {"obs", *expected}


@pytest.mark.parametrize("name", ["obs", "actions", "rewards", "terminateds", "truncateds", "action_logp", "new_obs"])
def test_columns_that_are_there_already_are_never_overwritten(lab, name):
    adds = [*pieces(), AddNextObservationsFromEpisodesToTrainBatch(), AddInfosFromEpisodesToTrainBatch()]
    mine = {name: {("a",): [7.0, 8.0, 9.0]}, "infos": {("a",): [{"own": i} for i in range(3)]}}
    seen = lab.see("learner", adds, [lab.episode("a", 3)], batch=mine)
    assert lab.rows(seen[name]["a",]).tolist() == [7.0, 8.0, 9.0]
    assert seen["infos"] == {("a",): [{"own": 0}, {"own": 1}, {"own": 2}]}


def test_nested_actions(lab):
    space = gym.spaces.Dict(x=gym.spaces.Discrete(9), y=gym.spaces.Box(-9, 9, (2,)))
    actions = [{"x": np.int64(i), "y": np.full(2, i, np.float32)} for i in range(3)]
    episodes = [lab.episode("a", 3, actions=actions, action_space=space)]
    columns = lab.columns("learner", pieces(), episodes, spaces=(lab.obs_space, space))
    assert columns["actions"]["a",]["x"].tolist() == [0, 1, 2]
    assert columns["actions"]["a",]["y"].shape == (3, 2)


def test_rewards_changed_by_a_user_piece_arrive_and_stay_in_the_episode(lab):
    """Fractions also where the rewards were integers."""

    def shape(batch, episodes):
        episodes[0].set_rewards(new_data=episodes[0].get_rewards() + 100.0)
        episodes[1].set_rewards(new_data=0.25, at_indices=1)

    episodes = [lab.episode("a", 3), lab.episode("b", 3, rewards=[1, 2, 3])]
    columns = lab.columns("learner", [lab.user(shape), *pieces()], episodes)
    assert columns["rewards"]["a",].tolist() == episodes[0].get_rewards().tolist() == [100.5, 101.5, 102.5]
    assert columns["rewards"]["b",].tolist() == [1.0, 0.25, 3.0]


def test_episodes_with_other_model_outputs_are_named(lab):
    other = lab.episode("odd_one", 2, extra_model_outputs={"vf_preds": [0.0, 0.0]})
    with pytest.raises(EpibatchError, match=r"(?s)(?=.*odd_one)(?=.*vf_preds)"):
        lab.run("learner", pieces(), [lab.episode("a", 3), other])


def test_a_leaf_whose_shape_changes_is_named(lab):
    ragged = [np.zeros(2), np.zeros(3), np.zeros(2)]
    episodes = [lab.episode("some_id", 3, extra_model_outputs={"ragged": ragged}, numpy=False)]
    with pytest.raises(EpibatchError, match=r"(?s)(?=.*ragged)(?=.*some_id)"):
        lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())


@pytest.mark.parametrize("ppo", [False, True])
def test_plain_pieces_see_one_flag_per_step(lab, ppo):
    bootstrap = lab.defaults("learner", ppo=True)[:1] if ppo else []
    seen = lab.see("learner", [*bootstrap, *pieces()], [lab.episode("a", 2, end="terminated")])
    assert seen["terminateds"]["a",] == [False, True, False][: 2 + ppo]
    assert [type(column["a",]) for column in seen.values()] == [list] * len(seen)
    assert [len(seen[name]["a",]) for name in ("truncateds", "rewards")] == [2 + ppo, 1]


def test_integer_rewards_become_floats_where_a_bootstrap_row_has_none(lab):
    chain = lab.defaults("learner", ppo=True)[:-2]  # without tensors and advantages
    batch = lab.run("learner", chain, [lab.episode("a", 2, rewards=[3, 4])], rl_module=lab.module())
    assert batch["rewards"].dtype == np.float64 and batch["rewards"].tolist() == [3.0, 4.0, 0.0]


def test_outputs_that_are_no_numbers_stay_objects(lab):
    episode = lab.episode("a", 2, extra_model_outputs={"notes": ["x", "longer"]})
    notes = lab.columns("learner", pieces(), [episode])["notes"]["a",]
    assert notes.dtype == object and notes.tolist() == ["x", "longer"]


def test_by_itself_it_says_that_no_episode_has_a_step():
    with pytest.raises(EpibatchError, match=r"column 'actions'[\s\S]*leave out episodes without steps"):
        AddColumnsFromEpisodesToTrainBatch()(batch={}, episodes=[Lab.episode("a", 0)])


def test_an_episode_without_steps_needs_no_outputs_where_the_piece_is_called_by_itself():
    """A learner pipeline refuses it; by itself the piece goes by the others."""
    begun = SingleAgentEpisode(id_="b", observations=[0], extra_model_outputs={"x": []})
    rows = [np.array([t, 1.0], np.float32) for t in range(2)]
    whole = played([0, 1, 2], id_="a", extra_model_outputs={"x": rows})
    for episodes in ([whole, begun], [begun, whole]):
        batch = AddColumnsFromEpisodesToTrainBatch()(rl_module=None, batch={}, episodes=episodes)
        assert np.concatenate(batch["x"]["a",]).tolist() == [[0.0, 1.0], [1.0, 1.0]]
        assert batch["x"]["b",] == []


def learner_piece():
    return AddObservationsFromEpisodesToBatch(as_learner_connector=True)


def test_observations_to_act_on_that_are_there_already_stay(lab):
    mine = {"obs": {("a",): [np.zeros(7)]}}
    episodes = [lab.episode("a", 1, numpy=False)]
    seen = lab.see("env_to_module", [AddObservationsFromEpisodesToBatch()], episodes, batch=mine)
    assert seen["obs"]["a",][0].shape == (7,)


@pytest.mark.parametrize("id_", ["a", "my_x", "a_0"])
def test_two_chunks_of_one_episode_have_keys_of_their_own(lab, id_):
    episodes = [lab.episode(id_, 2), lab.episode(id_, 1, t_started=2)]
    columns = lab.columns("learner", [learner_piece()], episodes)
    assert list(columns["obs"]) == [(f"{id_}_0",), (f"{id_}_1",)] and {episode.id_ for episode in episodes} == {id_}
    assert columns["obs"][f"{id_}_0",][:, 0].tolist() == [0.0, 1.0]
    assert columns["obs"][f"{id_}_1",][:, 0].tolist() == [2.0]


def test_chunk_keys_avoid_ids_that_look_like_them(lab):
    episodes = [lab.episode("a", 2), lab.episode("a_1", 1, offset=50), lab.episode("a", 1, t_started=2)]
    columns = lab.columns("learner", [learner_piece()], episodes)
    assert [value[:, 0].tolist() for value in columns["obs"].values()] == [[0.0, 1.0], [50.0], [2.0]]


@pytest.mark.parametrize("bootstrap", [False, True])
def test_next_observations_and_infos_of_steps_and_of_a_bootstrap_row(lab, bootstrap):
    chunk = lab.episode("b", 2, t_started=4, lookback=2)
    adds = [AddNextObservationsFromEpisodesToTrainBatch(), AddInfosFromEpisodesToTrainBatch()]
    seen = lab.see("learner", [AddOneTsToEpisodesAndTruncate()] * bootstrap + adds, [lab.episode("a", 3), chunk])
    rows = {key: lab.rows(items).tolist() for key, items in seen["new_obs"].items()}
    assert rows == {
        ("a",): [[1, 11], [2, 12], [3, 13], *[[3, 13]] * bootstrap],
        ("b",): [[5, 15], [6, 16], *[[6, 16]] * bootstrap],
    }
    infos = {("a",): [0, 1, 2, *[3] * bootstrap], ("b",): [4, 5, *[6] * bootstrap]}
    assert seen["infos"] == {key: [{"t": t} for t in own] for key, own in infos.items()}


def test_through_the_default_pieces_they_stay_a_list_of_dicts(lab):
    pieces = [AddInfosFromEpisodesToTrainBatch(), *lab.defaults("learner", ppo=True)]
    batch = lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)], rl_module=lab.module())
    assert batch["infos"] == [{"t": 0}, {"t": 1}, {"t": 2}, {"t": 0}, {"t": 1}]


class Notes(ColumnTransform):
    """Notes the rows that it is given."""

    columns: str = "obs"

    def transform(self, x):
        self.seen = np.asarray(x).tolist()
        return x


def noted(kind, column, *front):
    """The rows of a column that a transform sees of two equal episodes."""
    rows = {"observations": [0, 1, 2], "actions": [5, 6], "rewards": [0.5, 1.5], "extra_model_outputs": {"v": [7, 8]}}
    piece = Notes(columns=column)
    kind(connectors=[*front, piece])(episodes=[SingleAgentEpisode(**rows, len_lookback_buffer=0) for _ in range(2)])
    return piece.seen


@pytest.mark.parametrize(
    ("column", "rows", "bootstrap"),
    [
        ("obs", [0, 1], 2),
        ("actions", [5, 6], 6),
        ("rewards", [0.5, 1.5], 0.0),
        ("v", [7, 8], 8),
        ("new_obs", [1, 2], 2),
    ],
)
def test_a_piece_in_front_takes_rows_from_the_episodes(column, rows, bootstrap):
    assert noted(LearnerConnectorPipeline, column) == 2 * rows
    longer = noted(LearnerConnectorPipeline, column, AddOneTsToEpisodesAndTruncate())
    assert longer == 2 * [*rows, bootstrap]
    if column == "obs":
        assert noted(EnvToModulePipeline, column) == [2, 2]


@pytest.mark.parametrize(
    ("kind", "column", "match"),
    [
        (LearnerConnectorPipeline, "reward", "did you mean 'rewards'"),
        (EnvToModulePipeline, "rewards", "learner pipeline"),
        (LearnerConnectorPipeline, "observations", "did you mean 'obs'"),
        (EnvToModulePipeline, "observation", "did you mean 'obs'"),
        (LearnerConnectorPipeline, "next_obs", "did you mean 'new_obs'"),
        (EnvToModulePipeline, "reward", "name it 'rewards', and put the piece into the learner"),
        (EnvToModulePipeline, "v", "Known: obs"),
    ],
)
def test_what_is_nowhere_is_named(kind, column, match):
    with pytest.raises(ColumnError, match=match):
        noted(kind, column)


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
