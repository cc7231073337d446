from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms.pipelines import PIPELINES
from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.errors import PieceError, PipelineError
from epibatch.core.piece_declarations import PIPELINE_NAMES, check_declarations


class Columnar(ColumnarPiece):
    def run(self, columns, group):
        return columns


def piece(**declared):
    def call(self, *, rl_module, batch, episodes, **kwargs):
        return batch

    return type("Own", (ConnectorV2,), {"__call__": call, **declared})()


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"reads": "obs"}, ["attribute reads", 'reads = ("obs",)']),
        ({"reads": (1,)}, ["attribute reads", "a tuple of names"]),
        ({"writes": "own"}, ["attribute writes", "str 'own'"]),
        ({"writes": None}, ["attribute writes", "NoneType"]),
        ({"input_layouts": "episodes"}, ["attribute input_layouts", 'input_layouts = ("episodes",)']),
        ({"input_layouts": ("episode",)}, ["attribute input_layouts", "did you mean 'episodes'"]),
        ({"output_layout": "tensor"}, ["attribute output_layout", "did you mean 'tensors'"]),
        ({"pipelines": "learner"}, ["attribute pipelines", 'pipelines = ("learner",)']),
        ({"pipelines": ("lerner",)}, ["attribute pipelines", "did you mean 'learner'"]),
        ({"lookback": -1}, ["attribute lookback", "0 or more", "int -1"]),
        ({"lookback": "3"}, ["attribute lookback", "str '3'"]),
        ({"lookback": 1.5}, ["attribute lookback"]),
        ({"lookback": None}, ["attribute lookback"]),
        ({"lookback": True}, ["attribute lookback"]),
        ({"mutates_episodes": "no"}, ["attribute mutates_episodes", "True or False"]),
        ({"training_only": 1}, ["attribute training_only"]),
    ],
)
def test_declarations_that_cannot_be_meant(declared, words):
    with pytest.raises(PieceError) as caught:
        LearnerConnectorPipeline(connectors=[piece(**declared)])
    message = str(caught.value)
    assert message.startswith("LearnerConnectorPipeline, piece 0 (Own), its ")
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("takes", "is now input_layouts"),
        ("gives", "is now output_layout"),
        ("drops", "is now removes"),
        ("replaces", "is now removes"),
        ("settles", "follows from reads"),
        ("columnar", "follows from the class"),
        ("space_by_space", "is not needed"),
        ("one_sided", "is now training_only"),
    ],
)
def test_names_of_before(name, word):
    with pytest.raises(PieceError, match=rf"Own\.{name}[\s\S]*{name} {word}"):
        piece(**{name: ()})


@pytest.mark.parametrize(
    ("name", "word"),
    [("read", "write reads"), ("write", "write writes"), ("take", "takes is now input_layouts"), ("remove", "removes")],
)
def test_a_columnar_piece_cannot_misspell_what_it_declares(name, word):
    with pytest.raises(PieceError, match=rf"Own\.{name}[\s\S]*{word}"):
        type("Own", (Columnar,), {name: ("obs",)})
    type("Own", (Columnar,), {name: lambda self: None, "rewards": ("a",), "columns": "obs"})


def test_outputs_that_episodes_hold_can_be_read():
    names = ("action_logp", "action_dist_inputs", "weights_seq_no")
    own = type("Own", (Columnar,), {"reads": names})
    columns = AddColumnsFromEpisodesToTrainBatch()
    assert len(LearnerConnectorPipeline(connectors=[columns, own()])) == 2
    with pytest.raises(PipelineError, match="action_logp"):
        LearnerConnectorPipeline(connectors=[own()])


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"reads": (), "writes": ["own"], "input_layouts": ("episodes", "arrays"), "output_layout": "tensors"},
        {"lookback": np.int64(3), "pipelines": ("learner", "env_to_module"), "mutates_episodes": True},
    ],
)
def test_declarations_that_can(declared):
    check_declarations(piece(**declared), "here")


def test_pipelines_are_those_of_a_config():
    assert set(PIPELINE_NAMES) == set(PIPELINES)
