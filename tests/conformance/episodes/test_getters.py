"""Every getter with every kind of index, fill and one-hot option, on both libraries' episodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.behaviours import holds
from oracle.cases import differences_met, random_cases
from oracle.compare import first_of, outcome, settle
from oracle.episodes import Chunk
from oracle.libraries import EPIBATCH, RLLIB
from oracle.reads import Read
from oracle.twins import Case, buffer_of, cases, columns_of, rows_of, stacked

FILLS = (None, None, None, 0, 0.0, 1, 0.5, -1, True, np.float32(2.5), np.nan)
bounds = st.one_of(st.none(), st.integers(-8, 8), st.integers(-70, 70))
steps = st.sampled_from([None, None, None, 1, 2, 3, -1, -2, -5])
slices = st.builds(slice, bounds, bounds, steps)
ints = st.one_of(st.integers(-8, 8), st.integers(-70, 70))
indices = st.one_of(
    st.none(),
    ints,
    ints.map(np.int64),
    slices,
    slices,
    slices,
    st.lists(ints, max_size=4),
    st.lists(ints, max_size=4).map(tuple),
    st.lists(st.integers(-3, 3), max_size=3).map(lambda found: np.array(found, np.int64)),
)


@dataclass(frozen=True)
class Request:
    """How a column is asked for rows; which column is a number, as the chunk has yet to be drawn."""

    column: int
    indices: Any
    neg_index_as_lookback: bool
    fill: Any
    one_hot: bool
    directly: bool


requests = st.builds(
    Request, st.integers(0, 9), indices, st.booleans(), st.sampled_from(FILLS), st.booleans(), st.booleans()
)


def call(episode: Any, name: str, request: Request, one_hot: bool) -> Any:
    """Read by the episode's getter, or by its buffer's."""
    options: dict[str, Any] = {"neg_index_as_lookback": request.neg_index_as_lookback, "fill": request.fill}
    if one_hot:
        options["one_hot_discrete"] = True
    if request.directly:
        return buffer_of(episode, name).get(request.indices, **options)
    if name in ("observations", "infos", "actions", "rewards"):
        return getattr(episode, f"get_{name}")(request.indices, **options)
    return episode.get_extra_model_outputs(name, request.indices, **options)


def meet(chunk: Chunk, name: str, episodes: tuple[Any, Any], request: Request) -> Counter[str]:
    """Read both episodes and hold what they give beside each other; the listed differences that were met."""
    rows, buffer = rows_of(chunk, name), buffer_of(episodes[0], name)
    one_hot = request.one_hot and (request.directly or name in ("observations", "actions")) and name != "infos"
    read = Read(
        rows,
        stacked(rows, name),
        lookback=buffer.lookback,
        space=buffer.space,
        our_space=None if name == "rewards" else buffer.space,
        arrays=buffer.finalized,
        indices=request.indices,
        neg_index_as_lookback=request.neg_index_as_lookback,
        fill=request.fill,
        one_hot=one_hot,
        objects=name == "infos",
    )
    before = differences_met.copy()
    settle(*(outcome(lambda e=episode: call(e, name, request, one_hot)) for episode in episodes), read, first_of())
    return differences_met - before


@holds("C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9")
@random_cases(case=cases(), wanted=st.lists(requests, min_size=1, max_size=3))
def test_getters(case: Case, wanted: list[Request]) -> None:
    episodes = case.build()
    names = columns_of(case.chunk)
    for request in wanted:
        meet(case.chunk, names[request.column % len(names)], episodes, request)


DEFAULTS = {"neg_index_as_lookback": False, "fill": None, "one_hot": False, "directly": False}
BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
NESTED = gym.spaces.Dict({"a": BOX, "b": gym.spaces.Discrete(4)})
LATE = gym.spaces.Discrete(3, start=5)
EXAMPLES = [
    ("columns", BOX, False, slice(0, 3), {}),
    ("columns", NESTED, False, None, {}),
    ("O19", BOX, True, -5, {"neg_index_as_lookback": True}),
    ("O19", BOX, True, [-5, 0], {"neg_index_as_lookback": True}),
    ("O20", BOX, True, slice(-9, None, 2), {"fill": 0}),
    ("O20", BOX, True, slice(None, None, -1), {}),
    ("O20", BOX, True, np.int64(1), {}),
    ("O20", BOX, True, (0, 1), {}),
    ("O58", BOX, True, slice(-5, 9), {"fill": 0.0, "neg_index_as_lookback": True}),
    ("O58", BOX, True, slice(20, 10), {"fill": 0.0}),
    ("O59", BOX, True, [], {}),
    ("O44", LATE, True, 0, {"one_hot": True}),
    ("O44", gym.spaces.MultiDiscrete([[2, 3], [4, 2]]), True, slice(0, 2), {"one_hot": True}),
    ("one-hot-no-rows", LATE, True, slice(2, 2), {"one_hot": True}),
    ("fill-value", gym.spaces.Discrete(4), True, slice(-9, 1), {"fill": np.nan}),
    ("fill-value", gym.spaces.MultiBinary(2), True, 99, {"fill": 1000}),
]


@pytest.mark.parametrize(("identity", "space", "arrays", "indices", "options"), EXAMPLES)
def test_each_difference(identity, space, arrays, indices, options):
    chunk = Chunk(space, BOX, 4, lookback=2, t_started=2)
    theirs, ours = chunk.build(RLLIB, numpy=arrays), chunk.build(EPIBATCH)
    met = meet(chunk, "observations", (theirs, ours), Request(0, indices, **{**DEFAULTS, **options}))
    assert identity in met


@pytest.mark.parametrize(("key", "fill", "identity"), [("actions", 0, "O59"), ("rewards", 0, "rewards-space")])
def test_each_difference_of_columns_without_rows(key, fill, identity):
    chunk = Chunk(BOX, BOX, 0)
    indices = slice(0, -2) if identity == "O59" else slice(0, 2)
    episodes = chunk.build(RLLIB), chunk.build(EPIBATCH)
    assert identity in meet(chunk, key, episodes, Request(0, indices, **{**DEFAULTS, "fill": fill}))


def test_a_fill_row_beside_real_ones_of_another_type():
    chunk = Chunk(BOX, BOX, 3, reward="int")
    episodes = chunk.build(RLLIB), chunk.build(EPIBATCH)
    found = meet(chunk, "rewards", episodes, Request(0, slice(-5, 1), **{**DEFAULTS, "fill": 1}))
    assert "O20" in found
    assert episodes[0].get_rewards(slice(-5, 1), fill=1).dtype == np.float64
    assert episodes[1].get_rewards(slice(-5, 1), fill=1).dtype == np.int64
