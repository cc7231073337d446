"""What a piece's class says: arguments of its constructor, and declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2, Piece
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import ConfigError, PieceError, PipelineError
from epibatch.core.registry import build_piece, register, snake_case, spec_problems, unregister

if TYPE_CHECKING:
    from somewhere import Nowhere


class Typed(ConnectorV2):
    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        depth: int = 1,
        scale: float = 1.0,
        on: bool = False,
        name: str | None = None,
        mode: Literal["a", "b"] = "a",
        several: list[int] | None = None,
        anything: Any = None,
        untyped=None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class TypedMore(Typed):
    def __init__(self, *args, more=1, **kwargs):
        super().__init__(*args, **kwargs)


class Unresolved(Typed):
    def __init__(self, input_observation_space=None, *, where: Nowhere = None, depth: int = 1) -> None:
        super().__init__(input_observation_space)


class Positional(Typed):
    def __init__(self, depth=1, width=2):
        super().__init__()


@pytest.fixture(autouse=True)
def registered():
    for cls in (Typed, TypedMore, Unresolved, Positional):
        register(cls)
    yield
    for cls in (Typed, TypedMore, Unresolved, Positional):
        unregister(snake_case(cls.__name__))


def problems_of(cls, **values):
    return dict(spec_problems({"piece": snake_case(cls.__name__), **values}))


@pytest.mark.parametrize(
    ("cls", "known"),
    [
        (Typed, "anything, depth, mode, name, on, scale, several, untyped"),
        (TypedMore, "anything, depth, mode, more, name, on, scale, several, untyped"),
        (Positional, "depth, width"),
    ],
)
def test_keywords_are_collected_as_far_as_they_are_passed_on(cls, known):
    assert problems_of(cls, strange=1)["strange"].endswith(f"no argument 'strange'. Known: {known}")


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"depth": 4, "scale": 0.5, "on": True, "name": "x", "mode": "b"}, {}),
        ({"depth": np.int64(4), "scale": np.float32(0.5), "on": np.True_, "name": None}, {}),
        ({"several": "ab", "anything": object(), "untyped": 3}, {}),
        ({"depth": True}, {"depth": "expected a valid integer, found bool True"}),
        (
            {"depth": "4", "on": "no"},
            {"depth": "expected a valid integer, found str '4'", "on": "expected a valid boolean, found str 'no'"},
        ),
        ({"scale": "1e-3"}, {"scale": "expected a valid number, found str '1e-3'"}),
        ({"name": 3}, {"name": "expected a valid string, found int 3"}),
        ({"mode": "c"}, {"mode": "expected 'a' or 'b', found str 'c'"}),
    ],
)
@pytest.mark.parametrize("cls", [Typed, TypedMore])
def test_values_of_other_types(cls, values, wrong):
    found = problems_of(cls, **values)
    assert {name: text.replace(" or None", "") for name, text in found.items()} == wrong  # as pydantic's release has it
    if wrong:
        with pytest.raises(PieceError, match="expected"):
            build_piece({"piece": snake_case(cls.__name__), **values})
    cls(**values)  # called in Python, annotations of others are taken as notes


@pytest.mark.parametrize(
    ("cls", "keywords"),
    [
        (FrameStacking, {"num_frames": True}),
        (GeneralAdvantageEstimation, {"gamma": "0.9"}),
    ],
)
def test_built_in_pieces_are_checked_in_python_too(cls, keywords):
    (name,) = keywords
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{name}\n  expected: a valid"):
        cls(**keywords)


class Columnar(Piece):
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
        ({"writes": "own"}, ["attribute writes", "str 'own'"]),
        ({"input_layouts": "episodes"}, ["attribute input_layouts", 'input_layouts = ("episodes",)']),
        ({"input_layouts": ("episode",)}, ["attribute input_layouts", "did you mean 'episodes'"]),
        ({"output_layout": "tensor"}, ["attribute output_layout", "did you mean 'tensors'"]),
        ({"pipelines": ("lerner",)}, ["attribute pipelines", "did you mean 'learner'"]),
        ({"lookback": -1}, ["attribute lookback", "0 or more", "int -1"]),
        ({"lookback": True}, ["attribute lookback"]),
        ({"mutates_episodes": "no"}, ["attribute mutates_episodes", "True or False"]),
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
        ("settles", "follows from reads"),
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


def test_declarations_that_can_be_meant():
    own = piece(reads=(), writes=["own"], input_layouts=("episodes", "arrays"), output_layout="tensors")
    other = piece(lookback=np.int64(3), pipelines=("learner", "env_to_module"), mutates_episodes=True)
    assert len(LearnerConnectorPipeline(connectors=[own])) == len(LearnerConnectorPipeline(connectors=[other])) == 1
    assert problems_of(Unresolved, where=1, depth="x") == problems_of(Positional, depth="x") == {}


def test_outputs_that_episodes_hold_can_be_read():
    names = ("action_logp", "action_dist_inputs", "weights_seq_no")
    own = type("Own", (Columnar,), {"reads": names})
    columns = AddColumnsFromEpisodesToTrainBatch()
    assert len(LearnerConnectorPipeline(connectors=[columns, own()])) == 2
    with pytest.raises(PipelineError, match="action_logp"):
        LearnerConnectorPipeline(connectors=[own()])
