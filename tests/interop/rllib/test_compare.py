"""Differences between two batches, a sentence for each kind; and RLlib missing is a named error with the command."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from epibatch.interop.rllib import compare_batches

NAN = float("nan")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"a": np.array([1.0, NAN])}, {"a": torch.tensor([1.0, NAN], dtype=torch.float64)}),
        ({"m": {"a": [1, 2]}}, {"m": {"a": np.array([1, 2])}}),
        ({"infos": [{"x": 1}, {}]}, {"infos": [{"x": 1}, {}]}),
        ({"a": (np.zeros(2), {"b": np.ones(1)})}, {"a": (np.zeros(2), {"b": np.ones(1)})}),
        ({"text": np.array(["a", "b"])}, {"text": np.array(["a", "b"], object)}),
    ],
)
def test_equal_batches(theirs, ours):
    assert compare_batches(theirs, ours) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "sentences"),
    [
        ({"a": 1}, {"b": 1}, ["'a' only in RLlib", "'b' only here"]),
        ({"m": {"a": 1}}, {"m": {}}, ["m: 'a' only in RLlib"]),
        ({"a": np.zeros(2)}, {"a": np.zeros((2, 1))}, ["a: shape (2,) in RLlib, (2, 1) here"]),
        ({"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}, ["a: float64 in RLlib, float32 here"]),
        ({"a": np.zeros(2)}, {"a": {"b": np.zeros(2)}}, ["a: nested as ndarray in RLlib, as dict here"]),
        (
            {"m": {"a": (np.zeros(3), 0)}},
            {"m": {"a": (np.array([0.0, 2.0, NAN]), 0)}},
            ["m/a/0: 2 of 3 values differ, first at (1,): 0.0 in RLlib, 2.0 here"],
        ),
        ({"infos": [{}]}, {"infos": [{"x": 1}]}, ["infos/0: 'x' only here"]),
    ],
)
def test_differences(theirs, ours, sentences):
    assert compare_batches(theirs, ours) == sentences


def test_tolerances_are_for_floats():
    theirs, ours = {"a": np.array([1.0]), "n": np.array([100])}, {"a": np.array([1.001]), "n": np.array([101])}
    assert len(compare_batches(theirs, ours)) == 2
    assert compare_batches(theirs, ours, rtol=0.1) == ["n: 1 of 1 values differ, first at (0,): 100 in RLlib, 101 here"]
    assert len(compare_batches(theirs, ours, atol=1e-4)) == 2


# ------------------------------------------------------------------------- without RLlib

USES = [
    "to_rllib(SingleAgentEpisode())",
    "from_rllib([])",
    "to_rllib_piece(FrameStacking(num_frames=2))",
    "from_rllib_piece(object())",
]
SCRIPT = """
import sys
from epibatch.connectors.common import FrameStacking
from epibatch.core.errors import MissingExtraError
from epibatch.episodes import SingleAgentEpisode
from epibatch.interop.rllib import from_rllib, from_rllib_piece, to_rllib, to_rllib_piece
assert "ray" not in sys.modules
sys.modules["ray"] = None
for use in sys.argv[1:]:
    try:
        eval(use)
    except MissingExtraError as error:
        assert error.where == "exchanging episodes and pieces with RLlib", error
        print(error.do)
"""


def test_without_rllib_every_use_is_a_named_error_and_importing_loads_none():
    answer = subprocess.run([sys.executable, "-c", SCRIPT, *USES], capture_output=True, text=True, check=False)
    assert answer.stdout.splitlines() == ["pip install 'epibatch[rllib]'"] * len(USES), answer.stderr
