"""Stacks of frames on any axis, old or new, padded and pooled, and maxima: against a loop over whole episodes."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from epibatch.connectors.learner.frame_stacking import FrameStackingLearner
from epibatch.connectors.observations import TimeMaxPool
from epibatch.core.errors import ColumnError, ConfigError, EpibatchError, LookbackError, SpaceError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from fixture_pieces import Lab, acted, played, trained

ACTIONS, SHAPE = gym.spaces.Discrete(2), (2, 3, 2)
SPACE, PIXELS = gym.spaces.Box(-9, 9, SHAPE, np.int16), gym.spaces.Box(0, 99, (4, 4, 1), np.uint8)
KINDS = [
    {"axis": -1},
    {"axis": 0},
    {"axis": 1},
    {"new_axis": True},
    {"new_axis": True, "axis": -1},
    {"new_axis": True, "axis": 1},
    {"new_axis": True, "axis": -2, "padding": "same"},
    {"axis": -1, "padding": "same", "max_pool": 2},
    {"new_axis": True, "max_pool": 3},
    {"new_axis": True, "axis": -1, "max_pool": 2},
]
EPISODES = st.lists(st.tuples(st.integers(1, 7), st.lists(st.integers(0, 7), max_size=2)), min_size=1, max_size=3)


def frames(rng, steps, shape=SHAPE, dtype=np.int16):
    return list(rng.integers(-9, 9, (steps + 1, *shape)).astype(dtype))


def slow_maximum(rows, t, size):
    return np.max([rows[j] for j in range(max(0, t - size + 1), t + 1)], axis=0)


def slow_stack(rows, t, num_frames, axis=None, new_axis=False, padding="zeros", max_pool=1):
    """One stack, by picking frames of the whole episode one by one."""
    picked = []
    for k in range(t - num_frames + 1, t + 1):
        missing = k < 0 and padding == "zeros"
        picked.append(np.zeros_like(rows[0]) if missing else slow_maximum(rows, max(k, 0), max_pool))
    if new_axis:
        return np.stack(picked, 0 if axis is None else axis)
    return np.concatenate(picked, -1 if axis is None else axis)


def cut(rows, cuts, lookback):
    """The chunks of an episode of these observations, each with as much history as there is, up to the lookback."""
    whole = played(rows)
    ends = sorted({0, len(whole), *(min(end, len(whole)) for end in cuts)})
    return [whole.slice(slice(*ends_), len_lookback_buffer=min(ends_[0], lookback)) for ends_ in pairwise(ends)]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 999), EPISODES, st.integers(1, 4), st.sampled_from(KINDS))
def test_chunks_cut_anywhere_give_the_stacks_of_a_loop(seed, episodes, num_frames, kind):
    rng, lookback = np.random.default_rng(seed), num_frames + kind.get("max_pool", 1) - 2
    expected, chunks = [], []
    for steps, cuts in episodes:
        rows = frames(rng, steps)
        expected += [slow_stack(rows, t, num_frames, **kind) for t in range(steps)]
        chunks += cut(rows, cuts, lookback)
    piece = FrameStacking(SPACE, num_frames=num_frames, as_learner_connector=True, **kind)
    assert piece.lookback == lookback
    found = trained([piece], chunks, SPACE, ACTIONS)["obs"]
    np.testing.assert_array_equal(found, np.stack(expected), strict=True)
    assert all(piece.observation_space.contains(row) for row in found)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), EPISODES, st.integers(1, 4))
def test_chunks_cut_anywhere_give_the_maxima_of_a_loop(seed, episodes, size):
    rng, expected, chunks = np.random.default_rng(seed), [], []
    for steps, cuts in episodes:
        rows = frames(rng, steps, (2, 3), np.float32)
        expected += [slow_maximum(rows, t, size) for t in range(steps)]
        chunks += cut(rows, cuts, size - 1)
    space = gym.spaces.Box(-9, 9, (2, 3), np.float32)
    found = trained([TimeMaxPool(num_frames=size, as_learner_connector=True)], chunks, space, ACTIONS)["obs"]
    np.testing.assert_array_equal(found, np.stack(expected), strict=True)


@settings(max_examples=100, deadline=None)
@given(
    width=st.integers(1, 9),
    dtype=st.sampled_from(["u1", "i1", "?", "u2", "f2", "i4", "f4", "f8"]),
    shape=st.sampled_from([(), (1,), (3,), (2, 4), (84, 84), (40, 60)]),  # the last two are stacked as words
    steps=st.integers(1, 12),
    first=st.integers(0, 11),
    apart=st.booleans(),
)
@example(width=4, dtype="u1", shape=(84, 84), steps=6, first=2, apart=False)
@example(width=2, dtype="f4", shape=(84, 84), steps=6, first=1, apart=True)
def test_frames_of_one_channel_of_any_type(width, dtype, shape, steps, first, apart):
    rng, first = np.random.default_rng(steps), min(first, steps - 1)
    rows = (9 * rng.standard_normal((2, steps + 1, *shape, 1))).astype(dtype)
    chunk = cut(list(rows[0]), [first], width - 1)[-1]
    if apart:  # frames of one environment of a block do not lie side by side
        recorder, no = VectorRecorder(2), np.zeros(2, bool)
        recorder.reset(rows[:, 0])
        for t in range(steps):
            recorder.step(np.zeros(2, int), np.zeros(2), no, no, rows[:, t + 1])
            recorder.commit()
        chunk, first = recorder.flush(0)[0], 0
    pieces = [FrameStacking(num_frames=width, as_learner_connector=True)]
    expected = np.stack([slow_stack(rows[0], t, width) for t in range(first, steps)])
    np.testing.assert_array_equal(trained(pieces, [chunk])["obs"], expected, strict=True)


@pytest.mark.parametrize("kind", [*KINDS, "maximum"], ids=str)
def test_acting_rows_are_those_of_the_loop_in_lists_and_while_recording(kind):
    rng = np.random.default_rng(0)
    piece = TimeMaxPool(num_frames=3) if kind == "maximum" else FrameStacking(num_frames=3, **kind)
    pipeline = EnvToModulePipeline(SPACE, ACTIONS, connectors=[piece, BatchIndividualItems()])
    recorder = VectorRecorder(3, SPACE, ACTIONS, autoreset="same_step")
    recorder.reset(np.stack(frames(rng, 2)))
    for _ in range(12):
        found = pipeline(rl_module=None, episodes=recorder.episodes)["obs"]
        rows = [episode.get_observations() for episode in recorder.episodes]
        slow = slow_maximum if kind == "maximum" else slow_stack
        own = {} if kind == "maximum" else kind
        expected = np.stack([slow(one, len(one) - 1, 3, **own) for one in rows])
        assert np.array_equal(found, expected)
        copies = [episode.slice(slice(0, len(episode))) for episode in recorder.episodes]
        assert np.array_equal(pipeline(rl_module=None, episodes=copies)["obs"], expected)
        ends, newest, final = rng.random(3) < 0.3, np.stack(frames(rng, 2)), np.stack(frames(rng, 2))
        recorder.step(np.zeros(3, np.int64), np.zeros(3), ends, np.zeros(3, bool), newest, final_observations=final)
        recorder.commit()


def test_zeros_are_in_the_space_only_where_they_can_be_seen():
    space = gym.spaces.Box(2, 3, (1,), np.float32)
    assert FrameStacking(space, num_frames=2).observation_space == gym.spaces.Box(0, 3, (2,), np.float32)
    same = FrameStacking(space, num_frames=2, padding="same")
    assert same.observation_space == gym.spaces.Box(2, 3, (2,), np.float32)


def test_partials_choose_the_side():
    assert FrameStackingEnvToModule(num_frames=2).as_learner_connector is False
    assert FrameStackingLearner(num_frames=2).as_learner_connector is True


def test_a_space_that_is_given_later():
    piece = FrameStacking(num_frames=4)
    piece.input_action_space = ACTIONS
    piece.input_observation_space = PIXELS
    assert piece.observation_space == gym.spaces.Box(0, 99, (4, 4, 4), np.uint8)


def test_stacks_are_what_later_pieces_use(lab):
    """The bootstrap row is an observation that the episode has."""
    rows = np.arange(1, 5, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 1), np.uint8)
    episodes = [lab.episode("a", 3, observations=list(rows)), lab.episode("b", 2, observations=list(rows[:3]))]
    pieces = [FrameStacking(num_frames=2, as_learner_connector=True), *lab.defaults("learner", ppo=True)[:-1]]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(), spaces=(PIXELS, ACTIONS))
    assert batch["loss_mask"].tolist() == [True, True, True, False, True, True, False]
    found = batch["obs"][batch["loss_mask"]]
    assert batch["obs"].shape == (7, 4, 4, 2)
    assert found[:, 0, 0].tolist() == [[0, 1], [1, 2], [2, 3], [0, 1], [1, 2]]


@pytest.mark.parametrize("learner", [True, False])
def test_chunks_of_two_types_share_one_that_holds_both_and_of_two_shapes_are_an_error(learner):
    rng = np.random.default_rng(0)
    rows = [frames(rng, 4, (3, 1), dtype) for dtype in (np.uint8, np.int16, np.float32)]
    chunks, run = [played(own) for own in rows], trained if learner else acted
    piece = FrameStacking(num_frames=2, as_learner_connector=learner)
    found = run([piece.clone()], chunks)["obs"]
    assert found.dtype == np.float32
    for own, stack in zip(rows, found[3::4] if learner else found):
        np.testing.assert_array_equal(stack, slow_stack(own, 4 - learner, 2))
    with pytest.raises(ColumnError, match=r"of shape \(3, 1\), as in[\s\S]*of shape \(4, 1\) in episode"):
        run([piece], [*chunks, played(frames(rng, 4, (4, 1)))])


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FrameStacking(num_frames=2, max_pool=0), ConfigError, r"FrameStacking.max_pool[\s\S]*at least 1"),
        (lambda: FrameStacking(num_frames=2, padding="repeat"), ConfigError, r"FrameStacking\.padding"),
        (lambda: TimeMaxPool(num_frames=0), ConfigError, r"TimeMaxPool.num_frames[\s\S]*at least 1"),
        (lambda: TimeMaxPool(num_frames=10**9), ConfigError, r"num_frames[\s\S]*at most 65536"),
        (lambda: FrameStacking(num_frames=10**9), ConfigError, r"num_frames[\s\S]*at most 65536"),
        (lambda: FrameStacking(SPACE, num_frames=2, axis=3), SpaceError, r"room for axis=3[\s\S]*-1 is the last one"),
        (lambda: FrameStacking(SPACE, num_frames=2), SpaceError, "new_axis=True, or join them on an axis of another"),
        (lambda: TimeMaxPool(gym.spaces.Dict(a=SPACE)), SpaceError, "columns='obs/a'"),
    ],
)
def test_settings_that_cannot_be_meant(make, error, words):
    with pytest.raises(error, match=words):
        make().observation_space  # noqa: B018


@pytest.mark.parametrize("space", [gym.spaces.Box(0, 1, (4, 4, 3)), gym.spaces.Discrete(3)])
def test_only_spaces_with_one_channel_can_be_stacked(space):
    with pytest.raises(EpibatchError, match=r"frame_stacking|FrameStacking") as raised:
        trained([FrameStacking(num_frames=2, as_learner_connector=True)], [Lab.episode("a", 2)], space, ACTIONS)
    assert str(space) in str(raised.value)


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (FrameStacking(num_frames=4, axis=-1), "some_id(?s:.*)a lookback of 3 steps"),
        (FrameStacking(num_frames=3, axis=-1, max_pool=2), "a lookback of 3 steps"),
        (TimeMaxPool(num_frames=4), r"TimeMaxPool[\s\S]*a lookback of 3 steps"),
    ],
)
def test_history_that_a_chunk_does_not_carry_is_an_error(piece, words):
    chunk = played(frames(np.random.default_rng(0), 5), id_="some_id").slice(slice(3, 5), len_lookback_buffer=2)
    learner = type(piece)(as_learner_connector=True, **piece.get_ctor_args_and_kwargs()[1])
    with pytest.raises(LookbackError, match=words):
        trained([learner], [chunk], SPACE, ACTIONS)
    young = SingleAgentEpisode(id_="some_id", observations=chunk.get_observations(slice(0, 1)), t_started=10)
    with pytest.raises(LookbackError, match="some_id"):
        acted([piece], [young], SPACE, ACTIONS)
