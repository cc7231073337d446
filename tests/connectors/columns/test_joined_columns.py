"""Parts joined into one array and taken apart: values, spaces, both sides, mistakes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.columns import ConcatenateColumns, SplitColumn
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, LearnerConnectorPipeline
from epibatch.core.errors import ColumnError, ConfigError, SpaceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector

FLAT = ConcatenateColumns(columns=["obs/pose", "obs/info"], to="obs")


def flat(t):
    """`obs/pose`, then what is in `obs/info`, by key."""
    return [float(t), float(-t), float(t % 5), t / 8]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_nested_observation_becomes_a_vector_on_both_sides(nested, recorded):
    episodes = nested.recorded(4) if recorded else [nested.episode(4), nested.episode(4, "f")]
    batch = nested.train([FLAT], episodes)
    assert batch["obs"].tolist() == [flat(t) for t in range(4)] * 2
    assert batch["obs"].dtype == np.float32
    for t in range(4):
        acting, pipeline = nested.act([FLAT], [nested.episode(t)])
        assert acting["obs"].tolist() == [flat(t)]
        assert pipeline.observation_space.contains(acting["obs"][0])
    expected = gym.spaces.Box(np.float32([-9, -9, 0, 0]), np.float32([9, 9, 4, 2]))
    assert pipeline.observation_space == expected


@settings(max_examples=30, deadline=None)
@given(steps=st.integers(1, 9), cut=st.integers(0, 8), lookback=st.integers(0, 3))
def test_wherever_the_episode_is_cut(nested, steps, cut, lookback):
    chunk = nested.episode(steps + min(cut, lookback), first=cut, lookback=min(cut, lookback))
    start = cut + min(cut, lookback)
    assert nested.train([FLAT], [chunk])["obs"].tolist() == [flat(t) for t in range(start, start + steps)]


@pytest.mark.parametrize("order", [1, -1])
def test_bootstrap_rows_have_the_last_observation(nested, order):
    pieces = [AddOneTsToEpisodesAndTruncate(), FLAT][::order]
    assert nested.train(pieces, [nested.episode(2)])["obs"].tolist() == [flat(t) for t in range(3)]


def test_to_a_part_or_a_column_of_its_own(nested):
    piece = ConcatenateColumns(columns=["obs/info/speed", "obs/pose"], to="obs/state")
    batch = nested.train([piece], [nested.episode(2)])
    assert batch["obs"]["state"].tolist() == [[0, 0, 0], [0.125, 1, -1]]
    assert batch["obs"]["info"]["gear"].tolist() == [0, 1] and "pose" not in batch["obs"]
    piece = ConcatenateColumns(columns=["obs/pose", "rewards"], to="features", keep=True)
    batch = nested.train([piece], [nested.episode(2)])
    assert batch["features"].tolist() == [[0, 0, 0.5], [1, -1, 1.5]]
    assert batch["obs"]["pose"].tolist() == [[0, 0], [1, -1]] and batch["rewards"].tolist() == [0.5, 1.5]
    piece = ConcatenateColumns(columns=["vf_preds", "rewards"], to="both")
    batch = nested.train([], [nested.episode(2)], behind=[piece])
    assert batch["both"].tolist() == [[0.0, 0.5], [10.0, 1.5]] and "rewards" not in batch


IMAGES = gym.spaces.Dict(a=gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), b=gym.spaces.Box(0, 9, (4, 4, 1), np.uint8))


@pytest.mark.parametrize(("axis", "shape"), [(-1, (4, 4, 4)), (2, (4, 4, 4)), (None, (64,))])
def test_along_an_axis(axis, shape):
    piece = ConcatenateColumns(IMAGES, columns=["obs/a", "obs/b"], to="obs", axis=axis)
    assert piece.observation_space.shape == shape and piece.observation_space.dtype == np.uint8
    images = IMAGES.sample()
    one = SingleAgentEpisode(observations=[images, images], actions=[0], rewards=[0.0], len_lookback_buffer=0)
    rows = LearnerConnectorPipeline(connectors=[piece])(rl_module=None, batch={}, episodes=[one])["obs"]
    (found,) = next(iter(rows.values()))
    parts = [images["a"], images["b"]]
    expected = np.concatenate(parts, -1) if axis else np.concatenate([part.ravel() for part in parts])
    assert np.array_equal(found[0], expected)


def test_splitting_is_the_way_back(nested):
    sizes = {"obs/pose": 2, "obs/info/gear": 1, "obs/info/speed": 1}
    split = SplitColumn(column="obs", sizes=sizes)
    batch = nested.train([FLAT, split], [nested.episode(3)])
    assert batch["obs"]["pose"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert batch["obs"]["info"]["gear"].tolist() == [[0], [1], [2]]
    acting, pipeline = nested.act([FLAT, split], [nested.episode(1)])
    assert pipeline.observation_space["info"]["speed"] == gym.spaces.Box(0, 2, (1,), np.float32)
    assert acting["obs"]["pose"].tolist() == [[1, -1]]
    again = nested.train([FLAT, split, FLAT], [nested.episode(3)])
    assert again["obs"].tolist() == [flat(t) for t in range(3)]


def test_splitting_into_columns_of_their_own(nested):
    piece = SplitColumn(column="obs/pose", sizes={"x": 1, "obs/y": 1})
    batch = nested.train([piece], [nested.episode(3)])
    assert batch["x"].tolist() == [[0], [1], [2]] and batch["obs"]["y"].tolist() == [[0], [-1], [-2]]
    assert "pose" not in batch["obs"]


def test_tensors():
    from epibatch.connectors._engine.call import PipelineCall, within

    call = PipelineCall(
        rl_module=None, episodes=[SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0])]
    ).groups[None]
    batch = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3])}
    with within(call.call):
        out = ConcatenateColumns(columns=["a", "b"], to="c").run(batch, call)
        assert torch.equal(out["c"], torch.tensor([[1.0, 2.0, 3.0]])) and set(out) == {"c"}
        back = SplitColumn(column="c", sizes={"a": 2, "b": 1}).run(out, call)
    assert torch.equal(back["a"], batch["a"]) and back["b"].tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("piece", "error", "match"),
    [
        (ConcatenateColumns(columns=["obs/pose"], to="obs"), ColumnError, "info would be lost"),
        (ConcatenateColumns(columns=["obs/pose", "rewards"], to="obs", keep=True), SpaceError, "found:    rewards"),
        (ConcatenateColumns(columns=["obs/pose", "obs/info"], to="x"), ColumnError, "a part of 'obs' that stays"),
        (ConcatenateColumns(columns=["obs/pose", "obs/info/gear"], to="obs/x", axis=1), ColumnError, "leave axis out"),
        (ConcatenateColumns(columns=["obs/pose", "obs/pos"], to="x"), ColumnError, "did you mean 'pose'"),
        (ConcatenateColumns(columns=["obs/pose"], to="obs/info"), ColumnError, "one that is taken"),
        (SplitColumn(column="obs/pose", sizes={"obs/x": 3}), ColumnError, r"3 entries[\s\S]*shape \(2,\)"),
        (SplitColumn(column="obs", sizes={"obs/x": 3}), SpaceError, "name the parts"),
        (SplitColumn(column="obs/pose", sizes={"obs/x": 1, "obs/info": 1}), ColumnError, "one that is taken"),
    ],
)
def test_mistakes_are_named(piece, error, match, nested):
    with pytest.raises(error, match=match):  # while it runs, or of the space
        assert [nested.train([piece], [nested.episode(2)]), nested.act([piece], [])[1].observation_space]


def test_arguments_that_cannot_be_meant():
    with pytest.raises(ConfigError, match="a new name"):
        ConcatenateColumns(columns=["a", "b"], to="a", keep=True)
    for sizes in ({}, {"a": 0}, {"a": 1.5}, [1, 2]):
        with pytest.raises(ConfigError, match=r"SplitColumn\.sizes"):
            SplitColumn(column="a", sizes=sizes)


@pytest.mark.parametrize("piece", [FLAT, SplitColumn(column="obs/pose", sizes={"obs/x": 1, "obs/y": 1})])
def test_by_contract(piece, nested):
    assert build_piece(piece_to_dict(piece)) == piece
    check_connector(piece, spaces=nested.space)
