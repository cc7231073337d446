"""Whether a row fits its space."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from epibatch.core.errors import SpaceError
from epibatch.core.spaces import check_row, encoding_advice

BOX = spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([BOX, spaces.MultiBinary(2)]))


@pytest.mark.parametrize(
    ("space", "row"),
    [
        (BOX, np.zeros(2, np.float32)),
        (BOX, np.zeros(2, np.float64)),
        (BOX, np.full(2, 99.0)),
        (BOX, np.zeros(2, np.int64)),
        (BOX, [0.0, 0.5]),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.uint8)),
        (spaces.Box(-1, 1, ()), 0.5),
        (spaces.Box(-1, 1, ()), np.float32(0.5)),
        (spaces.Discrete(3), 7),
        (spaces.Discrete(3), np.int32(1)),
        (spaces.Discrete(3), np.array(1)),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2])),
        (spaces.MultiDiscrete([2, 3]), [1, 2]),
        (spaces.MultiBinary(2), np.array([True, False])),
        (spaces.MultiBinary([2, 2]), np.zeros((2, 2), np.int8)),
        (NESTED, {"b": (np.zeros(2), np.zeros(2, np.int8)), "a": 0}),
        (spaces.Text(5), "abc"),
    ],
)
def test_fitting_rows_pass(space, row):
    assert check_row(space, row, "observation") is None


@pytest.mark.parametrize(
    ("space", "row", "message"),
    [
        (BOX, np.zeros(3), r"^observation\n  expected: numbers of shape \(2,\)"),
        (BOX, np.zeros(3), r"found:    float64 array of shape \(3,\)"),
        (BOX, np.array(["a", "b"]), r"<U1 array of shape \(2,\)"),
        (BOX, np.array([None, None]), "object array"),
        (BOX, 1.0, "found:    float"),
        (BOX, None, "found:    NoneType"),
        (BOX, [[1.0], [1.0, 2.0]], "found:    ragged list"),
        (BOX, (0.0, 0.0), "found:    tuple"),
        (BOX, {"a": np.zeros(2)}, "found:    dict"),
        (spaces.Discrete(3), 1.0, r"expected: integer of shape \(\), as in Discrete\(3\)"),
        (spaces.Discrete(3), np.array([1]), r"int64 array of shape \(1,\)"),
        (spaces.Discrete(3), "1", "found:    str"),
        (spaces.MultiDiscrete([2, 3]), np.zeros(2), r"expected: integers of shape \(2,\)"),
        (spaces.MultiBinary(2), np.zeros(3, np.int8), r"expected: integers of shape \(2,\)"),
        (NESTED, {"a": 0}, r"expected: dict with keys \['a', 'b'\]"),
        (NESTED, np.zeros(2), "found:    float64 array"),
        (NESTED, {"a": 0, "b": (np.zeros(2),)}, r"^observation\['b'\]\n  expected: tuple of 2"),
        (NESTED, {"a": 0, "b": (np.zeros(3), np.zeros(2, np.int8))}, r"^observation\['b'\]\[0\]\n"),
        (NESTED, {"a": 0.5, "b": (np.zeros(2), np.zeros(2, np.int8))}, r"^observation\['a'\]\n"),
        (BOX, np.zeros(3), "do:       make the environment"),
    ],
)
def test_unfit_rows_are_explained(space, row, message):
    with pytest.raises(SpaceError, match=message):
        check_row(space, row, "observation")


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (spaces.Text(5), "encode the text"),
        (spaces.Sequence(BOX), "pad the sequence"),
        (spaces.Graph(BOX, None), "pad nodes and edges"),
        (spaces.OneOf([BOX]), "replace it by a space of one shape"),
    ],
)
def test_advice_names_what_to_add(space, advice):
    assert encoding_advice(space).startswith(advice)
    assert "gymnasium.wrappers.TransformObservation" in encoding_advice(space)
