"""Joining the items of all keys into one array per column."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch
from epibatch.core.errors import EpibatchError
from epibatch.core.spaces import BatchedNdArray


def learner_pieces():
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
    ]


def test_env_rows_follow_the_order_of_the_episodes(lab):
    episodes = [lab.episode(id_, 1, offset=offset, numpy=False) for id_, offset in (("z", 5), ("a", 2), ("m", 9))]
    batch = lab.run("env_to_module", [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()], episodes)
    assert isinstance(batch["obs"], np.ndarray)
    assert batch["obs"].tolist() == [[6.0, 16.0], [3.0, 13.0], [10.0, 20.0]]
    assert batch["obs"].dtype == np.float32


def test_chunks_that_share_an_id_keep_their_own_rows(lab):
    episodes = [lab.episode(id_, 1, offset=i, numpy=False) for i, id_ in enumerate(["x", "x", "x"])]
    batch = lab.run("env_to_module", [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()], episodes)
    assert batch["obs"][:, 0].tolist() == [1.0, 2.0, 3.0]


def test_learner_columns_are_concatenated_with_their_types(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3, offset=100, end="terminated")]
    batch = lab.run("learner", learner_pieces(), episodes, rl_module=lab.module())
    expected = {
        "obs": np.array([[0, 10], [1, 11], [100, 110], [101, 111], [102, 112]], np.float32),
        "actions": np.array([0, 1, 0, 1, 0]),
        "rewards": np.array([0.5, 1.5, 100.5, 101.5, 102.5]),
        "terminateds": np.array([False, False, False, False, True]),
        "truncateds": np.zeros(5, bool),
        "action_logp": np.array([0, -1, -100, -101, -102], np.float32),
    }
    assert set(batch) == set(expected)
    for column, value in expected.items():
        assert type(batch[column]) is np.ndarray, column
        assert batch[column].dtype == value.dtype, column
        assert np.array_equal(batch[column], value), column


def test_a_multi_module_gets_its_batch_under_the_default_module(lab):
    batch = lab.run("learner", learner_pieces(), [lab.episode("a", 2)], rl_module=lab.module(multi=True))
    assert list(batch) == ["default_policy"]
    assert batch["default_policy"]["obs"].shape == (2, 2)


def test_infos_stay_lists(lab):
    def add_infos(batch, episodes):
        for episode in episodes:
            ConnectorV2.add_n_batch_items(batch, "infos", episode.get_infos(slice(0, 2)), 2, episode)

    pieces = [lab.user(add_infos), *learner_pieces()]
    batch = lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 2, offset=7)], rl_module=lab.module())
    assert batch["infos"] == [{"t": 0}, {"t": 1}, {"t": 7}, {"t": 8}]


def test_single_items_tagged_items_and_nesting_mix(lab):
    mine = {
        "extra": {
            ("a",): [{"x": 1.0, "y": np.zeros(2)}, {"x": 2.0, "y": np.ones(2)}],
            ("b",): [{"x": BatchedNdArray([3.0, 4.0]), "y": BatchedNdArray(np.full((2, 2), 5.0))}],
        }
    }
    episodes = [lab.episode("a", 2), lab.episode("b", 2)]
    batch = lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), batch=mine)
    assert batch["extra"]["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch["extra"]["y"].tolist() == [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]


def test_items_under_keys_in_another_order_are_put_in_order_of_the_episodes(lab):
    mine = {"extra": {("b",): [2.0], ("a",): [1.0]}}
    episodes = [lab.episode("a", 1), lab.episode("b", 1)]
    batch = lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), batch=mine)
    assert batch["extra"].tolist() == [1.0, 2.0]


def test_mixed_shapes_in_one_column_are_named(lab):
    mine = {"extra": {("a",): [np.zeros(2)], ("b",): [np.zeros(3)]}}
    episodes = [lab.episode("a", 1), lab.episode("b", 1)]
    with pytest.raises(EpibatchError, match="extra"):
        lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), batch=mine)


def test_mixed_observation_spaces_in_one_batch_are_named(lab):
    other = lab.episode("b", 1, observations=[np.zeros(3, np.float32)] * 2, observation_space=None)
    with pytest.raises(EpibatchError, match="obs") as raised:
        lab.run("learner", learner_pieces(), [lab.episode("a", 1), other], rl_module=lab.module())
    assert "shape (2,), as in episode 'a'" in str(raised.value)
    assert "shape (3,) in episode 'b'" in str(raised.value)


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_column_with_the_wrong_number_of_rows_is_named(lab, rows):
    mine = {"extra": {("good",): [0.0, 0.0], ("bad",): [0.0] * rows}}
    episodes = [lab.episode("good", 2), lab.episode("bad", 2)]
    with pytest.raises(EpibatchError, match="extra") as raised:
        lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), batch=mine)
    message = str(raised.value)
    assert "bad" in message
    assert "expected: 2" in message.replace("rows: ", "")
    assert f"found:    {rows}" in message


def test_an_episode_without_an_item_is_named(lab):
    def only_the_first(batch, episodes):
        lab.user.add_batch_item(batch, "extra", 1.0, episodes[0])

    episodes = [lab.episode("a", 0, numpy=False), lab.episode("left_out", 0, numpy=False)]
    pieces = [lab.user(only_the_first), *lab.defaults("env_to_module")]
    with pytest.raises(EpibatchError, match="column 'extra', episode 'left_out'") as raised:
        lab.run("env_to_module", pieces, episodes, rl_module=lab.module())
    assert "found:    0 rows" in str(raised.value)


def test_an_episode_that_occurs_twice_gives_its_rows_twice(lab):
    episode = lab.episode("a", 2)
    batch = lab.run("learner", learner_pieces(), [episode, episode], rl_module=lab.module())
    assert batch["rewards"].tolist() == [0.5, 1.5, 0.5, 1.5]


def test_the_env_batch_is_not_a_view_of_an_episode(lab):
    episode = lab.episode("a", 2, numpy=False)
    batch = lab.run("env_to_module", [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()], [episode])
    batch["obs"][:] = 99.0
    assert episode.get_observations(-1).tolist() == [2.0, 12.0]


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="multi_agnt"):
        BatchIndividualItems(multi_agnt=True)


def test_by_itself_it_batches_columns_without_their_episodes():
    shared = {}
    batch = {"obs": {("x",): [0, 1], ("y",): [2]}, "actions": {("x",): [4, 5], ("y",): [6]}}
    out = BatchIndividualItems()(batch=batch, episodes=[], shared_data=shared)
    assert out["obs"].tolist() == [0, 1, 2] and out["actions"].tolist() == [4, 5, 6]
    assert list(shared["memorized_map_structure"]) == ["x", "x", "y"]
    one_each = BatchIndividualItems()(batch={"obs": {("x",): [3], ("y",): [4]}}, episodes=[], shared_data=shared)
    assert one_each["obs"].tolist() == [3, 4] and list(shared["memorized_map_structure"]) == ["x", "y"]
    with pytest.raises(EpibatchError, match="column 'obs', episode 'x'"):
        BatchIndividualItems()(batch={"obs": {("x",): [3]}, "actions": {("x",): [3, 4]}}, episodes=[])


def test_it_sees_from_the_episodes_how_many_agents_there_are():
    for multi_agent in (False, True):
        assert BatchIndividualItems(multi_agent=multi_agent)(batch={}, episodes=[]) == {}


def test_the_row_map_has_one_entry_per_row_of_nested_observations_too(lab):
    episodes = [lab.episode(id_, n, observations=[{"x": i} for i in range(n + 1)]) for id_, n in (("a", 2), ("b", 1))]
    shared = {}
    lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), shared_data=shared)
    assert list(shared["memorized_map_structure"]) == ["a", "a", "b"]
