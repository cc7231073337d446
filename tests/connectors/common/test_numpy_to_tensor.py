"""Arrays to tensors."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from epibatch.connectors.common import NumpyToTensor

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
def test_types(lab, array_type, tensor_type):
    values = np.array([[0, 1], [1, 0]], array_type)
    batch = lab.call(NumpyToTensor(), {"x": values}, rl_module=lab.module())
    assert batch["x"].dtype == tensor_type
    assert batch["x"].tolist() == values.tolist()


def test_nested_columns_and_module_batches(lab):
    batch = {"default_policy": {"x": {"a": np.ones(2), "b": (np.zeros(2, np.int64),)}}}
    result = lab.call(NumpyToTensor(), batch, rl_module=lab.module(multi=True))
    column = result["default_policy"]["x"]
    assert column["a"].dtype == torch.float32
    assert column["b"][0].dtype == torch.int64


def test_infos_and_object_arrays_stay(lab):
    names = np.array(["a", "b"])
    objects = np.array([{}, None], object)
    batch = {"infos": [{"a": 1}, {}], "names": names, "objects": objects, "x": np.ones(2)}
    result = lab.call(NumpyToTensor(), batch, rl_module=lab.module())
    assert result["infos"] == [{"a": 1}, {}]
    assert isinstance(result["names"], np.ndarray)
    assert isinstance(result["objects"], np.ndarray)
    assert isinstance(result["x"], torch.Tensor)


def test_without_a_module_nothing_is_converted(lab):
    result = lab.call(NumpyToTensor(), {"x": np.ones(2)}, rl_module=None)
    assert isinstance(result["x"], np.ndarray)


def test_tensors_stay_tensors(lab):
    result = lab.call(NumpyToTensor(), {"x": torch.ones(2)}, rl_module=lab.module())
    assert result["x"].tolist() == [1.0, 1.0]


def test_read_only_and_reversed_arrays_are_taken(lab):
    frozen = np.arange(3.0, dtype=np.float32)
    frozen.setflags(write=False)
    batch = {"frozen": frozen, "reversed": np.arange(3)[::-1]}
    result = lab.call(NumpyToTensor(), batch, rl_module=lab.module())
    assert result["frozen"].tolist() == [0.0, 1.0, 2.0]
    assert result["reversed"].tolist() == [2, 1, 0]


def test_the_device_is_chosen(lab):
    batch = {"x": np.ones(2)}
    result = lab.call(NumpyToTensor(device="meta"), batch, rl_module=lab.module())
    assert result["x"].device.type == "meta"


def test_memory_is_pinned_where_there_is_a_gpu(lab, monkeypatch):
    batch, module = {"x": np.arange(3.0), "y": {"z": np.arange(2)}}, lab.module()
    piece = NumpyToTensor(pin_memory=True)
    if torch.cuda.is_available():
        result = lab.call(piece, batch, rl_module=module)
        assert result["x"].is_pinned() and result["y"]["z"].is_pinned()
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        result = lab.call(piece, batch, rl_module=module)
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


def test_writing_into_env_side_tensors_never_changes_an_episode(lab):
    episode = lab.episode("a", 3, state=2, numpy=False)
    batch = lab.run("env_to_module", lab.defaults("env_to_module"), [episode], rl_module=lab.module(2))
    batch["obs"].zero_()
    batch["state_in"]["h"].zero_()
    assert episode.get_observations(-1).tolist() == [3.0, 13.0]
    assert episode.get_extra_model_outputs("state_out", -1)["h"].tolist() == [2.25, 2.25]


def test_other_frameworks_are_refused(lab):
    module = types.SimpleNamespace(framework="jax", is_stateful=lambda: False)
    with pytest.raises(ValueError, match="torch"):
        lab.call(NumpyToTensor(), {"x": np.ones(2)}, rl_module=module)


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="devise"):
        NumpyToTensor(devise="cpu")
