"""The probes themselves: what they take for the expected outcome, and what not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracle.libraries import EPIBATCH, RLLIB
from oracle.probes import Raises, agree, plain, probe, tried


def refuse(message="no such row"):
    raise IndexError(message)


@pytest.mark.parametrize(
    ("found", "expected"),
    [(1, 1.0), (1, True), ([1], (1,)), ([1], [1, 2]), ({"a": 1}, {"b": 1}), (None, []), ("a", Raises(IndexError, ""))],
)
def test_outcomes_of_another_type_or_value_do_not_agree(found, expected):
    assert not agree(found, expected)
    assert agree(found, found)


@pytest.mark.parametrize(
    ("expected", "agrees"),
    [
        (Raises(IndexError, "such"), True),
        (Raises(IndexError, "^no such row$", "refuse"), True),
        (Raises(LookupError, "such"), False),
        (Raises(IndexError, "such column"), False),
        (Raises(IndexError, "such", "get"), False),
    ],
)
def test_an_error_is_known_by_type_message_and_place(expected, agrees):
    assert agree({"a": [tried(refuse)]}, {"a": [expected]}) is agrees


def test_plain_values():
    rows = {"a": [np.arange(2), (torch.ones(1), np.float32(0.5))]}
    assert agree(plain(rows), {"a": [[0, 1], ([1.0], 0.5)]})


def name_of(library):
    return library.name


def one(library):
    return 1


def wrong_on_rllib(library):
    return library.name if library is EPIBATCH else library.NoSuchName


@pytest.mark.parametrize(
    ("function", "ours", "theirs", "failing"),
    [
        (name_of, "epibatch", "RLlib", []),
        (name_of, "epibatch", "rllib", ["rllib"]),
        (name_of, "RLlib", "RLlib", ["epibatch", "rllib"]),
        (wrong_on_rllib, "epibatch", Raises(KeyError, "NoSuchName"), ["rllib"]),
        (one, 1, 1, ["epibatch", "rllib"]),
    ],
)
def test_a_probe_fails_unless_both_outcomes_are_as_listed_and_differ(function, ours, theirs, failing):
    assert (EPIBATCH.name, RLLIB.name) == ("epibatch", "RLlib")
    test = probe("O1", ours=ours, theirs=theirs)(function)
    failed = [side for side in ("epibatch", "rllib") if isinstance(tried_test(test, side), AssertionError)]
    assert failed == failing


def tried_test(test, side):
    return tried(lambda: test(side))
