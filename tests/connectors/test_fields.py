"""Annotated attributes of a columnar piece as arguments of its constructor, and written constructors beside them."""

from __future__ import annotations

import dataclasses
import inspect
from typing import ClassVar

import pytest

from epibatch.connectors import ColumnarPiece, ConnectorV2
from epibatch.connectors.common import BatchIndividualItems, FrameStacking
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ConfigError, PieceError


class Halved(ColumnarPiece):
    """Has two arguments, and a cache that is none."""

    factor: float
    name: str = "half"
    _cache: dict = dataclasses.field(default_factory=dict)

    def run(self, columns, group):
        return columns


def test_annotated_attributes_are_keywords_of_the_constructor():
    piece = Halved(factor=0.5)
    assert (piece.factor, piece.name, repr(piece)) == (0.5, "half", "Halved(factor=0.5)")
    assert list(inspect.signature(Halved).parameters) == [
        "input_observation_space", "input_action_space", "factor", "name",
    ]  # fmt: skip
    assert piece._cache is not Halved(factor=0.5)._cache
    assert piece != Halved(factor=0.5)  # only pieces that are their parameters are compared by them


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({}, PieceError, "expected: the parameter factor"),
        ({"factor": "x"}, ConfigError, "Halved.factor"),
        ({"factor": 0.5, "nmae": "x"}, PieceError, "did you mean 'name'"),
        ({"factor": 0.5, "_cache": {}}, PieceError, "_cache"),
    ],
)
def test_wrong_arguments_of_fields_are_named(kwargs, error, match):
    with pytest.raises(error, match=match):
        Halved(**kwargs)


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


def test_annotated_attributes_of_a_plain_piece_are_no_arguments():
    class Plain(ConnectorV2):
        size: int
        rows: list = []  # noqa: RUF012

        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            return batch

    assert Plain().rows is Plain.rows
    with pytest.raises(PieceError, match="size"):
        Plain(size=3)


def test_class_variables_may_be_mutable():
    class Table(ColumnarPiece):
        table: ClassVar[dict[str, int]] = {}

        def run(self, columns, group):
            return columns

    assert Table().table is Table.table


def test_retired_names_of_a_base_and_of_a_piece_are_refused():
    class Old:
        takes = ("episodes",)

    with pytest.raises(PieceError, match="takes is now input_layouts"):
        type("New", (Old, ColumnarPiece), {"run": lambda self, columns, group: columns})
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
