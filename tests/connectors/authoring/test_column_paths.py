"""Addresses of parts of nested columns."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.connectors.authoring.column_paths import ColumnPath, paths_from
from epibatch.core.errors import ColumnError, PieceError

NEST = {"a": 1, "b": (2, {"c": 3, "d": 4})}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("obs", {"a": 10, "b": (20, {"c": 30, "d": 40})}),
        ("obs/a", {"a": 10, "b": (2, {"c": 3, "d": 4})}),
        ("obs/b", {"a": 1, "b": (20, {"c": 30, "d": 40})}),
        ("obs/b/0", {"a": 1, "b": (20, {"c": 3, "d": 4})}),
        ("obs/b/1/d", {"a": 1, "b": (2, {"c": 3, "d": 40})}),
    ],
)
def test_leaves_at_a_path_change_and_others_stay(name, expected):
    (path,) = paths_from("P", name)
    assert str(path) == name
    assert path.change(NEST, lambda leaf: leaf * 10) == expected
    assert NEST["b"][1]["d"] == 4


def test_spaces_change_alike():
    two, three = gym.spaces.Discrete(2), gym.spaces.Discrete(3)
    space = gym.spaces.Dict(a=two, b=gym.spaces.Tuple([two, two]))
    (path,) = paths_from("P", ["obs/b/1"])
    assert path.change_space(space, lambda _: three) == gym.spaces.Dict(a=two, b=gym.spaces.Tuple([two, three]))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("obs/x", "parts a, b"),
        ("obs/b/7", "parts 0, 1"),
        ("obs/a/x", "one array"),
        ("obs/b/1/cc", "did you mean 'c'"),
    ],
)
def test_what_is_not_there_is_named(name, match):
    (path,) = paths_from("P", name)
    with pytest.raises(ColumnError, match=match):
        path.change(NEST, lambda leaf: leaf)


def test_several_names():
    assert paths_from("P", ["rewards", "obs/a"]) == (ColumnPath("rewards"), ColumnPath("obs", ("a",)))


@pytest.mark.parametrize("columns", [None, "", (), [1], {"a": 1}])
def test_names_that_are_none(columns):
    with pytest.raises(PieceError, match=r"P\.columns"):
        paths_from("P", columns)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("obs", {"a": (1, "A"), "b": ((2, "B"), {"c": (3, None), "d": (4, "D")})}),
        ("obs/b/1", {"a": 1, "b": (2, {"c": (3, None), "d": (4, "D")})}),
        ("obs/b/0", {"a": 1, "b": ((2, "B"), {"c": 3, "d": 4})}),
    ],
)
def test_each_leaf_has_its_space_beside_it(name, expected):
    kinds = {"A": gym.spaces.Discrete(1), "B": gym.spaces.Discrete(2), "D": gym.spaces.Discrete(4)}
    space = gym.spaces.Dict(a=kinds["A"], b=gym.spaces.Tuple([kinds["B"], gym.spaces.Dict(d=kinds["D"])]))
    spelled = {id(own): key for key, own in kinds.items()}
    (path,) = paths_from("P", name)
    if "/" not in name:
        assert path.change_in(NEST, None, lambda leaf, own: own) == {"a": None, "b": (None, {"c": None, "d": None})}
    found = path.change_in(NEST, space, lambda leaf, own: (leaf, spelled.get(id(own))))
    assert found == expected
