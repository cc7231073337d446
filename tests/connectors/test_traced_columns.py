"""What columns look like is told alike in every layout, and what a piece did to them is told by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from epibatch.connectors import EpisodeColumn
from epibatch.connectors._engine.columns import Batch
from epibatch.connectors._inspect.trace import differences, stored_columns, traced_columns
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import SingleAgentEpisode

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def one(batch):
    (column,) = traced_columns(batch).values()
    return column


LAYOUTS = {
    "column": {"x": EpisodeColumn(ROWS, np.array([4, 2]))},
    "single items": {"x": {("a",): list(ROWS[:4]), ("b",): list(ROWS[4:])}},
    "tagged items": {"x": {("a",): [ROWS[:4].view(BatchedNdArray)], ("b",): [ROWS[4:].view(BatchedNdArray)]}},
    "list": {"x": list(ROWS)},
    "array": {"x": ROWS},
    "strided array": {"x": np.asfortranarray(ROWS)},
    "tensor": {"x": torch.from_numpy(ROWS)},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_tells_the_same_of_the_same_rows(layout):
    found, expected = one(LAYOUTS[layout]), one(LAYOUTS["array"])
    known = {"array": "arrays", "strided array": "arrays", "tensor": "tensors"}
    assert found == expected._replace(layout=known.get(layout, "episodes"))
    assert (found.shape, found.dtype, found.bytes) == ((6, 2), "float32", 48)


def test_another_value_or_order_is_seen():
    changed = ROWS.copy()
    changed[3, 1] += 1
    for other in (changed, ROWS[::-1]):
        assert differences(one({"x": ROWS}), one({"x": other})) == ("values",)
    assert differences(one({"x": ROWS}), one({"x": ROWS.copy()})) == ()


def test_differences():
    column = one({"x": ROWS})
    assert differences(None, column) == ("added",) and differences(column, None) == ("removed",)
    assert differences(None, None) == ()
    assert differences(column, one({"x": torch.from_numpy(ROWS)})) == ("layout",)
    assert differences(column, one({"x": ROWS.astype(np.float64)})) == ("dtype",)
    assert differences(column, one({"x": ROWS.reshape(3, 4)})) == ("shape",)
    assert differences(column, one({"x": torch.from_numpy(ROWS) + 1})) == ("layout", "values")


def test_nested_columns_and_modules():
    column = {"camera": np.zeros((3, 2), np.uint8), "pair": (np.zeros(3), np.zeros(3, np.int64))}
    found = traced_columns({"obs": column})
    assert {name: str(own) for name, own in found.items()} == {
        "obs/camera": "arrays uint8 [3, 2]",
        "obs/pair/0": "arrays float64 [3]",
        "obs/pair/1": "arrays int64 [3]",
    }
    agents = Batch({("walker", 0): {"obs": EpisodeColumn(ROWS)}, "scout": {"obs": ROWS}}, {"note": "hello"})
    assert list(traced_columns(agents)) == ["walker/obs", "scout/obs", "note"]
    plain = {"obs": {("e", "x", "walker"): list(ROWS[:2]), ("e", "y", "scout"): list(ROWS[2:])}}
    assert {name: own.shape for name, own in traced_columns(plain).items()} == {
        "walker/obs": (2, 2),
        "scout/obs": (4, 2),
    }
    assert list(traced_columns({"walker": {"obs": list(ROWS)}, "scout": {"obs": list(ROWS)}})) == [
        "walker/obs",
        "scout/obs",
    ]


def test_rows_of_other_shapes_and_objects():
    ragged = one({"x": {("a",): [np.zeros(2)], ("b",): [np.zeros(3, np.int64)]}})
    assert (ragged.shape, ragged.dtype, ragged.bytes) == (None, "mixed", 40)
    assert str(ragged) == "episodes mixed rows of other shapes"
    infos = one({"infos": {("a",): [{"lives": 3}, {}]}})
    assert (infos.layout, infos.shape, infos.dtype, infos.bytes) == ("episodes", (2,), "dict", 0)
    assert one({"infos": EpisodeColumn([{}, {}], np.array([2]))}).shape == (2,)
    assert str(one({"note": "hello"})) == "objects str [1]"
    objects = np.array([{}, "a"], object)
    assert one({"x": objects}).shape == (2,) and one({"x": objects}).digest != one({"x": objects[::-1]}).digest


def test_no_rows_and_types_that_numpy_has_not():
    assert one({"x": np.zeros((0, 3))}).shape == (0, 3)
    half = one({"x": torch.ones(4, dtype=torch.bfloat16)})
    assert (half.dtype, half.bytes) == ("bfloat16", 8)
    assert differences(half, one({"x": torch.zeros(4, dtype=torch.bfloat16)})) == ("values",)


def test_chunks_that_were_not_joined_stay_so():
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 1], rewards=[0.0, 1.0], len_lookback_buffer=0)
    from epibatch.connectors._engine.call import PipelineCall
    from epibatch.connectors._engine.gather import gather_column

    column = gather_column(PipelineCall(rl_module=None, episodes=[episode], training=True).groups[None], "rewards")
    assert column.parts is not None
    assert one({"rewards": column}) == one({"rewards": np.array([0.0, 1.0])})._replace(layout="episodes")
    assert column.parts is not None


def test_what_episodes_hold():
    one_step = SingleAgentEpisode(observations=[[1.0], [2.0]], actions=[1], rewards=[3.0], len_lookback_buffer=0)
    fresh = SingleAgentEpisode(observations=[np.array([5.0])])
    found = stored_columns([one_step, fresh])
    assert {name: (own.layout, own.shape) for name, own in found.items()} == {
        "episode.observations": ("stored", (3, 1)),
        "episode.actions": ("stored", (1,)),
        "episode.rewards": ("stored", (1,)),
    }
    assert found["episode.rewards"].digest == one({"x": np.array([3.0])}).digest


@dataclass
class Scan:
    points: object


@pytest.mark.parametrize(
    "inside",
    [
        lambda x: x,
        lambda x: {"map": {"cells": x}},
        lambda x: [1, (x, "a")],
        lambda x: {"scan": Scan(x)},
        lambda x: torch.from_numpy(x),
        lambda x: np.array([None, {"cells": x}], object),
    ],
)
@pytest.mark.parametrize("batch", [lambda info: {("a",): [info]}, lambda info: EpisodeColumn([info], np.array([1]))])
def test_a_change_deep_inside_of_an_info_is_one(inside, batch):
    cells, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1e-9
    before, same, after = (one({"infos": batch({"x": inside(own)})}) for own in (cells, cells.copy(), other))
    assert differences(before, same) == () and differences(before, after) == ("values",)


def test_objects_that_lie_in_themselves_have_an_end():
    info = {"x": [1]}
    info["x"].append(info)
    before = one({"infos": {("a",): [info]}})
    info["x"][0] = 2
    assert differences(before, one({"infos": {("a",): [info]}})) == ("values",)


def test_one_number_is_the_same_until_it_changes():
    numbers = [one({"x": torch.tensor(own)}) for own in (1.0, 1.0, 2.0)]
    assert numbers[0] == numbers[1] and differences(numbers[1], numbers[2]) == ("values",)
