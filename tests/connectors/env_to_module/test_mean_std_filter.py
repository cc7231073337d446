"""Normalised observations against mean and deviation of all observations so far, computed anew each time."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space

from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline, MeanStdFilter
from epibatch.core.errors import ColumnError, ConfigError, PipelineError, SpaceError, StateError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.episodes import SingleAgentEpisode, VectorRecorder, reader_of

F32, F64 = np.float32, np.float64


PLANE = Box(-np.inf, np.inf, (2,), F64)


SPACES = {
    "vector": Box(-np.inf, np.inf, (3,), F32),
    "scalar": Box(-5, 5, (), F64),
    "image": Box(0, 255, (4, 3, 2), np.uint8),
    "whole numbers": Box(-7, 7, (2,), np.int64),
    "half precision": Box(-2, 2, (2, 2), np.float16),
    "discrete": Discrete(4, start=2),
    "multi-discrete": MultiDiscrete([2, 3]),
    "dict": Dict(a=Box(-1, 1, (2,)), b=Discrete(3), c=Dict(d=Box(0, 255, (2, 2), np.uint8), e=MultiBinary(2))),
    "tuple": Tuple([Box(-1, 1, ()), MultiDiscrete([2, 2]), Tuple([Box(-3, 3, (2,), F64)])]),
}


def leaves(struct):
    """The leaves of a structure in the order of the keys."""
    parts = [struct[key] for key in sorted(struct)] if isinstance(struct, dict) else struct
    return [leaf for part in parts for leaf in leaves(part)] if isinstance(struct, (dict, tuple)) else [struct]


def filled(struct, new):
    """The structure with other leaves."""
    if isinstance(struct, dict):
        return {key: filled(struct[key], new) for key in sorted(struct)}
    return tuple(filled(part, new) for part in struct) if isinstance(struct, tuple) else next(new)


def batches(space, count, steps, seed=0):
    """Observations of `count` environments, step by step: structures of arrays [count, ...]."""
    many = batch_space(space, count)
    many.seed(seed)
    return [many.sample() for _ in range(steps)]


def on_list(piece, observations):
    """What the piece makes of a list of new episodes, leaf by leaf."""
    count = len(leaves(observations)[0])
    rows = [_row(observations, i) for i in range(count)]
    episodes = [SingleAgentEpisode() for _ in rows]
    for episode, row in zip(episodes, rows):
        episode.add_env_reset(row)
    piece(batch={}, episodes=episodes)
    written = [leaves(episode.get_observations(-1)) for episode in episodes]
    return [np.stack(leaf) for leaf in zip(*written)]


def _row(struct, i):
    if isinstance(struct, dict):
        return {key: _row(value, i) for key, value in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_row(value, i) for value in struct)
    return struct[i]


def on_block(piece, space, steps, plain=False):
    """What the piece makes of a recorded block, step by step and leaf by leaf."""
    count = len(leaves(steps[0])[0])
    recorder = VectorRecorder(count, space, Discrete(2))
    pipeline = EnvToModulePipeline(space, Discrete(2), connectors=[piece, AddObservationsFromEpisodesToBatch()])
    out, no = [], np.zeros(count, bool)
    for i, observations in enumerate(steps):
        if i:
            recorder.step(np.zeros(count, np.int64), np.zeros(count), no, no, observations)
        else:
            recorder.reset(observations)
        if plain:
            piece(batch={}, episodes=list(recorder.episodes))
        else:
            pipeline(episodes=recorder.episodes)
        recorder.commit()
        out.append([np.array(leaf) for leaf in leaves(reader_of(recorder.episodes).newest("obs")[0])])
    return out


def expected(rows, newest, clip=10.0, small=1e-6):
    """Filtered newest rows, by all rows in float64."""
    rows, newest = np.asarray(rows, F64), np.asarray(newest, F64)
    deviation = rows.std(0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1:])
    divisor = np.where(deviation > 0, deviation + small, 1.0)
    return np.clip((newest - rows.mean(0)) / divisor, -clip, clip)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_each_box_entry_is_normalised_by_all_there_was_and_other_leaves_stay(space, count):
    piece = MeanStdFilter(space)
    steps = batches(space, count, 6)
    spaces = leaves(get_base_struct_from_space(space))
    outgoing = leaves(get_base_struct_from_space(piece.observation_space))
    seen = [[] for _ in spaces]
    for observations, written in zip(steps, on_block(piece, space, steps)):
        for i, (leaf, own) in enumerate(zip(leaves(observations), spaces)):
            seen[i].extend(np.asarray(leaf))
            if isinstance(own, Box):
                tolerance = 2e-3 if outgoing[i].dtype == np.float16 else 1e-5
                wanted = expected(seen[i], leaf)
                np.testing.assert_allclose(written[i], wanted, rtol=tolerance, atol=tolerance)
                assert written[i].dtype == outgoing[i].dtype and written[i].shape[1:] == outgoing[i].shape
                assert outgoing[i].low.min() == -10.0 and outgoing[i].high.max() == 10.0
            else:
                assert np.array_equal(written[i], leaf) and outgoing[i] == own


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_the_columnar_and_the_plain_way_are_equal_bit_by_bit(space):
    steps = batches(space, 4, 8)
    pieces = [MeanStdFilter(space) for _ in range(3)]
    block, views = on_block(pieces[0], space, steps), on_block(pieces[1], space, steps, plain=True)
    alone = [on_list(pieces[2], observations) for observations in steps]
    for one, two, three in zip(block, views, alone):
        for a, b, c in zip(one, two, three):
            assert a.dtype == b.dtype == c.dtype and a.tobytes() == b.tobytes() == c.tobytes()
    states = [piece.get_state() for piece in pieces]
    for state in states[1:]:
        assert np.array_equal(state["since"]["mean"], states[0]["since"]["mean"])
        assert np.array_equal(state["since"]["squares"], states[0]["since"]["squares"])


def test_switches_and_the_limit():
    rows = np.array([[0.0, 10.0], [1.0, 10.0], [1000.0, 10.0]])
    deviation = rows[:, 0].std(ddof=1) + 1e-6
    [centred] = on_list(MeanStdFilter(PLANE, de_std_to_one=False, clip_by_value=None), rows)
    assert centred == pytest.approx(rows - rows.mean(0))
    [scaled] = on_list(MeanStdFilter(PLANE, de_mean_to_zero=False), rows)
    assert scaled[:, 0] == pytest.approx(rows[:, 0] / deviation) and scaled[:, 1].tolist() == [10.0] * 3
    [clipped] = on_list(MeanStdFilter(PLANE, clip_by_value=0.5), rows)
    assert clipped[:, 0] == pytest.approx([-0.5, -0.5, 0.5])
    free = MeanStdFilter(PLANE, clip_by_value=None).observation_space
    assert free == Box(-np.inf, np.inf, (2,), F64)


def test_an_entry_that_has_not_varied_is_shifted_and_never_blown_up():
    piece = MeanStdFilter(PLANE)
    on_list(piece, np.array([[0.1, 1.0]] * 7 + [[0.1, 3.0]]))
    piece.freeze()
    [out] = on_list(piece, np.array([[0.15, 1.25]]))
    assert out[0] == pytest.approx([0.05, 0.0])


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_without_statistics_a_filter_that_does_not_update_changes_no_value(space):
    observations = batches(space, 3, 1)[0]
    piece = MeanStdFilter(space, update_stats=False, clip_by_value=0.5)
    for written, given in zip(on_list(piece, observations), leaves(observations)):
        assert np.array_equal(written, given)
    assert piece.get_state()["since"]["count"] == 0


def test_statistics_can_be_reset_whether_they_are_updated_or_not():
    for update in (True, False):
        piece = MeanStdFilter(PLANE, update_stats=update)
        piece.set_state(_trained().get_state())
        piece.reset_state()
        assert (piece.get_state()["synchronised"]["count"], piece.get_state()["since"]["count"]) == (0, 0)
        [out] = on_list(piece, np.array([[3.0, 40.0]]))
        assert out.tolist() == ([[0.0, 0.0]] if update else [[3.0, 40.0]])


def _trained(seed=0, count=50):
    piece = MeanStdFilter(PLANE)
    on_list(piece, np.random.default_rng(seed).normal([3, -2], [2, 5], (count, 2)))
    return piece


@pytest.mark.parametrize("by", ["update_stats=False", "freeze()"])
def test_a_frozen_filter_applies_what_it_knows_and_learns_nothing(by):
    trained, frozen = _trained(), MeanStdFilter(PLANE, update_stats=by == "freeze()")
    if by == "freeze()":
        frozen.freeze()
    frozen.set_state(trained.get_state())
    rows = np.random.default_rng(1).normal(size=(4, 2))
    mean, deviation = trained._seen.total.mean, trained._seen.total.std()
    for _ in range(3):
        [out] = on_list(frozen, rows)
        assert out == pytest.approx((rows - mean) / (deviation + 1e-6))
    assert frozen.get_state()["since"]["count"] == 50


def test_a_filter_that_is_frozen_no_more_goes_on_counting():
    piece = _trained()
    piece.freeze()
    on_list(piece, np.ones((4, 2)))
    piece.unfreeze()
    on_list(piece, np.ones((3, 2)))
    assert piece.get_state()["since"]["count"] == 53


@pytest.mark.parametrize("kept", [{}, {"de_mean_to_zero": False}, {"de_std_to_one": False}])
def test_the_inverse_gives_back_what_came_in(kept):
    space, piece = SPACES["dict"], MeanStdFilter(SPACES["dict"], **kept, clip_by_value=None)
    assert piece.inverse(batches(space, 4, 1)[0])["b"].tolist() == batches(space, 4, 1)[0]["b"].tolist()
    for observations in batches(space, 40, 3):
        filtered = on_list(piece, observations)
    given = leaves(observations)
    back = leaves(piece.inverse(filled(observations, iter(filtered))))
    assert [leaf.dtype for leaf in back] == [leaf.dtype for leaf in filtered]
    for leaf, before in zip(back, given):
        np.testing.assert_allclose(leaf, before, atol=1e-3)


def test_a_restored_filter_goes_on_bit_by_bit():
    piece, rng = _trained(), np.random.default_rng(5)
    piece.set_state(piece.merge_states([piece.get_state(), _trained(1).get_state()]))
    on_list(piece, rng.normal(size=(3, 2)))
    again = MeanStdFilter(PLANE)
    again.set_state(copy.deepcopy(piece.get_state()))
    for _ in range(5):
        rows = rng.normal(size=(3, 2))
        assert on_list(piece, rows)[0].tobytes() == on_list(again, rows)[0].tobytes()


@pytest.mark.parametrize(("runners", "seed"), [(1, 0), (2, 1), (5, 2)])
def test_synchronising_again_and_again_gives_the_statistics_of_all_data(runners, seed):
    rng = np.random.default_rng(seed)
    space = SPACES["dict"]
    everything, copies = MeanStdFilter(space), [MeanStdFilter(space) for _ in range(runners)]
    for _ in range(20):
        for own in copies:
            for observations in batches(space, 3, int(rng.integers(0, 4)), int(rng.integers(2**31))):
                on_list(own, observations)
                on_list(everything, observations)
        merged = copies[0].merge_states([own.get_state() for own in copies])
        for own in copies:
            own.set_state(merged)
    one, all_of_them = everything.get_state()["since"], copies[-1].get_state()["synchronised"]
    assert all_of_them["count"] == one["count"] > 0
    for key in ("mean", "squares"):
        np.testing.assert_allclose(all_of_them[key], one[key], rtol=1e-12)
    newest = batches(space, 3, 1, 99)[0]
    for a, b in zip(on_list(copies[0], newest), on_list(everything, newest)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_state_is_plain_data_and_a_copy():
    piece = _trained()
    state = piece.get_state()
    assert state["leaves"] == {"observation": [2]} and state["since"]["count"] == 50
    before = state["since"]["mean"].copy()
    on_list(piece, np.ones((3, 2)))
    assert np.array_equal(state["since"]["mean"], before)
    assert MeanStdFilter().get_state() == {} and MeanStdFilter().merge_states([]) == {}


def test_a_state_of_another_space_is_refused_now_or_when_the_space_is_known():
    state = MeanStdFilter(SPACES["image"]).get_state()
    with pytest.raises(StateError, match=r"set_state(.|\n)*\{'observation': \[2\]\}(.|\n)*\[4, 3, 2\]"):
        MeanStdFilter(PLANE).set_state(state)
    piece = MeanStdFilter()
    piece.set_state(state)
    piece.input_observation_space = PLANE
    with pytest.raises(StateError, match="MeanStdFilter"):
        on_list(piece, np.ones((1, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_named_and_spoils_nothing(value):
    piece = _trained()
    state = piece.get_state()
    episodes = [SingleAgentEpisode(id_=id_, observations=[np.array([0.0, x])]) for id_, x in [("a", 1.0), ("b", value)]]
    with pytest.raises(ColumnError, match=rf"observation of episode 'b'(.|\n)*found: +{value}"):
        piece(batch={}, episodes=episodes)
    assert np.array_equal(piece.get_state()["since"]["squares"], state["since"]["squares"])


def test_a_leaf_of_another_shape_than_its_space_is_named():
    with pytest.raises(SpaceError, match=r"observation\n  expected: shape \(2,\)(.|\n)*shape \(3,\)"):
        on_list(MeanStdFilter(PLANE), np.zeros((5, 3)))


def test_without_a_space_it_says_what_it_needs():
    with pytest.raises(SpaceError, match="pass it to the pipeline"):
        on_list(MeanStdFilter(), np.ones((1, 2)))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"clip_by_value": 0}, ConfigError, "clip_by_value"),
        ({"clip_by_value": -1.0}, ConfigError, "above 0"),
        ({"clip_by_value": float("nan")}, ConfigError, "nan"),
        ({"clip_by_value": True}, ConfigError, "clip_by_value"),
        ({"update_stats": "no"}, ConfigError, "update_stats"),
        ({"de_mean_to_zero": 1}, ConfigError, "de_mean_to_zero"),
    ],
)
def test_wrong_settings_are_named(settings, error, words):
    with pytest.raises(error, match=words):
        MeanStdFilter(**settings)


def test_stacks_of_the_raw_observations_in_front_are_refused():
    from epibatch.connectors.env_to_module import FrameStackingEnvToModule

    with pytest.raises(PipelineError, match=r"move MeanStdFilter before .*FrameStacking"):
        EnvToModulePipeline(connectors=[FrameStackingEnvToModule(num_frames=2), MeanStdFilter()])


def test_text_is_left_alone():
    space = Dict(words=Text(5), size=Box(-1, 1, (1,)))
    piece = MeanStdFilter(space)
    episode = SingleAgentEpisode(observations=[{"words": "hello", "size": np.array([0.5], F32)}])
    piece(batch={}, episodes=[episode])
    assert episode.get_observations(-1)["words"] == "hello"
    assert episode.get_observations(-1)["size"].tolist() == [0.0]
    assert isinstance(piece.observation_space, gym.spaces.Dict) and piece.observation_space["words"] == Text(5)
