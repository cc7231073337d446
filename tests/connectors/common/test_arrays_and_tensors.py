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


def batch_of(lab, episodes, **keywords):
    return lab.run("learner", learner_pieces(), episodes, rl_module=lab.module(), **keywords)


def test_env_rows_follow_the_order_of_the_episodes(lab):
    episodes = [lab.episode(id_, 1, offset=offset, numpy=False) for id_, offset in (("z", 5), ("a", 2), ("m", 9))]
    batch = lab.run("env_to_module", [AddObservationsFromEpisodesToBatch(), BatchIndividualItems()], episodes)
    assert isinstance(batch["obs"], np.ndarray) and batch["obs"].dtype == np.float32
    assert batch["obs"].tolist() == [[6.0, 16.0], [3.0, 13.0], [10.0, 20.0]]


def test_single_items_tagged_items_and_nesting_mix(lab):
    """Items of an unusual kind, and keys in another order than the episodes."""
    mine = {
        "extra": {
            ("a",): [{"x": 1.0, "y": np.zeros(2)}, {"x": 2.0, "y": np.ones(2)}],
            ("b",): [{"x": BatchedNdArray([3.0, 4.0]), "y": BatchedNdArray(np.full((2, 2), 5.0))}],
        },
        "types": {("a",): [BatchedNdArray(np.arange(2)), BatchedNdArray(np.zeros(0))], ("b",): [0.5, 1.5]},
        "notes": {(id_,): [BatchedNdArray(np.array([id_, "x"], object))] for id_ in "ab"},
        "turned": {("b",): [3.0, 4.0], ("a",): [1.0, 2.0]},
    }
    batch = batch_of(lab, [lab.episode("a", 2), lab.episode("b", 2)], batch=mine)
    assert batch["extra"]["x"].tolist() == batch["turned"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch["extra"]["y"].tolist() == [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]
    assert batch["types"].tolist() == [0.0, 1.0, 0.5, 1.5]
    assert batch["notes"].dtype == object and batch["notes"].tolist() == ["a", "x", "b", "x"]


def test_an_episode_that_occurs_twice_gives_its_rows_twice(lab):
    episode = lab.episode("a", 2)
    assert batch_of(lab, [episode, episode])["rewards"].tolist() == [0.5, 1.5, 0.5, 1.5]


def test_the_row_map_has_one_entry_per_row_of_nested_observations_too(lab):
    episodes = [lab.episode(id_, n, observations=[{"x": i} for i in range(n + 1)]) for id_, n in (("a", 2), ("b", 1))]
    shared = {}
    batch_of(lab, episodes, shared_data=shared)
    assert list(shared["memorized_map_structure"]) == ["a", "a", "b"]


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


def test_mixed_observation_spaces_in_one_batch_are_named(lab):
    other = lab.episode("b", 1, observations=[np.zeros(3, np.float32)] * 2, observation_space=None)
    with pytest.raises(EpibatchError, match=r"obs[\s\S]*shape \(2,\), as in episode 'a'[\s\S]*\(3,\) in episode 'b'"):
        batch_of(lab, [lab.episode("a", 1), other])


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_column_with_the_wrong_number_of_rows_is_named(lab, rows):
    mine = {"extra": {("good",): [0.0, 0.0], ("bad",): [0.0] * rows}}
    with pytest.raises(EpibatchError, match=rf"'extra'[\s\S]*'bad'[\s\S]*expected: (rows: )?2[\s\S]*found:    {rows}"):
        batch_of(lab, [lab.episode("good", 2), lab.episode("bad", 2)], batch=mine)


def test_an_episode_without_an_item_is_named(lab):
    def only_the_first(batch, episodes):
        lab.user.add_batch_item(batch, "extra", 1.0, episodes[0])

    episodes = [lab.episode("a", 0, numpy=False), lab.episode("left_out", 0, numpy=False)]
    pieces = [lab.user(only_the_first), *lab.defaults("env_to_module")]
    with pytest.raises(EpibatchError, match=r"column 'extra', episode 'left_out'[\s\S]*found:    0 rows"):
        lab.run("env_to_module", pieces, episodes, rl_module=lab.module())


@pytest.mark.parametrize("count", [1, 2])
def test_writing_into_the_tensors_never_changes_an_episode(lab, count):
    episodes = [lab.episode(f"e{i}", 3, state=2) for i in range(count)]
    batch = lab.run("learner", lab.defaults("learner"), episodes, rl_module=lab.module())
    for column in batch.values():
        column.zero_()
    for episode in episodes:
        np.testing.assert_array_equal(episode.get_observations(), [[t, 10 + t] for t in range(4)])
        assert episode.get_actions().tolist() == [0, 1, 0] and episode.get_rewards().tolist() == [0.5, 1.5, 2.5]


def to_tensors(batch, module=None, **options):
    return Lab.call(NumpyToTensor(**options), batch, rl_module=module or Lab.module())


def to_arrays(batch):
    return Lab.call(TensorToNumpy(), batch, rl_module=Lab.module())


@pytest.mark.parametrize(
    ("array_type", "tensor_type"),
    [
        (np.float64, torch.float32),
        (np.float32, torch.float32),
        (np.float16, torch.float16),
        (np.int64, torch.int64),
        (np.int32, torch.int32),
        (np.uint8, torch.uint8),
        (np.bool_, torch.bool),
    ],
)
def test_types_of_tensors(array_type, tensor_type):
    values = np.array([[0, 1], [1, 0]], array_type)
    batch = to_tensors({"x": values})
    assert batch["x"].dtype == tensor_type and batch["x"].tolist() == values.tolist()


def test_nested_columns_and_module_batches():
    batch = {"default_policy": {"x": {"a": np.ones(2), "b": (np.zeros(2, np.int64),)}}}
    column = to_tensors(batch, Lab.module(multi=True))["default_policy"]["x"]
    assert column["a"].dtype == torch.float32 and column["b"][0].dtype == torch.int64


def test_what_is_no_array_of_numbers_stays():
    batch = {"infos": [{"a": 1}, {}], "names": np.array(["a", "b"]), "objects": np.array([{}, None], object)}
    result = to_tensors({**batch, "x": np.ones(2), "t": torch.ones(2)})
    assert result["infos"] == [{"a": 1}, {}]
    assert isinstance(result["names"], np.ndarray) and isinstance(result["objects"], np.ndarray)
    assert isinstance(result["x"], torch.Tensor) and result["t"].tolist() == [1.0, 1.0]
    assert isinstance(Lab.call(NumpyToTensor(), {"x": np.ones(2)}, rl_module=None)["x"], np.ndarray)


def test_read_only_and_reversed_arrays_become_tensors():
    frozen = np.arange(3.0, dtype=np.float32)
    frozen.setflags(write=False)
    result = to_tensors({"frozen": frozen, "reversed": np.arange(3)[::-1]})
    assert result["frozen"].tolist() == [0.0, 1.0, 2.0] and result["reversed"].tolist() == [2, 1, 0]
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        assert np.isinf(to_tensors({"x": np.array([1e300])})["x"].numpy()).all()


def test_the_device_is_chosen():
    assert to_tensors({"x": np.ones(2)}, device="meta")["x"].device.type == "meta"
    module = types.SimpleNamespace(framework="jax", is_stateful=lambda: False)
    with pytest.raises(ValueError, match="torch"):
        to_tensors({"x": np.ones(2)}, module)


def test_memory_is_pinned_where_there_is_a_gpu(monkeypatch):
    batch = {"x": np.arange(3.0), "y": {"z": np.arange(2)}}
    if torch.cuda.is_available():
        result = to_tensors(batch, pin_memory=True)
        assert result["x"].is_pinned() and result["y"]["z"].is_pinned()
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert to_tensors(batch, pin_memory=True)["x"].tolist() == [0, 1, 2] and len(pinned) == 2 * there


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
    found = to_arrays({"x": torch.tensor([0, 1], dtype=tensor_type)})["x"]
    assert isinstance(found, np.ndarray) and found.dtype == array_type and found.tolist() == [0, 1]


def test_gradients_nesting_large_integers_and_single_numbers():
    nested = {"a": torch.ones(2, requires_grad=True), "b": (torch.zeros(1),)}
    batch = {"x": nested, "infos": [{"k": 1}], "large": torch.tensor([2**40 + 1]), "one": torch.tensor(2.5)}
    result = to_arrays(batch)
    assert result["x"]["a"].tolist() == [1.0, 1.0] and isinstance(result["x"]["b"][0], np.ndarray)
    assert result["infos"] == [{"k": 1}] and result["large"].tolist() == [2**40 + 1]
    assert isinstance(result["one"], (np.ndarray, np.generic)) and result["one"] == 2.5
