"""The time axis of one that recurrent modules leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.module_to_env import (
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from epibatch.core.errors import ColumnError


def seen_after(lab, module, outputs):
    episodes = [lab.episode("a", 0, numpy=False, state=1), lab.episode("b", 1, numpy=False, state=1)]
    spy = lab.spy()
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), RemoveSingleTsTimeRankFromBatch(), spy]
    lab.env_step(episodes, outputs, pieces, rl_module=module)
    return spy.seen


def test_recurrent_outputs_lose_the_axis_but_states_keep_their_shape(lab):
    outputs = {
        "actions": torch.tensor([[1], [0]]),
        "nested": {"x": torch.ones(2, 1, 3)},
        "state_out": {"h": torch.arange(2.0).reshape(2, 1)},
    }
    seen = seen_after(lab, lab.module(state=1), outputs)
    assert [np.shape(items[0]) for items in seen["actions"].values()] == [(), ()]
    assert [int(items[0]) for items in seen["actions"].values()] == [1, 0]
    assert seen["nested"]["a",][0]["x"].shape == (3,)
    assert [items[0]["h"].tolist() for items in seen["state_out"].values()] == [[0.0], [1.0]]


def test_stateless_outputs_stay_as_they_are(lab):
    seen = seen_after(lab, lab.module(), {"actions": torch.tensor([1, 0]), "one": torch.ones(2, 1)})
    assert seen["one"]["a",][0].shape == (1,)
    assert np.shape(seen["actions"]["a",][0]) == ()


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="axis"):
        RemoveSingleTsTimeRankFromBatch(axis=1)


def test_a_recurrent_module_without_new_state_is_told_so(lab):
    outputs = {"actions": torch.tensor([[1], [0]])}
    with pytest.raises(ColumnError, match=r"recurrent[\s\S]*'state_out'[\s\S]*_forward"):
        seen_after(lab, lab.module(state=1), outputs)


def test_the_axis_goes_also_when_the_two_sides_share_no_data(lab, tensors):
    episodes = [lab.episode("a", 0, numpy=False, state=1), lab.episode("b", 1, numpy=False, state=1)]
    outputs = {"action_dist_inputs": tensors.recurrent, "state_out": {"h": torch.zeros(2, 1)}}
    pieces = lab.defaults("module_to_env")
    batch = lab.run("module_to_env", pieces, episodes, batch=outputs, rl_module=lab.module(state=1), explore=False)
    assert batch["actions"].tolist() == [1, 0]
    assert batch["action_dist_inputs"].shape == (2, 2)


def test_a_new_state_with_a_time_axis_is_refused(lab):
    outputs = {"actions": torch.tensor([[1], [0]]), "state_out": {"h": torch.zeros(2, 1, 1)}}
    with pytest.raises(ColumnError, match=r"'state_out'[\s\S]*shape \[rows, 1\][\s\S]*\[2, 1, 1\]"):
        seen_after(lab, lab.module(state=1), outputs)


def test_a_module_whose_state_grows(lab):
    module = lab.module(state=1)
    for size in (1, 3, 2):
        module.model_config["state"] = size
        states = {"h": torch.arange(2.0 * size).reshape(2, size)}
        seen = seen_after(lab, module, {"actions": torch.tensor([[1], [0]]), "state_out": states})
        assert [items[0]["h"].shape for items in seen["state_out"].values()] == [(size,), (size,)]
    with pytest.raises(ColumnError, match=r"expected: shape \[rows, 2\][\s\S]*found: +shape \[2, 3\]"):
        seen_after(lab, module, {"actions": torch.tensor([[1], [0]]), "state_out": {"h": torch.zeros(2, 3)}})
