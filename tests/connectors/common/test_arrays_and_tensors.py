"""Items to arrays, arrays to tensors and back."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    NumpyToTensor,
    TensorToNumpy,
)
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch
from epibatch.core.errors import EpibatchError
from epibatch.core.spaces import BatchedNdArray
from fixture_pieces import Lab


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


def test_single_items_tagged_items_and_nesting_mix(lab):
    mine = {
        "extra": {
            ("a",): [{"x": 1.0, "y": np.zeros(2)}, {"x": 2.0, "y": np.ones(2)}],
            ("b",): [{"x": BatchedNdArray([3.0, 4.0]), "y": BatchedNdArray(np.full((2, 2), 5.0))}],
        },
        "types": {("a",): [BatchedNdArray(np.arange(2)), BatchedNdArray(np.zeros(0))], ("b",): [0.5, 1.5]},
        "notes": {(id_,): [BatchedNdArray(np.array([id_, "x"], object))] for id_ in "ab"},
    }
    episodes = [lab.episode("a", 2), lab.episode("b", 2)]
    batch = lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), batch=mine)
    assert batch["extra"]["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch["extra"]["y"].tolist() == [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]
    assert batch["types"].tolist() == [0.0, 1.0, 0.5, 1.5]
    assert batch["notes"].dtype == object and batch["notes"].tolist() == ["a", "x", "b", "x"]


def test_items_under_keys_in_another_order_are_put_in_order_of_the_episodes(lab):
    mine = {"extra": {("b",): [2.0], ("a",): [1.0]}}
    episodes = [lab.episode("a", 1), lab.episode("b", 1)]
    batch = lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), batch=mine)
    assert batch["extra"].tolist() == [1.0, 2.0]


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


def test_the_row_map_has_one_entry_per_row_of_nested_observations_too(lab):
    episodes = [lab.episode(id_, n, observations=[{"x": i} for i in range(n + 1)]) for id_, n in (("a", 2), ("b", 1))]
    shared = {}
    lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), shared_data=shared)
    assert list(shared["memorized_map_structure"]) == ["a", "a", "b"]


TYPES = [
    (np.float64, torch.float32),
    (np.float32, torch.float32),
    (np.float16, torch.float16),
    (np.int64, torch.int64),
    (np.int32, torch.int32),
    (np.uint8, torch.uint8),
    (np.bool_, torch.bool),
]


@pytest.mark.parametrize(("array_type", "tensor_type"), TYPES)
def test_types(array_type, tensor_type):
    values = np.array([[0, 1], [1, 0]], array_type)
    batch = Lab.call(NumpyToTensor(), {"x": values}, rl_module=Lab.module())
    assert batch["x"].dtype == tensor_type
    assert batch["x"].tolist() == values.tolist()


def test_nested_columns_and_module_batches():
    batch = {"default_policy": {"x": {"a": np.ones(2), "b": (np.zeros(2, np.int64),)}}}
    result = Lab.call(NumpyToTensor(), batch, rl_module=Lab.module(multi=True))
    column = result["default_policy"]["x"]
    assert column["a"].dtype == torch.float32
    assert column["b"][0].dtype == torch.int64


def test_infos_and_object_arrays_stay():
    names = np.array(["a", "b"])
    objects = np.array([{}, None], object)
    batch = {"infos": [{"a": 1}, {}], "names": names, "objects": objects, "x": np.ones(2)}
    result = Lab.call(NumpyToTensor(), batch, rl_module=Lab.module())
    assert result["infos"] == [{"a": 1}, {}]
    assert isinstance(result["names"], np.ndarray)
    assert isinstance(result["objects"], np.ndarray)
    assert isinstance(result["x"], torch.Tensor)


def test_without_a_module_nothing_is_converted():
    result = Lab.call(NumpyToTensor(), {"x": np.ones(2)}, rl_module=None)
    assert isinstance(result["x"], np.ndarray)


def test_tensors_stay_tensors():
    result = Lab.call(NumpyToTensor(), {"x": torch.ones(2)}, rl_module=Lab.module())
    assert result["x"].tolist() == [1.0, 1.0]


def test_read_only_and_reversed_arrays_are_taken():
    frozen = np.arange(3.0, dtype=np.float32)
    frozen.setflags(write=False)
    batch = {"frozen": frozen, "reversed": np.arange(3)[::-1]}
    result = Lab.call(NumpyToTensor(), batch, rl_module=Lab.module())
    assert result["frozen"].tolist() == [0.0, 1.0, 2.0]
    assert result["reversed"].tolist() == [2, 1, 0]


def test_the_device_is_chosen():
    batch = {"x": np.ones(2)}
    result = Lab.call(NumpyToTensor(device="meta"), batch, rl_module=Lab.module())
    assert result["x"].device.type == "meta"


def test_memory_is_pinned_where_there_is_a_gpu(monkeypatch):
    batch, module = {"x": np.arange(3.0), "y": {"z": np.arange(2)}}, Lab.module()
    piece = NumpyToTensor(pin_memory=True)
    if torch.cuda.is_available():
        result = Lab.call(piece, batch, rl_module=module)
        assert result["x"].is_pinned() and result["y"]["z"].is_pinned()
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        result = Lab.call(piece, batch, rl_module=module)
        assert result["x"].tolist() == [0, 1, 2] and len(pinned) == 2 * there


@pytest.mark.parametrize("count", [1, 2])
def test_writing_into_the_tensors_never_changes_an_episode(lab, count):
    episodes = [lab.episode(f"e{i}", 3, state=2) for i in range(count)]
    before = [(e.get_observations().copy(), e.get_actions().copy(), e.get_rewards().copy()) for e in episodes]
    batch = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
    for column in batch.values():
        column.zero_()
    for episode, (observations, actions, rewards) in zip(episodes, before, strict=True):
        assert np.array_equal(episode.get_observations(), observations)
        assert np.array_equal(episode.get_actions(), actions)
        assert np.array_equal(episode.get_rewards(), rewards)


def test_other_frameworks_are_refused():
    module = types.SimpleNamespace(framework="jax", is_stateful=lambda: False)
    with pytest.raises(ValueError, match="torch"):
        Lab.call(NumpyToTensor(), {"x": np.ones(2)}, rl_module=module)


@pytest.mark.parametrize(
    ("tensor_type", "array_type"),
    [
        (torch.float64, np.float32),
        (torch.float32, np.float32),
        (torch.float16, np.float16),
        (torch.bfloat16, np.float32),
        (torch.int64, np.int64),
        (torch.int32, np.int32),
        (torch.uint8, np.uint8),
        (torch.bool, np.bool_),
    ],
)
def test_types_of_arrays(tensor_type, array_type):
    batch = {"x": torch.tensor([0, 1], dtype=tensor_type)}
    result = Lab.call(TensorToNumpy(), batch, rl_module=Lab.module())
    assert isinstance(result["x"], np.ndarray)
    assert result["x"].dtype == array_type
    assert result["x"].tolist() == [0, 1]


def test_large_integers_survive():
    batch = {"x": torch.tensor([2**40 + 1])}
    result = Lab.call(TensorToNumpy(), batch, rl_module=Lab.module())
    assert result["x"].tolist() == [2**40 + 1]


def test_scalar_tensors_stay_numpy():
    batch = {"x": torch.tensor(2.5)}
    result = Lab.call(TensorToNumpy(), batch, rl_module=Lab.module())
    assert isinstance(result["x"], (np.ndarray, np.generic))
    assert result["x"] == 2.5


def test_gradients_nesting_and_other_values():
    batch = {"x": {"a": torch.ones(2, requires_grad=True), "b": (torch.zeros(1),)}, "infos": [{"k": 1}]}
    result = Lab.call(TensorToNumpy(), batch, rl_module=Lab.module())
    assert result["x"]["a"].tolist() == [1.0, 1.0]
    assert isinstance(result["x"]["b"][0], np.ndarray)
    assert result["infos"] == [{"k": 1}]
