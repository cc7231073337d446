"""Normalised observations: switches, copies, the way back and huge numbers; other spaces are compared with RLlib."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text

from epibatch.connectors.env_to_module import (
    EnvToModulePipeline,
    FrameStackingEnvToModule,
    MeanStdFilter,
)
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core import MaskedColumn, load_state, save_state
from epibatch.core.errors import ColumnError, ConfigError, PipelineError, SpaceError, StateError
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import played, trained

F32, F64 = np.float32, np.float64
PLANE = Box(-np.inf, np.inf, (2,), F64)


def filtered(piece, rows):
    """What the piece makes of the only observations of some episodes."""
    rows = rows if isinstance(rows[0], dict) else np.asarray(rows)
    episodes = [SingleAgentEpisode(id_=f"e{i}", observations=[row]) for i, row in enumerate(rows)]
    piece(batch={}, episodes=episodes)
    found = [episode.get_observations(-1) for episode in episodes]
    return found if isinstance(rows[0], dict) else np.stack(found)


def expected(rows, newest, clip=10.0, small=1e-6):
    """Filtered newest rows, by all rows in float64."""
    rows, newest = np.asarray(rows, F64), np.asarray(newest, F64)
    deviation = rows.std(0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1:])
    divisor = np.where(deviation > 0, deviation + small, 1.0)
    return np.clip((newest - rows.mean(0)) / divisor, -clip, clip)


def test_without_statistics_a_filter_that_does_not_update_changes_no_value():
    piece, rows = MeanStdFilter(PLANE, update_stats=False, clip_by_value=0.5), np.array([[3.0, 40.0], [-1.0, 0.0]])
    assert filtered(piece, rows).tolist() == rows.tolist() and piece.get_state()["since"]["count"] == 0


def test_switches_and_the_limit():
    rows = np.array([[0.0, 10.0], [1.0, 10.0], [1000.0, 10.0]])
    deviation = rows[:, 0].std(ddof=1) + 1e-6
    centred = filtered(MeanStdFilter(PLANE, de_std_to_one=False, clip_by_value=None), rows)
    assert centred == pytest.approx(rows - rows.mean(0))
    scaled = filtered(MeanStdFilter(PLANE, de_mean_to_zero=False), rows)
    assert scaled[:, 0] == pytest.approx(rows[:, 0] / deviation) and scaled[:, 1].tolist() == [10.0] * 3
    clipped = filtered(MeanStdFilter(PLANE, clip_by_value=0.5), rows)
    assert clipped[:, 0] == pytest.approx([-0.5, -0.5, 0.5])
    free = MeanStdFilter(PLANE, clip_by_value=None).observation_space
    assert free == Box(-np.inf, np.inf, (2,), F64)


def test_an_entry_that_has_not_varied_is_shifted_and_never_blown_up():
    piece = MeanStdFilter(PLANE)
    filtered(piece, np.array([[0.1, 1.0]] * 7 + [[0.1, 3.0]]))
    piece.freeze()
    assert filtered(piece, [[0.15, 1.25]])[0] == pytest.approx([0.05, 0.0])


def filled(count=50):
    """A filter of some rows, and these."""
    rows, piece = np.random.default_rng(count).normal([3, -2], [2, 5], (count, 2)), MeanStdFilter(PLANE)
    filtered(piece, rows)
    return piece, rows


@pytest.mark.parametrize("by", ["update_stats=False", "freeze()"])
def test_a_frozen_filter_applies_what_it_knows_and_learns_nothing_until_it_is_unfrozen(by):
    (known, rows), frozen = filled(), MeanStdFilter(PLANE, update_stats=by == "freeze()")
    if by == "freeze()":
        frozen.freeze()
    frozen.set_state(known.get_state())
    newest = np.random.default_rng(1).normal(size=(4, 2))
    for _ in range(3):
        assert filtered(frozen, newest) == pytest.approx(expected(rows, newest))
    assert frozen.get_state()["since"]["count"] == 50
    if by == "freeze()":
        frozen.unfreeze()
        filtered(frozen, newest)
        assert frozen.get_state()["since"]["count"] == 54


def test_a_frozen_filter_that_has_filtered_uses_the_statistics_of_a_new_state():
    frozen, newest = MeanStdFilter(PLANE, update_stats=False), np.random.default_rng(1).normal(size=(4, 2))
    for count in (50, 20):
        source, rows = filled(count)
        frozen.set_state(source.get_state())
        assert filtered(frozen, newest) == pytest.approx(expected(rows, newest))


@pytest.mark.parametrize("settings", [{}, {"de_mean_to_zero": False}, {"de_std_to_one": False}])
def test_the_inverse_gives_back_what_came_in_and_other_leaves_stay(settings):
    piece = MeanStdFilter(Dict(a=PLANE, b=Discrete(3)), **settings, clip_by_value=None)
    rows = np.random.default_rng(0).normal([3, -2], [2, 5], (40, 2))
    assert piece.inverse({"a": rows, "b": np.arange(40)})["a"].tolist() == rows.tolist()
    found = filtered(piece, [{"a": row, "b": i % 3} for i, row in enumerate(rows)])
    assert [row["b"] for row in found] == [i % 3 for i in range(40)] and piece.observation_space["b"] == Discrete(3)
    back = piece.inverse({"a": np.stack([row["a"] for row in found]), "b": np.arange(40) % 3})
    np.testing.assert_allclose(back["a"], rows, atol=1e-9)
    assert back["b"].tolist() == [i % 3 for i in range(40)]


def test_text_is_left_alone():
    piece = MeanStdFilter(Dict(words=Text(5), size=Box(-1, 1, (1,))))
    (newest,) = filtered(piece, [{"words": "hello", "size": np.array([0.5], F32)}])
    assert newest["words"] == "hello" and newest["size"].tolist() == [0.0]
    assert isinstance(piece.observation_space, Dict) and piece.observation_space["words"] == Text(5)


@pytest.mark.parametrize(("runners", "seed"), [(1, 0), (2, 1), (5, 2)])
def test_synchronising_again_and_again_gives_the_statistics_of_all_data(runners, seed):
    rng, everything, copies = np.random.default_rng(seed), [], [MeanStdFilter(PLANE) for _ in range(runners)]
    for _ in range(20):
        for own in copies:
            rows = rng.normal([3, -2], [2, 5], (int(rng.integers(1, 8)), 2))
            filtered(own, rows)
            everything.extend(rows)
        merged = copies[0].merge_states([own.get_state() for own in copies])
        for own in copies:
            own.set_state(copy.deepcopy(merged))
    known = copies[-1].get_state()["synchronised"]
    assert known["count"] == len(everything)
    np.testing.assert_allclose(known["mean"], np.mean(everything, 0), rtol=1e-12)
    np.testing.assert_allclose(known["squares"], np.var(everything, 0) * len(everything), rtol=1e-12)


# -- huge numbers ----------------------------------------------------------------------------------


def one_row(piece, *row):
    return filtered(piece, [row])


def one_chunk(piece, *rewards):
    return trained([piece.share()], [played(range(len(rewards) + 1), list(rewards), terminated=True)])["rewards"]


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("value", [1e200, -1e101, np.inf, -np.inf, np.nan])
def test_values_that_no_statistics_have_room_for_are_refused_and_spoil_nothing(value):
    for piece, run, words in (
        (MeanStdFilter(PLANE), one_row, rf"observation of episode 'e0'(.|\n)*at most 1e\+100(.|\n)*{value}"),
        (NormalizeReward(), one_chunk, r"finite rewards of at most 1e\+100"),
    ):
        run(piece, 1.0, 2.0)
        before = copy.deepcopy(piece.get_state())
        with pytest.raises(ColumnError, match=words.replace("e+200", r"e\+200").replace("e+101", r"e\+101")):
            run(piece, 1.0, value)
        np.testing.assert_equal(piece.get_state(), before)


@pytest.mark.parametrize("value", [1e99, 3.4e38, -1e16])
def test_huge_values_are_warned_of_once_and_can_be_saved(tmp_path, value):
    piece, rows = MeanStdFilter(PLANE), [[0.0, 0.0], [1.0, value], [2.0, 0.0], [3.0, value]]
    (text,) = warned(lambda: [one_row(piece, *row) for row in rows])
    assert "observations of at most 1e+15" in text and "MeanStdFilter" in text
    state = load_state(save_state(tmp_path / "filter", piece.get_state()))
    MeanStdFilter(PLANE).set_state(state)
    np.testing.assert_allclose(state["since"]["mean"], np.mean(rows, 0))
    np.testing.assert_allclose(state["since"]["squares"], np.var(rows, 0) * 4)
    piece = NormalizeReward(gamma=None)
    (text,) = warned(lambda: [one_chunk(piece, 1.0, value) for _ in range(3)])
    assert "rewards of at most 1e+15" in text
    NormalizeReward(gamma=None).set_state(load_state(save_state(tmp_path / "rewards", piece.get_state())))


def test_ordinary_values_are_not_warned_of():
    assert warned(lambda: (one_chunk(NormalizeReward(), 1e14, -1e14), one_row(MeanStdFilter(PLANE), 1e14, 0.0))) == []
    for kind in (np.float16, np.float32, np.int8):
        assert warned(lambda kind=kind: one_chunk(NormalizeReward(gamma=None), kind(1), kind(2), kind(3))) == []


# -- mistakes --------------------------------------------------------------------------------------


def test_a_state_of_another_space_is_refused_now_or_when_the_space_is_known():
    state = MeanStdFilter(Box(0, 255, (4, 3, 2), np.uint8)).get_state()
    with pytest.raises(StateError, match=r"set_state(.|\n)*\{'observation': \[2\]\}(.|\n)*\[4, 3, 2\]"):
        MeanStdFilter(PLANE).set_state(state)
    piece = MeanStdFilter()
    piece.set_state(state)
    piece.input_observation_space = PLANE
    with pytest.raises(StateError, match="MeanStdFilter"):
        filtered(piece, np.ones((1, 2)))


STACKED = [FrameStackingEnvToModule(num_frames=2), MeanStdFilter()]


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: filtered(MeanStdFilter(PLANE), np.zeros((5, 3))), SpaceError, r"shape \(2,\)(.|\n)*shape \(3,\)"),
        (lambda: filtered(MeanStdFilter(), np.ones((1, 2))), SpaceError, "pass it to the pipeline"),
        (lambda: EnvToModulePipeline(connectors=STACKED), PipelineError, r"move MeanStdFilter before .*FrameStacking"),
        *((lambda own=own: MeanStdFilter(clip_by_value=own), ConfigError, "clip_by_value")
          for own in (0, -1.0, float("nan"), True)),
        (lambda: MeanStdFilter(update_stats="no"), ConfigError, "update_stats"),
        (lambda: MeanStdFilter(de_mean_to_zero=1), ConfigError, "de_mean_to_zero"),
    ],
)  # fmt: skip
def test_mistakes_are_named(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()


MASKS = {
    "box": Box(0, 1, (1,), np.float32),
    "discrete": Discrete(2),
    "entries": MultiBinary(2),
}


@pytest.mark.parametrize("kind", ["arrays", "tensors", "masked_column"])
@pytest.mark.parametrize("mask_space", MASKS)
def test_only_rows_that_are_there_count(mask_space, kind):
    infinite = Box(-np.inf, np.inf, (2,), np.float64)
    pair = Dict(value=infinite, mask=MASKS[mask_space])
    space = Dict(x=infinite, t=pair)
    piece, other = MeanStdFilter(space), MeanStdFilter(space)
    assert piece.observation_space["t"]["mask"] == MASKS[mask_space]
    rng, seen, all_x = np.random.default_rng(0), [[], []], []
    for step in range(4):
        x, value = rng.normal(3, 2, (2, 6, 2))
        shape = {"box": (6, 1), "discrete": (6,), "entries": (6, 2)}[mask_space]
        mask = (rng.random(shape) < 0.5).astype(np.float32)
        there = np.broadcast_to(mask.reshape(6, -1), (6, 2)) > 0
        value[~there] = np.nan
        all_x.append(x)
        array = torch.tensor if kind == "tensors" else np.array
        pair_given = {"value": array(value), "mask": array(mask)}
        if kind == "masked_column":
            pair_given = MaskedColumn(**pair_given)
        out = piece.rewrite({"x": array(x), "t": pair_given}, None)
        np.testing.assert_array_equal(out["t"]["mask"], mask)
        for i in range(2):
            seen[i] += value[there[:, i], i].tolist()
            deviation = np.std(seen[i], ddof=1) + 1e-6 if len(seen[i]) > 1 else 1.0
            expected = (value[:, i] - np.mean(seen[i] or [0.0])) / deviation
            np.testing.assert_allclose(out["t"]["value"][:, i], np.where(there[:, i], expected, 0.0), atol=1e-5)
        rows = np.concatenate(all_x)
        np.testing.assert_allclose(out["x"], (x - rows.mean(0)) / (rows.std(0, ddof=1) + 1e-6), atol=1e-5)
        if step % 2:
            merged = piece.merge_states([copy.deepcopy(piece.get_state()), other.get_state()])
            piece.set_state(merged)
            other.set_state(merged)
    back = piece.inverse(out)
    np.testing.assert_allclose(back["t"]["value"][there], value[there])


def test_a_mask_of_another_size_than_its_space_is_named():
    space = Dict(value=Box(-1, 1, (2,)), mask=Discrete(2))
    with pytest.raises(SpaceError, match=r"mask of observation\['value'\]"):
        MeanStdFilter(space).rewrite({"value": np.zeros((3, 2)), "mask": np.zeros((3, 2))}, None)
