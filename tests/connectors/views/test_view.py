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
from epibatch.core.errors import ColumnError, ConfigError, EpibatchError, SpaceError, UnknownNameError
from epibatch.episodes import SingleAgentEpisode


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


KNOWN = {"camera": BOX}
MISTAKES = [
    (lambda: View("rewards", 1, act=True), ["-1 or less", "comes after it", "leave act=True out"]),
    (lambda: View("actions", 0, act=True), ["-1 or less", "still to be taken", "train batches only"]),
    (lambda: View("obs", "0:1", act=True), ["0 or less", "shift='0:1'"]),
    (lambda: View("obs", "-1:-50"), ["'-1:-50'", 'write shift="-50:-1"']),
    (lambda: View("obs", "last 50"), ['"-50:-1"', "'last 50'"]),
    (lambda: View("obs", []), ["a list of ints", "[]"]),
    (lambda: View("obs", [0.5]), ["[0.5]"]),
    (lambda: View("obs", 1.0), ["an int", "1.0"]),
    (lambda: View("obs", True), ["True"]),
    (lambda: View(3), ["View.column", "a valid string", "3"]),
    (lambda: View("obs", space=3), ["a Gymnasium space"]),
    (lambda: View("obs", fill="zeros"), ["View.fill", "a valid number", "'zeros'"]),
    (lambda: View("obs", fil=0), ["keywords among column, shift", "fil=0", "did you mean 'fill'"]),
    (lambda: View("obs", train=1), ["View.train", "boolean"]),
    (lambda: View("obs", mask="yes"), ["View.mask", "boolean"]),
    (lambda: View("obs", [-1, -2, 2**20 + 1, 3]), ["up to 1,048,576 away", "found:    1048577"]),
    (lambda: View("obs", "0:9999999"), ["found:    '0:9999999'"]),
    (lambda: View("eps_id", -1), ["it never changes", "use shift=0"]),
    (lambda: View("infos", [-1, 0]), ["rows are no arrays", "use one shift"]),
    (lambda: View("infos", mask=True), ["leave mask, per_sequence and agent out"]),
    (lambda: View("infos/x", agent="b"), ["agent='b'", "into the observations"]),
    (lambda: View("obs", agent="b", per_sequence=True), ["either agent or per_sequence"]),
    (lambda: TrajectoryViews(views=["rewards"]), ["a dict of views by name", "View("]),
    (lambda: TrajectoryViews(views={1: View("obs")}), ["names of columns", "1"]),
    (lambda: TrajectoryViews(views={"": View("obs")}), ["names of columns"]),
    (lambda: TrajectoryViews(views={"a": "rewards"}), ["['a']", "a View", '"shift": -1']),
    (lambda: TrajectoryViews(views={"a": {"colum": "rewards"}}), ["'colum'", "did you mean 'column'"]),
    (lambda: TrajectoryViews(views={"a": {"column": "rewards", "shift": 1, "act": True}}), ["-1 or less"]),
    (lambda: TrajectoryViews(views={"rewards": View(shift=0, act=True)}), ["-1 or less"]),
    (lambda: acting(), ["at least one view", 'View("rewards", shift=-1)']),
    (lambda: acting(next=View("actions", 1)), ["batches to act on have", "next", "learner pipeline only"]),
    (lambda: acting(True, seen=View("obs", train=False)), ["train batches", "env-to-m"]),
    (lambda: acting(rewards=View(shift=-1)), ["a column of its own", "'rewards'", "another name"]),
    (lambda: acting(obs=View("rewards", -1)), ["expected: observations"]),
    (lambda: acting(my_infos=View("infos")), ["under their own name", 'View("infos/speed"']),
    (lambda: TrajectoryViews(per_module={"a": {"x": {"column": "obs", "shift": "a"}}}), ["'a'"]),
    (lambda: stacked_space(gym.spaces.Text(3), View("obs", "-1:0")), ["FlattenObservations"]),
    (lambda: stacked_space(gym.spaces.Discrete(3, start=1), View("obs", "-1:0")), ["FlattenObservations"]),
    (lambda: stacked_space(gym.spaces.Dict(KNOWN), View("obs/camra", -1)), ["did you mean 'camera'"]),
    (lambda: stacked_space(BOX, View("obs", "-1:0", fill=0.5)), ["view of the observations", "of uint8 can hold"]),
]


def acting(learner=False, **views):
    piece = TrajectoryViews(views=views, as_learner_connector=learner)
    return EnvToModulePipeline(connectors=[piece])


@pytest.mark.parametrize(("mistake", "texts"), MISTAKES)
def test_what_cannot_be_meant(mistake, texts):
    with pytest.raises(EpibatchError) as raised:
        mistake()
    assert isinstance(raised.value, (ConfigError, SpaceError, UnknownNameError, ColumnError))
    assert all(text in str(raised.value) for text in texts), str(raised.value)
