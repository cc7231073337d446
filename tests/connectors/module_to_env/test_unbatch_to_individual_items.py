"""Module outputs back under the keys of their episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.module_to_env import TensorToNumpy, UnBatchToIndividualItems
from epibatch.core.errors import EpibatchError


def episodes_of(lab, *ids):
    return [lab.episode(id_, 1, offset=i, numpy=False) for i, id_ in enumerate(ids)]


def seen_after(lab, episodes, outputs):
    spy = lab.spy()
    lab.env_step(episodes, outputs, [TensorToNumpy(), UnBatchToIndividualItems(), spy])
    return spy.seen


def test_row_i_belongs_to_episode_i(lab):
    outputs = {"actions": torch.tensor([5, 6, 7]), "extra": torch.arange(6.0).reshape(3, 2)}
    seen = seen_after(lab, episodes_of(lab, "z", "a", "m"), outputs)
    assert list(seen["actions"]) == [("z",), ("a",), ("m",)]
    assert [len(items) for items in seen["actions"].values()] == [1, 1, 1]
    assert [int(items[0]) for items in seen["actions"].values()] == [5, 6, 7]
    assert [items[0].tolist() for items in seen["extra"].values()] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_nested_outputs_are_taken_apart_row_by_row(lab):
    outputs = {"actions": (torch.tensor([0, 1]), {"x": torch.ones(2, 3)})}
    seen = seen_after(lab, episodes_of(lab, "a", "b"), outputs)
    discrete, continuous = seen["actions"]["b",][0]
    assert int(discrete) == 1
    assert continuous["x"].tolist() == [1.0, 1.0, 1.0]


def test_chunks_that_share_an_id_get_their_own_rows(lab):
    seen = seen_after(lab, episodes_of(lab, "a", "a"), {"actions": torch.tensor([0, 1])})
    assert {key: int(items[0]) for key, items in seen["actions"].items()} == {("a_0",): 0, ("a_1",): 1}


def test_outputs_with_another_number_of_rows_are_named(lab):
    with pytest.raises(EpibatchError, match="actions") as raised:
        seen_after(lab, episodes_of(lab, "a", "b"), {"actions": torch.tensor([0, 1, 1])})
    assert "2" in str(raised.value)
    assert "3" in str(raised.value)


def test_types_survive(lab):
    outputs = {"actions": torch.tensor([2**40, 1]), "logp": torch.tensor([0.5, 0.25])}
    seen = seen_after(lab, episodes_of(lab, "a", "b"), outputs)
    assert int(seen["actions"]["a",][0]) == 2**40
    assert np.asarray(seen["logp"]["b",][0]).dtype == np.float32


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="multi"):
        UnBatchToIndividualItems(multi=True)


def test_a_single_value_in_the_place_of_rows_is_named(lab):
    with pytest.raises(EpibatchError, match=r"column 'mine'[\s\S]*1 rows[\s\S]*a single value"):
        lab.call(UnBatchToIndividualItems(), {"mine": np.array(1.0)}, episodes=[lab.episode(numpy=False)])
