"""Parts of nested observations: a piece makes of a part what it makes of it alone, and leaves the others alone."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import env_to_module, learner
from epibatch.connectors.columns import CastColumns
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.connectors.images import CenterCrop, Crop, Grayscale, RandomCrop, Resize, ToCHWFloat
from epibatch.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from epibatch.connectors.observations import Affine, Clip, FlattenAxes, TimeMaxPool
from epibatch.core.errors import ColumnError, PieceError, SpaceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import MultiAgentEpisode, VectorRecorder
from fixture_episodes import assert_same
from fixture_pieces import Lab

Box = gym.spaces.Box
RGB, GRAY, POSE = Box(0, 255, (6, 5, 3), np.uint8), Box(0, 255, (6, 5, 1), np.uint8), Box(-9, 9, (3,), np.float32)
SPACE = gym.spaces.Dict(
    left=RGB, gray=GRAY, arm=gym.spaces.Tuple((POSE, gym.spaces.Discrete(4))), other=Box(0, 255, (2, 2), np.uint8)
)
TWO = gym.spaces.Discrete(2)
BOTH_SIDES = [
    (FrameStacking, {"num_frames": 3}, ["obs/gray"]),
    (FrameStacking, {"num_frames": 3, "axis": -1}, ["obs/left", "obs/arm/0"]),
    (FrameStacking, {"num_frames": 2, "new_axis": True, "max_pool": 2, "padding": "same"}, ["obs/other", "obs/gray"]),
    (TimeMaxPool, {"num_frames": 2}, ["obs/left", "obs/arm/0"]),
    (Grayscale, {}, ["obs/left"]),
    (Resize, {"height": 3, "width": 4}, ["obs/left", "obs/gray"]),
    (Crop, {"height": 2, "width": 3}, ["obs/gray"]),
    (CenterCrop, {"height": 2, "width": 3}, ["obs/left"]),
    (ToCHWFloat, {}, ["obs/left", "obs/gray"]),
    (Clip, {"low": -1.0, "high": 1.0}, ["obs/arm/0"]),
    (Affine, {"loc": 1.0, "scale": 2.0}, ["obs/arm/0"]),
    (FlattenAxes, {}, ["obs/left"]),
    (CastColumns, {"dtype": "float16"}, ["obs/arm/0"]),
]
ACTING = [
    (MeanStdFilter, {}, ["obs/arm/0"]),
    (MeanStdFilter, {"clip_by_value": 0.5}, ["obs/arm", "obs/gray"]),
    (RandomCrop, {"height": 4, "width": 4}, ["obs/left"]),
]


def parts_of(struct, names):
    """The parts at these addresses."""
    found = {}
    for name in names:
        part = struct
        for key in name.split("/")[1:]:
            part = part[int(key)] if isinstance(part, (tuple, gym.spaces.Tuple)) else part[key]
        found[name] = part
    return found


def without(struct, names, here="obs"):
    """All leaves that are at none of these addresses."""
    if any(here == name or here.startswith(f"{name}/") for name in names):
        return {}
    if isinstance(struct, (dict, tuple, gym.spaces.Dict, gym.spaces.Tuple)):
        pairs = struct.items() if hasattr(struct, "items") else enumerate(struct)
        return {name: leaf for k, part in pairs for name, leaf in without(part, names, f"{here}/{k}").items()}
    return {here: struct}


def only(names, episode):
    """For each address an episode that observes nothing else."""
    rows = [parts_of(episode.get_observations(t), names) for t in range(len(episode) + 1)]
    return {name: alone(episode, [row[name] for row in rows]) for name in names}


def alone(episode, rows):
    steps = len(rows) - 1
    twin = Lab.episode(episode.id_, steps, observations=rows, observation_space=None, numpy=False)
    return twin.slice(slice(0, steps))


def recorded(steps=7, seed=0):
    """Episodes of three environments in a block, some of which ended, each with its whole history."""
    rng = np.random.default_rng(seed)

    def drawn():
        batch = gym.vector.utils.batch_space(SPACE, 3)
        batch.seed(int(rng.integers(1e6)))
        return batch.sample()

    recorder = VectorRecorder(3, SPACE, TWO, autoreset="same_step")
    recorder.reset(drawn())
    for step in range(steps):
        ends = np.array([step == 3, False, step in (1, 2)])
        zeros = np.zeros(3)
        recorder.step(zeros.astype(int), zeros, ends, np.zeros(3, bool), drawn(), final_observations=drawn())
        recorder.commit()
    return recorder


def batches(kind, space, pieces, episodes, columns=("obs",)):
    make = learner.default_pipeline if kind == "learner" else env_to_module.default_pipeline
    more = {"advantages": False} if kind == "learner" else {}
    pipeline = make(space, TWO, connectors=pieces, **more)
    batch = pipeline(rl_module=None, batch={}, episodes=episodes)
    return pipeline.observation_space, [batch[column] for column in columns]


@pytest.mark.parametrize(
    ("kind", "cls", "settings", "names"),
    [
        *(("learner", *case) for case in BOTH_SIDES),
        *((kind, *case) for kind in ("acting", "acting, recording") for case in (*BOTH_SIDES, *ACTING)),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else ""),
)
def test_a_part_becomes_what_the_piece_makes_of_it_alone_and_the_others_stay(kind, cls, settings, names):
    recorder = recorded()
    episodes = recorder.flush(0) if kind == "learner" else recorder.episodes
    plain = list(episodes)
    expected_rest = batches(kind, SPACE, [], list(plain))[1][0]
    singles = [only(names, episode) for episode in plain]
    piece = cls(columns=names[0] if len(names) == 1 else names, **settings)
    space, (found,) = batches(kind, SPACE, [piece], episodes if kind != "acting" else list(plain))
    assert without(space, names) == without(SPACE, names)
    assert_same(without(found, names), without(expected_rest, names))
    for name in names:
        single_space = parts_of(SPACE, [name])[name]
        space_alone, (rows,) = batches(
            kind, single_space, [cls(columns="obs", **settings)], [own[name] for own in singles]
        )
        assert parts_of(space, [name])[name] == space_alone
        assert_same(parts_of(found, [name])[name], rows)


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize(("cls", "settings"), [(FrameStacking, {"new_axis": True}), (TimeMaxPool, {})])
def test_the_history_of_parts_that_stay_is_not_copied(cls, settings, recording):
    """A history of the large part takes 16 MB; its newest rows, which the batch copies, take 1 MB."""
    space = gym.spaces.Dict(large=Box(0, 255, (2**19,), np.uint8), pose=POSE)
    recorder = VectorRecorder(2, space, TWO)
    rows = {"large": np.zeros((2, 2**19), np.uint8), "pose": np.zeros((2, 3), np.float32)}
    recorder.reset(rows)
    for _ in range(17):
        recorder.step(np.zeros(2, int), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), rows)
    episodes = recorder.episodes if recording else list(recorder.flush(17))
    piece = cls(num_frames=16, columns="obs/pose", **settings)
    pipeline = env_to_module.default_pipeline(space, TWO, connectors=[piece])
    pipeline(rl_module=None, batch={}, episodes=episodes)
    tracemalloc.start()
    pipeline(rl_module=None, batch={}, episodes=episodes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1e6 < peak < 5e6


@pytest.mark.parametrize("cls", [FrameStacking, TimeMaxPool])
def test_next_observations_have_the_parts_too(cls):
    piece, episodes = cls(num_frames=2, columns="obs/gray"), recorded().flush(0)
    pieces = [piece, AddNextObservationsFromEpisodesToTrainBatch()]
    _, (obs, new_obs) = batches("learner", SPACE, pieces, episodes, ("obs", "new_obs"))
    _, (rest, new_rest) = batches("learner", SPACE, pieces[1:], list(episodes), ("obs", "new_obs"))
    assert_same(without(new_obs, ["obs/gray"]), without(new_rest, ["obs/gray"]))
    starts = np.cumsum([0, *map(len, episodes)])
    for start, stop in pairwise(starts):
        np.testing.assert_array_equal(new_obs["gray"][start : stop - 1], obs["gray"][start + 1 : stop])
    assert obs["gray"].shape == new_obs["gray"].shape and (rest["gray"].shape == obs["gray"].shape) == (
        cls is TimeMaxPool
    )


@pytest.mark.parametrize(("cls", "settings"), [(FrameStacking, {"num_frames": 2}), (TimeMaxPool, {})])
def test_agents_have_parts_of_their_own(cls, settings):
    one = gym.spaces.Dict(gray=GRAY, pose=POSE)
    spaces = gym.spaces.Dict(a=one, b=one), gym.spaces.Dict(a=TWO, b=TWO)
    rng, mapping = np.random.default_rng(0), {"agent_to_module_mapping_fn": lambda agent_id, *_, **__: agent_id}
    rows = [
        {agent: {"gray": rng.integers(0, 9, (6, 5, 1), np.uint8), "pose": np.float32(rng.random(3))} for agent in "ab"}
        for _ in range(4)
    ]
    episode = MultiAgentEpisode(observation_space=spaces[0], action_space=spaces[1], **mapping)
    episode.add_env_reset(observations=rows[0])
    for row in rows[1:]:
        episode.add_env_step(row, {"a": 0, "b": 1}, {"a": 0.0, "b": 0.0})
    piece = cls(columns="obs/gray", **settings)
    pipeline = learner.default_pipeline(*spaces, connectors=[piece], advantages=False, **mapping)
    batch = pipeline(rl_module=None, batch={}, episodes=[episode])
    for agent in "ab":
        grays = [row[agent]["gray"] for row in rows]
        pairs = list(zip([0 * grays[0] if cls is FrameStacking else grays[0], *grays], grays[:-1]))
        join = (lambda pair: np.concatenate(pair, -1)) if cls is FrameStacking else (lambda pair: np.maximum(*pair))
        assert batch[agent]["obs"]["gray"].tolist() == [join(pair).tolist() for pair in pairs]
        assert batch[agent]["obs"]["pose"].tolist() == [row[agent]["pose"].tolist() for row in rows[:-1]]


@pytest.mark.parametrize("columns", ["obs/gray", ["obs/gray", "obs/left"]])
@pytest.mark.parametrize("cls", [FrameStacking, TimeMaxPool, MeanStdFilter])
def test_columns_are_in_the_data_form(cls, columns):
    piece = cls(columns=columns)
    again = build_piece(piece_to_dict(piece))
    assert again.columns == columns and again == piece


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FrameStacking(SPACE), SpaceError, r"found: .*obs/left \(6, 5, 3\)[\s\S]*do: .*columns='obs/gray'"),
        (lambda: FrameStacking(SPACE, axis=-1), SpaceError, r"do: .*obs/left, obs/gray, obs/arm/0, obs/other"),
        (lambda: TimeMaxPool(SPACE, columns="obs/arm"), SpaceError, r"one array at 'obs/arm'[\s\S]*'obs/arm/0'"),
        (lambda: FrameStacking(SPACE, columns="obs/grey"), ColumnError, "did you mean 'gray'"),
        (lambda: FrameStacking(SPACE, columns="obs/gray/"), ColumnError, "do: .*write 'obs/gray'"),
        (lambda: MeanStdFilter(SPACE, columns="obs/arm/0/x"), ColumnError, "do: .*write 'obs/arm/0'"),
        (lambda: FrameStacking(SPACE, columns="obs/left"), SpaceError, "last axis has length 1"),
        (lambda: FrameStacking(SPACE, columns="rewards"), PieceError, "parts of 'obs' only"),
        (lambda: FrameStacking(SPACE, columns=["obs/gray", "new_obs/gray"]), PieceError, "new_obs is made as obs is"),
        (lambda: FrameStacking(SPACE, columns=[]), PieceError, "FrameStacking.columns"),
        (lambda: FrameStacking(gym.spaces.Dict(a=TWO)), SpaceError, "leave it out"),
        (lambda: MeanStdFilter(SPACE, columns="obs/arm/1"), SpaceError, "parts with a Box"),
        (lambda: MeanStdFilter(SPACE, columns="obs/arms"), ColumnError, "did you mean 'arm'"),
        (lambda: MeanStdFilter(SPACE, columns="rewards"), PieceError, "MeanStdFilter.columns"),
    ],
)
def test_paths_that_lead_nowhere_are_named_with_those_that_exist(make, error, words):
    with pytest.raises(error, match=words):
        make().observation_space  # noqa: B018


@pytest.mark.parametrize("kind", ["learner", "acting"])
def test_without_a_space_the_error_names_paths_too(kind):
    with pytest.raises(SpaceError, match=r"obs/gray \(6, 5, 1\)[\s\S]*columns='obs/gray'"):
        batches(kind, None, [FrameStacking(num_frames=2)], list(recorded().flush(0)))
