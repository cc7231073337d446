"""Settings for every test."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile(
    "epibatch", max_examples=int(os.environ.get("EPIBATCH_CASES", "40")), deadline=None, print_blob=True
)
settings.load_profile("epibatch")


def _shown(state):
    if hasattr(state, "arrays"):
        return list(map(_shown, state.arrays()))
    if isinstance(state, dict):
        return {name: _shown(part) for name, part in state.items() if name != "bounds"}  # where they are cut
    return list(map(_shown, state)) if isinstance(state, list) else state


@pytest.fixture
def shown():
    """`shown(state)`: a state with the arrays themselves in place of those that are made when they are needed."""
    return _shown
