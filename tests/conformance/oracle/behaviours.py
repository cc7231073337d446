"""How a test says which behaviours of docs/internals/conformance.md it holds, and runs on both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from oracle.differences import IDS
from oracle.libraries import BOTH, Library

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


def listed(identity: str, library: Library, *, rllib: Any, epibatch: Any) -> Any:
    """What a library gives where the two differ on purpose.

    Args:
        identity: the row of docs/differences-from-rllib.md that says so.
        library: the one that is asked.
        rllib: the outcome there.
        epibatch: the outcome here.
    """
    assert identity in IDS, f"docs/differences-from-rllib.md has no row {identity}"
    return rllib if library.name == "RLlib" else epibatch


def plain(value: Any) -> Any:
    """Arrays, tensors and lists of structures as Python lists, the structures outside: `{"a": [1, 2]}`.

    RLlib's lists of rows, its arrays, and our arrays of the same values come out equal.
    """
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key: plain([row[key] for row in value]) for key in value[0]}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        return value.tolist()
    return value
