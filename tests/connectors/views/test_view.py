"""What a view says and refuses, the spaces of what it shows, and views that are added to pipelines."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors.common import AddTimeDimToBatchAndZeroPad
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.views import TrajectoryViews, View, add_view
from epibatch.core.errors import ConfigError, SpaceError, UnknownNameError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import played


def shown(views):
    """The views of a piece, by name."""
    return TrajectoryViews(views=views, as_learner_connector=True).views


@pytest.mark.parametrize(
    ("shift", "shifts", "single", "lookback"),
    [
        (0, (0,), True, 0),
        (-3, (-3,), True, 3),
        (np.int64(2), (2,), True, 0),
        ([-1, -4], (-1, -4), False, 4),
        (np.array([-2, 1]), (-2, 1), False, 2),
        ("-50:-1", tuple(range(-50, 0)), False, 50),
        (" -1 : 1 ", (-1, 0, 1), False, 1),
        ("3:3", (3,), False, 0),
    ],
)
def test_shifts(shift, shifts, single, lookback):
    view = View("obs", shift)
    assert (view.shifts, view.is_single, view.lookback) == (shifts, single, lookback)


@pytest.mark.parametrize(
    ("column", "shift", "acts"),
    [
        ("obs", 0, True),
        ("obs/camera", "-2:0", True),
        ("obs", 1, False),
        ("obs", "-2:1", False),
        ("t", 0, True),
        ("infos/speed", 0, True),
        ("rewards", -1, True),
        ("rewards", 0, False),
        ("actions", [-1, 0], False),
        ("logits", "-9:-1", True),
        ("terminateds", 0, False),
    ],
)
def test_it_is_shown_while_acting_if_it_is_known_by_then(column, shift, acts):
    assert View(column, shift).act is acts
    assert View(column, shift, act=False).act is False
    if column not in ("rewards", "actions"):  # names that a view cannot have
        assert shown({column: View(shift=shift)})[column].act is acts


@pytest.mark.parametrize("view", [View("obs", [-1, 0], fill=2.0), View("actions", "1:2", train=False), View("t")])
def test_its_dict_makes_it_again_and_so_do_copies(view):
    assert View(**view.to_dict()) == copy.deepcopy(view) == pickle.loads(pickle.dumps(view)) == view
    assert hash(view) == hash(copy.copy(view))


def test_its_dict_has_what_differs_from_the_defaults():
    assert View("rewards", -1).to_dict() == {"column": "rewards", "shift": -1}
    assert View("obs", (-1, 0), act=False, agent="*").to_dict() == {
        "column": "obs",
        "shift": [-1, 0],
        "act": False,
        "agent": "*",
    }
    view = View("obs", -1, space=gym.spaces.Discrete(2))
    assert View(**json.loads(json.dumps(view.to_dict()))) == view


@pytest.mark.parametrize(
    ("keywords", "texts"),
    [
        ({"column": "rewards", "shift": 1, "act": True}, ["-1 or less", "comes after it", "leave act=True out"]),
        ({"column": "actions", "shift": 0, "act": True}, ["-1 or less", "still to be taken", "train batches only"]),
        ({"column": "obs", "shift": "0:1", "act": True}, ["0 or less", "shift='0:1'"]),
        ({"column": "obs", "shift": "-1:-50"}, ["'-1:-50'", 'write shift="-50:-1"']),
        ({"column": "obs", "shift": "last 50"}, ['"-50:-1"', "'last 50'"]),
        ({"column": "obs", "shift": []}, ["a list of ints", "[]"]),
        ({"column": "obs", "shift": [0.5]}, ["[0.5]"]),
        ({"column": "obs", "shift": 1.0}, ["an int", "1.0"]),
        ({"column": "obs", "shift": True}, ["True"]),
        ({"column": 3}, ["View.column", "a valid string", "3"]),
        ({"column": "obs", "space": 3}, ["a Gymnasium space"]),
        ({"column": "obs", "fill": "zeros"}, ["View.fill", "a valid number", "'zeros'"]),
        ({"column": "obs", "fil": 0}, ["keywords among column, shift", "fil=0", "did you mean 'fill'"]),
        ({"column": "obs", "train": 1}, ["View.train", "boolean"]),
        ({"column": "obs", "mask": "yes"}, ["View.mask", "boolean"]),
        ({"column": "obs", "shift": [-1, -2, 2**20 + 1, 3]}, ["up to 1,048,576 away", "found:    1048577"]),
        ({"column": "obs", "shift": "0:9999999"}, ["found:    '0:9999999'"]),
        ({"column": "eps_id", "shift": -1}, ["it never changes", "use shift=0"]),
        ({"column": "infos", "shift": [-1, 0]}, ["rows are no arrays", "use one shift"]),
        ({"column": "infos", "mask": True}, ["leave mask, per_sequence and agent out"]),
        ({"column": "infos/x", "agent": "b"}, ["agent='b'", "into the observations"]),
        ({"column": "obs", "agent": "b", "per_sequence": True}, ["either agent or per_sequence"]),
    ],
)
def test_what_cannot_be_meant(keywords, texts):
    with pytest.raises(ConfigError) as raised:
        View(**keywords)
    assert all(text in str(raised.value) for text in texts), str(raised.value)


@pytest.mark.parametrize(
    ("views", "texts"),
    [
        (["rewards"], ["a dict of views by name", "View("]),
        ({1: View("obs")}, ["names of columns", "1"]),
        ({"": View("obs")}, ["names of columns"]),
        ({"a": "rewards"}, ["['a']", "a View", '"shift": -1']),
        ({"a": {"colum": "rewards"}}, ["'colum'", "did you mean 'column'"]),
        ({"a": {"column": "rewards", "shift": 1, "act": True}}, ["-1 or less"]),
        ({"rewards": View(shift=0, act=True)}, ["-1 or less"]),
    ],
)
def test_what_is_no_dict_of_views(views, texts):
    with pytest.raises(ConfigError) as raised:
        TrajectoryViews(views=views)
    assert all(text in str(raised.value) for text in texts), str(raised.value)


@pytest.mark.parametrize(
    "space", [gym.spaces.Dict(u=gym.spaces.Box(-1, 1, (2,))), gym.spaces.Tuple([gym.spaces.Discrete(2)])]
)
def test_a_nested_space_is_taken_as_it_is_or_as_its_dict(space):
    view = View("out", -1, space=space)
    assert view.space == space
    assert shown({"out": view.to_dict()})["out"] == view


def pipelines() -> list[Any]:
    return [
        kind(connectors=[AddObservationsFromEpisodesToBatch(**side), AddTimeDimToBatchAndZeroPad(**side)])
        for kind, side in ((EnvToModulePipeline, {}), (LearnerConnectorPipeline, {"as_learner_connector": True}))
    ]


def declare(pipeline: Any, views: Any) -> None:
    """Let a config with these views declare them."""
    PPOConfig().rl_module(view_requirements=views).update_views(pipeline)


def test_the_next_batch_has_it() -> None:
    episode = SingleAgentEpisode(
        id_="e", observations=[0, 1, 2], actions=[5, 6], rewards=[0.5, 1.5], len_lookback_buffer=0
    )
    acting, learner = pipelines()
    for pipeline in (acting, learner):
        assert list(pipeline(episodes=[episode])) == ["obs"]
        add_view(pipeline, "prev", View("rewards", -1))
        add_view(pipeline, "next", {"column": "actions", "shift": 1})
    assert acting(episodes=[episode])["prev"]["e",] == [1.5]
    assert list(acting(episodes=[episode])) == ["prev", "obs"]
    found = learner(episodes=[episode])
    assert found["prev"]["e",][0].tolist() == [0, 0.5] and found["next"]["e",][0].tolist() == [6, 0]
    assert learner.names == [
        "trajectory_views",
        "trajectory_views_1",
        "add_observations_from_episodes_to_batch",
        "add_time_dim_to_batch_and_zero_pad",
    ]
    assert acting.lookback_needed == learner.lookback_needed == 1


def test_those_of_sequences_stand_behind_the_time_axis() -> None:
    for pipeline in pipelines():
        add_view(pipeline, "memory", View("state_out", "-3:-1", per_sequence=True))
        add_view(pipeline, "prev", View("rewards", -1))
        names = pipeline.names
        assert names.index("add_time_dim_to_batch_and_zero_pad") == 2 and pipeline[0].views.keys() == {"prev"}
        assert pipeline[3].views.keys() == {"memory"}
        for name in ("other", "another"):  # a config's views take the place of those that it declared before
            declare(pipeline, {name: View("state_out", -1, per_sequence=True)})
        assert [piece.views.keys() for piece in pipeline[TrajectoryViews]] == [{"prev"}, {"another"}, {"memory"}]


def test_a_name_that_is_taken_and_a_pipeline_that_stays_as_it_was() -> None:
    for pipeline in pipelines():
        add_view(pipeline, "prev", View("rewards", -1))
        with pytest.raises(ConfigError, match="which the pipeline has already"):
            add_view(pipeline, "prev", View("rewards", -2))
        with pytest.raises(ConfigError, match="a column of its own"):
            add_view(pipeline, "rewards", View("rewards", -2))
        assert pipeline.names.count("trajectory_views") == 1 and list(pipeline[0].views) == ["prev"]


def test_a_piece_is_data() -> None:
    views = {
        "prev": View("rewards", -1),
        "last": View("actions", [-1, -2], mask=True),
        "logits": View("logits", -1, space=gym.spaces.Discrete(2)),
    }
    piece = TrajectoryViews(views=views, per_module={"a": {"x": View("obs", -1)}}, as_learner_connector=True)
    spec = piece_to_dict(piece)
    again = build_piece(json.loads(json.dumps(spec)))
    assert again.views == piece.views and again.per_module == piece.per_module and again.as_learner_connector
    assert piece_to_dict(again) == spec


def test_views_of_modules_are_replaced_in_a_clone_too() -> None:
    _, learner = pipelines()
    declare(learner, {"prev": View("rewards", -1)})
    clone = learner.clone()
    declare(clone, {"prev": View("rewards", -2)})
    assert [piece.views["prev"].shift for piece in clone[TrajectoryViews]] == [-2]


BOX = gym.spaces.Box(1, 255, (4, 3), np.uint8)


def stacked_space(space, view):
    return TrajectoryViews(space, views={"obs": view}).observation_space


def test_several_shifts_put_an_axis_in_front():
    space = gym.spaces.Dict(image=BOX, some=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)]))
    stacked = stacked_space(space, View("obs", "-1:0"))
    assert stacked["image"] == gym.spaces.Box(0, 255, (2, 4, 3), np.uint8)
    assert stacked["some"][0] == gym.spaces.MultiDiscrete([3, 3])
    assert stacked["some"][1] == gym.spaces.MultiBinary([2, 2])
    nvec = gym.spaces.MultiDiscrete([2, 3])
    assert stacked_space(nvec, View("obs", "-1:0")) == gym.spaces.MultiDiscrete([[2, 3], [2, 3]])


def test_one_shift_leaves_the_shape_and_takes_in_the_fill_value():
    assert stacked_space(BOX, View("obs", -1, fill=0)) == gym.spaces.Box(0, 255, (4, 3), np.uint8)
    assert stacked_space(gym.spaces.Discrete(3), View("obs", -1)) == gym.spaces.Discrete(3)
    assert stacked_space(gym.spaces.Dict(a=BOX, b=BOX), View("obs/a", -1)).shape == (4, 3)
    assert stacked_space(gym.spaces.Tuple([BOX, gym.spaces.Discrete(2)]), View("obs/1", -1)).n == 2


@pytest.mark.parametrize("shift", [-1, "-2:0", [0, -3]])
def test_rows_are_in_the_space(shift):

    rng = np.random.default_rng(0)
    space = gym.spaces.Dict(image=BOX, kind=gym.spaces.MultiDiscrete([2, 3]))
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    episode = played(rows, rng.random(3))
    piece = TrajectoryViews(space, gym.spaces.Discrete(2), views={"obs": View(shift=shift)}, as_learner_connector=True)
    found = next(iter(piece(batch={}, episodes=[episode])["obs"].values()))[0]
    own = get_base_struct_from_space(piece.observation_space)
    for key, leaf in found.items():
        assert all(own[key].contains(row.astype(own[key].dtype)) for row in leaf)


@pytest.mark.parametrize("space", [gym.spaces.Text(3), gym.spaces.Discrete(3, start=1)])
def test_spaces_without_stacks(space):
    with pytest.raises(SpaceError, match="FlattenObservations"):
        stacked_space(space, View("obs", "-1:0"))


def test_a_part_that_is_not_there():
    with pytest.raises(UnknownNameError, match="did you mean 'camera'"):
        stacked_space(gym.spaces.Dict(camera=BOX), View("obs/camra", -1))
