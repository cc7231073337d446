"""How tests run on both libraries: probes of differences, and behaviours of docs/internals/conformance.md.

A probe is one situation in which the two libraries differ, with what comes of it in each of them.

It is a function of a library. It returns plain values, and the decorator says which ones: `ours` is the right
outcome, `theirs` what RLlib makes of the same calls. An outcome that is an error is described by `Raises`, so a probe
that fails on RLlib for another reason than the listed one proves nothing and fails.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from oracle.compare import IDS
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library


class Raises(NamedTuple):
    """An error by its type, by a pattern that its whole message has in it, and by the function that raises it."""

    type: type[BaseException]
    message: str
    function: str | None = None

    def describes(self, found: object) -> bool:
        """Whether `found` is this error."""
        if type(found) is not self.type or re.search(self.message, str(found)) is None:
            return False
        return self.function in (None, traceback.extract_tb(found.__traceback__)[-1].name)


def tried(call: Callable[[], Any]) -> Any:
    """What `call` returns, or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def plain(value: Any) -> Any:
    """Arrays and tensors as lists, in any nesting."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def rounded(value: Any) -> Any:
    """Plain values, fractions to four digits."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(item) for item in value)
    return round(value, 4) if isinstance(value, float) else value


def agree(found: Any, expected: Any) -> bool:
    """Whether an outcome is the expected one: 1, 1.0 and True are three things."""
    if isinstance(expected, Raises):
        return expected.describes(found)
    if isinstance(expected, dict):
        return isinstance(found, dict) and agree(list(found.items()), list(expected.items()))
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(agree, found, expected))
    return type(found) is type(expected) and found == expected


def probe(id_: str, *, ours: Any, theirs: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a probe a test that runs on both libraries.

    Args:
        id_: The row of docs/differences-from-rllib.md that it belongs to; that row names the test.
        ours: The right outcome.
        theirs: The outcome on RLlib.
    """
    sides = {"epibatch": (EPIBATCH, ours, theirs), "rllib": (RLLIB, theirs, ours)}

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @pytest.mark.parametrize("library", list(sides))
        @functools.wraps(function)
        def test(library: str, **fixtures: Any) -> None:
            side, expected, other = sides[library]
            found = tried(lambda: function(side, **fixtures))
            assert agree(found, expected), f"{id_} on {library}:\n  expected: {expected}\n  found:    {found!r}"
            assert not agree(found, other), f"{id_} does not tell the libraries apart"

        return test

    return decorate


# -- behaviours that both have ----------------------------------------------------------------------


Test = Callable[..., None]


def behaviour(*numbers: str) -> Callable[[Test], Test]:
    """Make a test one of those of a behaviour: it gets each `library` in turn, so that RLlib confirms what it says.

    The page names the test in the behaviour's row; another test holds the two together.

    Args:
        *numbers: of the behaviours, such as `"C3"`.
    """
    ids = [f"{'-'.join(numbers)}-{library}" for library in BOTH]

    def decorate(test: Test) -> Test:
        return pytest.mark.parametrize("library", BOTH, ids=ids)(test)

    return decorate


def holds(*numbers: str) -> Callable[[Test], Test]:
    """Say which behaviours a property holds that compares both libraries in random cases.

    Args:
        *numbers: of the behaviours, as in `behaviour`.
    """
    return lambda test: test


def by_library(identity: str, library: Library, *, rllib: Any, epibatch: Any) -> Any:
    """What a library gives where the two differ on purpose.

    Args:
        identity: the row of docs/differences-from-rllib.md that says so.
        library: the one that is asked.
        rllib: the outcome there.
        epibatch: the outcome here.
    """
    assert identity in IDS, f"docs/differences-from-rllib.md has no row {identity}"
    return rllib if library.name == "RLlib" else epibatch


def in_lists(value: Any) -> Any:
    """Arrays, tensors and lists of structures as Python lists, the structures outside: `{"a": [1, 2]}`.

    RLlib's lists of rows, its arrays, and our arrays of the same values come out equal.
    """
    if isinstance(value, dict):
        return {key: in_lists(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(in_lists(part) for part in value)
    if (
        isinstance(value, list)
        and value
        and all(isinstance(row, dict) and row.keys() == value[0].keys() for row in value)
    ):
        return {key: in_lists([row[key] for row in value]) for key in value[0]}
    if isinstance(value, list):
        return [in_lists(part) for part in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return in_lists(list(value))
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        return value.tolist()
    return value
