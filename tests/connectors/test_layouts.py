"""Columns taken apart for plain pieces and put together again, with and without remembering them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.connectors._engine.call import PipelineCall
from epibatch.connectors._engine.columns import Batch, EpisodeColumn
from epibatch.connectors._engine.layouts import collect, show, to_columns, to_plain
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ColumnError
from epibatch.core.spaces import BatchedNdArray
from epibatch.core.structs import flatten
from epibatch.episodes import SingleAgentEpisode

COUNTS = np.array([3, 1, 0, 4])
A, B, C, D = KEYS = [("a",), ("b",), ("c",), ("d",)]


def call():
    return PipelineCall(rl_module=None, episodes=[SingleAgentEpisode(id_=name) for (name,) in KEYS])


def batch():
    rng = np.random.default_rng(0)
    columns = {
        "vectors": EpisodeColumn(rng.standard_normal((8, 2)).astype(np.float32), COUNTS),
        "numbers": EpisodeColumn(rng.integers(0, 9, 8), COUNTS),
        "items": EpisodeColumn(rng.standard_normal((8, 2)), COUNTS, single=True),
        "one each": EpisodeColumn(rng.standard_normal((4, 2))),
        "nested": EpisodeColumn({"x": rng.standard_normal((8, 2)), "y": (np.arange(8),)}, COUNTS),
        "objects": EpisodeColumn([f"{i}" for i in range(8)], COUNTS, single=True),
        "flags": EpisodeColumn(np.arange(8) % 3 == 0, COUNTS, single=True),
    }
    return Batch({None: columns})


def in_place(batch):
    for items in batch["vectors"].values():
        for item in items:
            item += 5
    batch["items"][D][2][:] = 7
    batch["one each"][B][0][0] = 7


def other_shape(batch):
    batch["one each"][A][0].shape = (2, 1)
    for key in (B, C, D):
        batch["one each"][key] = [np.zeros((2, 1))] * len(batch["one each"][key])


CHANGES = {
    "nothing": lambda batch: None,
    "written in place": in_place,
    "an item replaced": lambda batch: batch["vectors"][A].__setitem__(0, BatchedNdArray(np.ones((3, 2)))),
    "a nested leaf replaced": lambda batch: batch["nested"][A][0].__setitem__("x", BatchedNdArray(np.ones((3, 2)))),
    "an item more": lambda batch: batch["items"][C].append(np.ones(2)),
    "an item less": lambda batch: batch["items"][D].pop(),
    "items swapped": lambda batch: batch["items"][D].reverse(),
    "a key less": lambda batch: batch["vectors"].pop(D),
    "keys in another order": lambda batch: batch.update(vectors=dict(reversed(batch["vectors"].items()))),
    "a column for another": lambda batch: batch.update(vectors=batch["items"]),
    "a column less": lambda batch: batch.pop("vectors"),
    "a tuple of items": lambda batch: batch["vectors"].update({A: tuple(batch["vectors"][A])}),
    "reshaped in place": other_shape,
    "a flag more": lambda batch: batch["flags"][B].append(True),
    "a flag less": lambda batch: batch["flags"][D].pop(),
    "a flag replaced": lambda batch: batch["flags"][A].__setitem__(1, True),
    "flags that are numbers": lambda batch: batch["flags"].update({key: [0] * n for key, n in zip(KEYS, COUNTS)}),
    "a column more": lambda batch: batch.update(more={key: [1.5] * n for key, n in zip(KEYS, COUNTS)}),
    "another type": lambda batch: batch["numbers"].update({A: [batch["numbers"][A][0].astype(np.float32)]}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy 2.5, of setting a shape
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_is_what_would_be_put_together_anew(change):
    remembering, forgetful = call(), call()
    handed_out, taken_apart = show(batch(), remembering), to_plain(batch(), forgetful)
    CHANGES[change](handed_out)
    CHANGES[change](taken_apart)
    found, expected = (
        to_columns(plain, about).groups[None] for plain, about in ((handed_out, remembering), (taken_apart, forgetful))
    )
    assert list(found) == list(expected)
    for name, column in found.items():
        own, other = expected[name], column
        (mine, form), (yours, other_form) = flatten(own.data), flatten(other.data)
        assert form == other_form and own.single == other.single, name
        assert (own.counts is None) == (other.counts is None) and np.array_equal(own.counts, other.counts), name
        for leaf, twin in zip(mine, yours, strict=True):
            assert getattr(leaf, "dtype", None) == getattr(twin, "dtype", None), name
            np.testing.assert_array_equal(leaf, twin)


def test_columns_left_alone_are_not_put_together_again():
    shown, running = batch(), call()
    given, plain = shown.groups[None], show(shown, running)
    plain["vectors"][A][0][:] = 9
    plain["numbers"][B] = [BatchedNdArray(np.array([77]))]
    found = to_columns(plain, running).groups[None]
    assert found["vectors"] is given["vectors"] and (given["vectors"].data[:3] == 9).all()
    assert found["numbers"] is not given["numbers"] and given["numbers"].data[3] != 77
    again = to_columns(copy.copy(plain), running).groups[None]
    assert again["vectors"] is not given["vectors"], "what was handed out is remembered for one way back"


def test_kept_items_show_the_batch_but_never_the_episodes():
    kept = []

    class Keeps(ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            kept.extend(items[0] for items in batch["obs"].values())
            return batch

    episodes = [
        SingleAgentEpisode(observations=np.ones((4, 2)), actions=[0] * 3, rewards=[0.0] * 3, len_lookback_buffer=0)
    ]
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), Keeps(), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(connectors=pieces)(episodes=episodes)
    batch["obs"][:] = 5
    assert (kept[0] == 5).all() and (episodes[0].get_observations() == 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_tagged_items_are_laid_down_one_after_the_other(seed):
    rng = np.random.default_rng(seed)
    column = {
        key: [BatchedNdArray(rng.standard_normal((rng.integers(0, 4), 2))) for _ in range(rng.integers(0, 3))]
        for key in KEYS
    }
    column[B].append(BatchedNdArray(rng.integers(0, 9, (2, 2))))
    found = to_columns({"x": column}, call()).groups[None]["x"]
    assert found.counts.tolist() == [sum(map(len, column[key])) for key in KEYS] and not found.single
    expected = [row.tolist() for key in KEYS for item in column[key] for row in item]
    assert found.data.tolist() == expected and found.data.dtype == np.float64


def test_tagged_items_of_several_shapes_name_their_episodes():
    column = {A: [BatchedNdArray(np.zeros((2, 2)))], D: [BatchedNdArray(np.zeros((2, 3)))]}
    with pytest.raises(ColumnError, match=r"shape \(2,\), as in episode 'a'[\s\S]*shape \(3,\) in episode 'd'"):
        to_columns({"x": column}, call())


def test_tagged_arrays_of_objects_stay_arrays():
    items = [[np.array(["a", "b"], object).view(BatchedNdArray)], [np.array(["c"], object).view(BatchedNdArray)]]
    call = PipelineCall(rl_module=None, episodes=[SingleAgentEpisode(id_="a"), SingleAgentEpisode(id_="b")]).groups[
        None
    ]
    column = collect("notes", dict(zip(call.keys, items)), call)
    assert column.data.dtype == object and column.data.tolist() == ["a", "b", "c"] and column.counts.tolist() == [2, 1]
