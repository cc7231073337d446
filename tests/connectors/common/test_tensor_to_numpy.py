"""Tensors to arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.common import TensorToNumpy


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
def test_types(lab, tensor_type, array_type):
    batch = {"x": torch.tensor([0, 1], dtype=tensor_type)}
    result = lab.call(TensorToNumpy(), batch, rl_module=lab.module())
    assert isinstance(result["x"], np.ndarray)
    assert result["x"].dtype == array_type
    assert result["x"].tolist() == [0, 1]


def test_large_integers_survive(lab):
    batch = {"x": torch.tensor([2**40 + 1])}
    result = lab.call(TensorToNumpy(), batch, rl_module=lab.module())
    assert result["x"].tolist() == [2**40 + 1]


def test_scalar_tensors_stay_numpy(lab):
    batch = {"x": torch.tensor(2.5)}
    result = lab.call(TensorToNumpy(), batch, rl_module=lab.module())
    assert isinstance(result["x"], (np.ndarray, np.generic))
    assert result["x"] == 2.5


def test_gradients_nesting_and_other_values(lab):
    batch = {"x": {"a": torch.ones(2, requires_grad=True), "b": (torch.zeros(1),)}, "infos": [{"k": 1}]}
    result = lab.call(TensorToNumpy(), batch, rl_module=lab.module())
    assert result["x"]["a"].tolist() == [1.0, 1.0]
    assert isinstance(result["x"]["b"][0], np.ndarray)
    assert result["infos"] == [{"k": 1}]


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="dtype"):
        TensorToNumpy(dtype="float16")
