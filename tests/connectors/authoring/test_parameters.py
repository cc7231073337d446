"""Annotated attributes as parameters: constructor, checks, repr, equality and data form."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from typing import ClassVar, Literal

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import ConnectorV2, Piece
from epibatch.connectors.authoring import ParameterPiece
from epibatch.connectors.common import BatchIndividualItems, FrameStacking
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ConfigError, PieceError
from epibatch.core.registry import build_piece, piece_to_dict, register, unregister


class Base(ParameterPiece):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Band(Base):
    """Keeps its parameters."""

    low: float
    high: float = 1.0
    mode: Literal["clip", "wrap"] = "clip"
    names: list = dataclasses.field(default_factory=list)
    kind: ClassVar[str] = "no parameter"
    calls = 0
    _cache: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.low > self.high:
            raise ConfigError(f"low {self.low} above high {self.high}")
        self.width = self.high - self.low


class Wider(Band):
    margin: int = 2


class Halved(Piece):
    """Has two arguments, and a cache that is none."""

    factor: float
    name: str = "half"
    _cache: dict = dataclasses.field(default_factory=dict)

    def run(self, columns, group):
        return columns


class Weighted(Base):
    weights: object


def test_annotated_attributes_are_keywords_of_the_constructor():
    piece = Band(low=0.25, names=["a"])
    assert (piece.low, piece.high, piece.mode, piece.names, piece.width) == (0.25, 1.0, "clip", ["a"], 0.75)
    assert Band(low=0).names is not Band(low=0).names
    assert repr(Wider(low=0)) == "Wider(low=0, high=1.0, mode='clip', names=[], margin=2)"
    piece = Halved(factor=0.5)
    assert (piece.factor, piece.name, repr(piece)) == (0.5, "half", "Halved(factor=0.5)")
    assert piece._cache is not Halved(factor=0.5)._cache
    spaces = ["input_observation_space", "input_action_space"]
    assert list(inspect.signature(Halved).parameters) == [*spaces, "factor", "name"]


def test_spaces_come_first():
    space = gym.spaces.Discrete(3)
    assert Band(space, low=0).input_observation_space is space
    assert Band(None, space, low=0).input_action_space is space
    with pytest.raises(PieceError, match=r"give parameters by name: FrameStacking\(num_frames=3\)"):
        FrameStacking(3)
    with pytest.raises(PieceError, match=r"give parameters by name: Band\(low=0.5\)"):
        Band(0.5)


def test_equality_goes_by_class_and_parameters_and_hashes_by_identity():
    assert Band(low=0) == Band(low=0.0) == pickle.loads(pickle.dumps(Band(low=0)))
    assert Band(low=0) != Band(low=0, high=2.0)
    assert Band(low=0) != Wider(low=0)
    assert Halved(factor=0.5) == Halved(factor=0.5) != Halved(factor=0.5, name="other")
    assert Weighted(weights=np.ones(2)) == Weighted(weights=np.ones(2)) != Weighted(weights=np.zeros(2))
    for piece, other in ((Band(low=0), Band(low=0)), (Halved(factor=0), Halved(factor=0))):
        pieces = {piece, other}
        piece.low = 0.5
        assert len(pieces) == 2 and piece in pieces
    assert pickle.loads(pickle.dumps(Band(low=0.5))).width == 0.5


class Forgotten(Band):
    """Has a number that is no parameter."""

    gain = 0.1


@pytest.mark.parametrize(
    ("cls", "kwargs", "error", "match"),
    [
        (Band, {}, PieceError, "expected: the parameter low"),
        (Band, {"low": 0, "hihg": 2}, PieceError, "did you mean 'high'"),
        (Band, {"low": "0"}, ConfigError, "Band.low"),
        (Band, {"low": 0, "mode": "cut"}, ConfigError, "'clip' or 'wrap'"),
        (Band, {"low": 2}, ConfigError, "low 2 above high 1.0"),
        (Band, {"low": 0, "kind": "x"}, PieceError, "kind[\\s\\S]*Known: "),
        (Band, {"low": 0, "_cache": {}}, PieceError, "_cache"),
        (Forgotten, {"low": 0, "gain": 2}, PieceError, r"annotate it .*makes it a parameter: gain: float = 0\.1"),
        (Halved, {}, PieceError, "expected: the parameter factor"),
        (Halved, {"factor": "x"}, ConfigError, "Halved.factor"),
        (Halved, {"factor": 0.5, "nmae": "x"}, PieceError, "did you mean 'name'"),
        (Halved, {"factor": 0.5, "_cache": {}}, PieceError, "_cache"),
    ],
)
def test_wrong_parameters_are_named(cls, kwargs, error, match):
    with pytest.raises(error, match=match):
        cls(**kwargs)


@pytest.mark.parametrize(
    ("default", "match"),
    [
        ([], r"(?s)Shared.weights.*default_factory=list\), or a tuple, \(\)"),
        ({"a": 1}, r"default_factory=lambda: \{'a': 1\}\)"),
        (np.ones(2), r"default_factory=lambda: array\(\[1\., 1\.\]\)"),
    ],
)
def test_a_default_that_all_pieces_would_share_is_refused(default, match):
    with pytest.raises(PieceError, match=match):
        type("Shared", (Band,), {"weights": default, "__annotations__": {"weights": object}})


def test_class_variables_and_attributes_of_plain_pieces_are_no_parameters():
    class Table(Halved):
        table: ClassVar[dict[str, int]] = {}

    class Plain(ConnectorV2):
        size: int
        rows: list = []  # noqa: RUF012

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

    assert Table(factor=1).table is Table.table
    assert Plain().rows is Plain.rows
    with pytest.raises(PieceError, match="size"):
        Plain(size=3)


def test_data_form_holds_what_is_not_the_default():
    register("band_of_test")(Band)
    try:
        assert piece_to_dict(Band(low=0.5)) == {"piece": "band_of_test", "low": 0.5}
        piece = Band(low=0.5, names=["x"], mode="wrap")
        piece.high = 3.0  # what it is now
        data = json.loads(json.dumps(piece_to_dict(piece)))
        assert data == {"piece": "band_of_test", "low": 0.5, "high": 3.0, "mode": "wrap", "names": ["x"]}
        assert build_piece(data) == piece
    finally:
        unregister("band_of_test")


# -- written constructors --------------------------------------------------------------------------------


class Written(Base):
    """Writes its constructor."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, factor=1.0):
        super().__init__(input_observation_space, input_action_space)
        self.factor = factor


