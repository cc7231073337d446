from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.core import registry
from epibatch.core.errors import EpibatchError, PieceError, RegistryError, UnknownNameError
from epibatch.core.registry import (
    build_piece,
    piece_to_dict,
    plain_data,
    register,
    spec_problems,
)


class Base(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch

    def __init__(self, input_observation_space=None, input_action_space=None, **kwargs):
        self.swallowed = kwargs

    def get_ctor_args_and_kwargs(self):
        return (), {
            key: value for key, value in vars(self).items() if key != "swallowed" and key[0] != "_"
        } | self.swallowed


class Scale(Base):
    """Keywords of its own, the rest passed on."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, factor, offset=0.0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        if factor == 0:
            raise ValueError("factor is 0")
        self.factor = factor
        self.offset = offset


class ScaleMore(Scale):
    def __init__(self, *args, more=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.more = more


class Positional(Base):
    def __init__(self, depth=1, width=2):
        super().__init__()
        self.args = (depth, width)

    def get_ctor_args_and_kwargs(self):
        return self.args, {}


class OwnData(Base):
    def to_dict(self):
        return {"own": 1}


@pytest.fixture(autouse=True)
def pieces():
    before = dict(registry._registered)
    for cls in (Scale, ScaleMore, Positional, OwnData):
        register(cls)
    yield
    registry._registered.clear()
    registry._registered.update(before)


def test_build_from_name_and_from_mapping():
    assert build_piece("positional").args == (1, 2)
    piece = build_piece({"piece": "scale_more", "factor": 2, "more": 5})
    assert (piece.factor, piece.offset, piece.more) == (2, 0.0, 5)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"piece": "scale", "facto": 2}, PieceError, r"no argument 'facto'\. did you mean 'factor'\? Known: .*offset"),
        ({"piece": "scale", "facto": 2}, PieceError, "scale needs the argument 'factor'"),
        ({"piece": "scale"}, PieceError, "piece 'scale'\n.*\n.*needs the argument 'factor'"),
        ({"piece": "scale", "factor": 1, "input_action_space": 1}, PieceError, "no argument 'input_action_space'"),
        ({"piece": "scale", "factor": 0}, PieceError, "ValueError: factor is 0"),
        ({"piece": "scal", "factor": 0}, UnknownNameError, "did you mean 'scale'"),
        ({"factor": 0}, PieceError, "the key 'piece'.*found the keys: factor"),
        ({}, PieceError, "found the keys: nothing"),
        (3, PieceError, "found int 3"),
        ({"piece": 3}, PieceError, "expected: a string"),
        ({"piece": "a.b"}, RegistryError, "--allow-imports"),
    ],
)
def test_wrong_specs(spec, error, message):
    with pytest.raises(error, match=message):
        build_piece(spec)


def test_error_of_the_piece_itself_is_kept():
    class Refuses(Base):
        def __init__(self, *, x=1):
            raise RegistryError("refused")

    register("refuses")(Refuses)
    with pytest.raises(RegistryError, match="piece 'refuses', built from data\nrefused"):
        build_piece("refuses")


def test_all_problems_of_one_spec_are_found():
    problems = spec_problems({"piece": "scale", "facto": 1, "ofset": 2})
    assert [key for key, _ in problems] == ["facto", "ofset", "factor"]
    assert spec_problems({"piece": "scale", "factor": 1}) == []


def test_import_path_in_a_spec():
    spec = {"piece": f"{__name__}:OwnData"}
    assert "--allow-imports" in spec_problems(spec)[0][1]
    assert spec_problems(spec, allow_imports=True) == []


@pytest.mark.parametrize(
    ("piece", "data"),
    [
        (lambda: Scale(factor=2), {"piece": "scale", "factor": 2, "offset": 0.0}),
        (lambda: Scale(factor=np.float32(0.5)), {"piece": "scale", "factor": 0.5, "offset": 0.0}),
        (lambda: Scale(factor=(1, 2)), {"piece": "scale", "factor": [1, 2], "offset": 0.0}),
        (lambda: Positional(3, 4), {"piece": "positional", "depth": 3, "width": 4}),
        (lambda: OwnData(), {"piece": "own_data", "own": 1}),
    ],
)
def test_piece_to_dict(piece, data):
    assert piece_to_dict(piece()) == data


def test_round_trip():
    piece = build_piece(piece_to_dict(ScaleMore(factor=3, offset=1.5, more=7)))
    assert (piece.factor, piece.offset, piece.more) == (3, 1.5, 7)


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (lambda: Scale(factor=lambda x: x), "piece Scale, argument 'factor'\n.*\n.*a function"),
        (lambda: Scale(factor=1, offset=np.zeros(2)), "argument 'offset'\n.*\n.*a ndarray"),
        (lambda: Scale(factor={1: 2}), "keys that are not strings"),
        (lambda: Scale(factor=1, extra=2), "argument 'extra'\n.*\n.*no constructor names"),
    ],
)
def test_pieces_that_are_no_data(piece, message):
    with pytest.raises(PieceError, match=message):
        piece_to_dict(piece())


def test_spaces_are_left_to_the_pipeline():
    class Spaces(Base):
        def get_ctor_args_and_kwargs(self):
            return (), {"input_observation_space": object(), "input_action_space": object()}

    register("spaces")(Spaces)
    assert piece_to_dict(Spaces()) == {"piece": "spaces"}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        (True, True),
        (np.bool_(True), True),
        (np.int64(3), 3),
        ((1, [2]), [1, [2]]),
        ({"a": (1,)}, {"a": [1]}),
    ],
)
def test_plain_data(value, data):
    found = plain_data(value)
    assert found == data
    assert type(found) is type(data)


@pytest.mark.parametrize("value", [object(), {1, 2}, Path("x"), b"x", [lambda: 1]])
def test_other_than_plain_data(value):
    with pytest.raises(TypeError):
        plain_data(value)
    assert not issubclass(TypeError, EpibatchError)
