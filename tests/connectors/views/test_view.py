"""What a view says, and what it refuses."""

from __future__ import annotations

import copy
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.views import View
from epibatch.connectors.views.view import as_views
from epibatch.core.errors import ConfigError


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
    assert as_views({column: View(shift=shift)}, "here")[column].act is acts


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
        ({"column": 3}, ["the name of a column", "3"]),
        ({"column": "obs", "space": 3}, ["a Gymnasium space"]),
        ({"column": "obs", "fill": "zeros"}, ["a number", "'zeros'", "leave it out for zeros"]),
        ({"column": "obs", "fil": 0}, ["keywords among column, shift", "fil=0", "did you mean 'fill'"]),
        ({"column": "obs", "train": 1}, ["True or False", "train=True"]),
        ({"column": "obs", "mask": "yes"}, ["mask=True or mask=False"]),
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
        as_views(views, "MyPiece.views")
    assert all(text in str(raised.value) for text in texts), str(raised.value)


@pytest.mark.parametrize(
    "space", [gym.spaces.Dict(u=gym.spaces.Box(-1, 1, (2,))), gym.spaces.Tuple([gym.spaces.Discrete(2)])]
)
def test_a_nested_space_is_taken_as_it_is_or_as_its_dict(space):
    view = View("out", -1, space=space)
    assert view.space == space
    assert as_views({"out": view.to_dict()}, "views")["out"] == view
