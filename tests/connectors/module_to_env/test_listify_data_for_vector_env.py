"""What the vector environment and the runner receive."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.module_to_env import ListifyDataForVectorEnv, TensorToNumpy, UnBatchToIndividualItems
from epibatch.core.errors import EpibatchError


def listified(lab, outputs, user=None, ids=("z", "a")):
    episodes = [lab.episode(id_, 0, numpy=False) for id_ in ids]
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ListifyDataForVectorEnv()]
    if user:
        pieces.insert(2, lab.user(user))
    return lab.env_step(episodes, outputs, pieces)


def test_array_columns_have_the_environment_axis_first(lab):
    outputs = {"actions": torch.tensor([5, 6]), "action_logp": torch.tensor([0.5, 1.5]), "x": torch.ones(2, 3)}
    result = listified(lab, outputs)
    assert isinstance(result["actions"], np.ndarray)
    assert result["actions"].tolist() == [5, 6]
    assert [float(result["action_logp"][i]) for i in range(2)] == [0.5, 1.5]
    assert [len(result[column]) for column in outputs] == [2, 2, 2]
    assert result["x"][1].tolist() == [1.0, 1.0, 1.0]
    assert np.asarray(result["action_logp"]).dtype == np.float32


def test_nested_actions_are_batched_leaf_by_leaf(lab):
    result = listified(lab, {"actions": (torch.tensor([0, 1]), torch.ones(2, 3))})
    assert isinstance(result["actions"], tuple)
    assert result["actions"][0].tolist() == [0, 1]
    assert result["actions"][1].shape == (2, 3)


def test_rows_follow_the_episodes_whatever_order_a_user_piece_leaves(lab):
    def reverse(batch, episodes):
        batch["actions"] = dict(reversed(batch["actions"].items()))

    result = listified(lab, {"actions": torch.tensor([5, 6]), "x": torch.tensor([1.0, 2.0])}, reverse)
    assert np.asarray(result["actions"]).tolist() == [5, 6]
    assert np.asarray(result["x"]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("behind", [False, True])
def test_a_nested_column_has_rows_behind_a_user_piece_too(lab, behind):
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ListifyDataForVectorEnv()]
    pieces += [lab.user(lambda batch, episodes: None)] * behind
    outputs = {"actions": torch.tensor([5, 6]), "state_out": {"h": torch.tensor([[1.0], [2.0]])}}
    result = lab.env_step([lab.episode(id_, 0, numpy=False) for id_ in "ab"], outputs, pieces)
    assert result["state_out"][1]["h"].tolist() == [2.0]


def test_object_columns_stay_lists(lab):
    def add(batch, episodes):
        batch["notes"] = {(episode.id_,): [{"id": episode.id_}] for episode in episodes}
        batch["names"] = {(episode.id_,): [episode.id_] for episode in episodes}

    result = listified(lab, {"actions": torch.tensor([5, 6])}, add)
    assert list(result["names"]) == ["z", "a"]


def test_infos_stay_lists_of_dicts(lab):
    def add(batch, episodes):
        batch["infos"] = {(episode.id_,): [{"id": episode.id_}] for episode in episodes}

    result = listified(lab, {"actions": torch.tensor([5, 6])}, add)
    assert result["infos"] == [{"id": "z"}, {"id": "a"}]


def test_an_unknown_key_is_named(lab):
    def add(batch, episodes):
        batch["actions"]["nobody",] = [np.int64(0)]

    with pytest.raises(EpibatchError, match="nobody"):
        listified(lab, {"actions": torch.tensor([5, 6])}, add)


def test_a_missing_key_is_named(lab):
    def drop(batch, episodes):
        del batch["actions"]["a",]

    with pytest.raises(EpibatchError, match="actions") as raised:
        listified(lab, {"actions": torch.tensor([5, 6])}, drop)
    assert "'a'" in str(raised.value)


@pytest.mark.parametrize("count", [0, 2])
def test_each_key_must_hold_one_item(lab, count):
    def repeat(batch, episodes):
        batch["actions"]["a",] = [np.int64(0)] * count

    with pytest.raises(EpibatchError, match="actions") as raised:
        listified(lab, {"actions": torch.tensor([5, 6])}, repeat)
    assert "'a'" in str(raised.value)


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="num_envs"):
        ListifyDataForVectorEnv(num_envs=2)
