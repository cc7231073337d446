"""Spaces from text are those that Gymnasium makes, and nothing else is run."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from epibatch.core.errors import SpaceError
from epibatch.testing.space_text import space_from_text


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("Box(-1, 1, (3,))", Box(-1, 1, (3,))),
        (" Box(0, 255, (4, 4, 1), uint8) ", Box(0, 255, (4, 4, 1), np.uint8)),
        ("Box(low=-inf, high=np.inf, shape=(2,), dtype='float64')", Box(-np.inf, np.inf, (2,), np.float64)),
        ("gym.spaces.Discrete(3, start=-1)", Discrete(3, start=-1)),
        ("MultiDiscrete([2, 3])", MultiDiscrete([2, 3])),
        ("MultiBinary(4)", MultiBinary(4)),
        ("Text(5)", Text(5)),
        ("Dict(a=Discrete(2), b=Box(0, 1, (1,)))", Dict(a=Discrete(2), b=Box(0, 1, (1,)))),
        ("Dict({'a': Discrete(2)})", Dict(a=Discrete(2))),
        ("Tuple([Discrete(2), Box(0, 1, ())])", Tuple([Discrete(2), Box(0, 1, ())])),
    ],
)
def test_spaces(text, space):
    assert space_from_text(text) == space


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Bx(0, 1)", "did you mean 'Box'"),
        ("Box(0, 1", "found:"),
        ("3", "int 3"),
        ("Box(open('x'), 1)", "open"),
        ("__import__('os').system('true')", "system"),
        ("Discrete(-2)", "Error"),
        ("Box(0, 1, (2,), dtype=colour)", "colour"),
        ("", "found:"),
        ("Discrete(1 + 1)", "1 \\+ 1"),
    ],
)
def test_what_is_none(text, found):
    with pytest.raises(SpaceError, match=found):
        space_from_text(text)