class WrittenBand(Band):
    def __init__(self, *, middle=0.5):
        super().__init__(low=middle - 1, high=middle + 1)


class Heir(Written):
    """Changes something else."""


@pytest.mark.parametrize(
    ("made", "other", "attribute", "text"),
    [
        (Written(factor=3.0), Written(factor=2.0), "factor", "Written(factor=3.0)"),
        (Heir(factor=3.0), Heir(factor=2.0), "factor", "Heir(factor=3.0)"),
        (WrittenBand(middle=4.0), WrittenBand(middle=5.0), "high", "WrittenBand(middle=4.0)"),
    ],
)
def test_a_constructor_of_its_own_keeps_its_arguments(made, other, attribute, text):
    assert repr(made) == text
    assert made == type(made)(**made.get_ctor_args_and_kwargs()[1])
    assert made != other
    assert getattr(made.clone(), attribute) == getattr(made, attribute)


class Longer(FrameStacking):
    """Writes its constructor as RLlib's pieces do; its annotated attribute is no argument."""

    note: int

    def __init__(self, input_observation_space=None, input_action_space=None, *, longer_by=1, **kwargs):
        super().__init__(input_observation_space, input_action_space, num_frames=1 + longer_by, **kwargs)


class LongerHeir(Longer):
    """Has the constructor of the class above."""


class Counting:
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counted = 0


class CountingFrames(Counting, FrameStacking):
    """Has the constructor of a class that is no piece."""


def test_a_written_constructor_of_a_subclass_is_the_one_that_runs():
    for cls in (Longer, LongerHeir):
        piece = cls(longer_by=2, axis=-1)
        assert (piece.num_frames, piece.axis, piece.lookback) == (3, -1, 2)
        assert piece.clone().num_frames == 3
    assert CountingFrames(num_frames=4).counted == 0
    with pytest.raises(TypeError, match="unexpected keyword argument 'nmu_frames'"):
        Longer(nmu_frames=4)


def test_retired_names_of_a_base_and_of_a_piece_are_refused():
    with pytest.raises(PieceError, match="takes is now input_layouts"):
        type("New", (type("Old", (), {"takes": ("episodes",)}), Halved), {})
    piece = FrameStacking(num_frames=2)
    piece.replaces = ("obs",)
    with pytest.raises(PieceError, match="replaces is now removes"):
        EnvToModulePipeline(connectors=[piece])


@pytest.mark.parametrize(
    "kinds", [(EnvToModulePipeline, LearnerConnectorPipeline), (LearnerConnectorPipeline, EnvToModulePipeline)]
)
def test_a_shared_piece_keeps_the_side_of_its_first_pipeline(kinds):
    piece = FrameStacking(num_frames=2).share()
    first = kinds[0](connectors=[piece, BatchIndividualItems()])
    with pytest.raises(PieceError, match="a pipeline of the other side shares"):
        kinds[1](connectors=[piece, BatchIndividualItems()])
    assert first.connectors[0] is piece
