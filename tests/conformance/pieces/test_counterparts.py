"""RLlib has the pieces that our table of pieces names as counterparts."""

from __future__ import annotations

from importlib import import_module

import pytest

from epibatch.core.piece_counterparts import COUNTERPARTS
from epibatch.core.piece_names import snake_case

ROOMS = ("common", "env_to_module", "module_to_env", "learner")
NAMES = sorted({name for own in COUNTERPARTS.values() for name in own.rllib})


@pytest.mark.parametrize("name", NAMES)
def test_it_is_there(name):
    for room in ROOMS:
        for place in (f"ray.rllib.connectors.{room}", f"ray.rllib.connectors.{room}.{snake_case(name)}"):
            try:
                if hasattr(import_module(place), name):
                    return
            except ModuleNotFoundError:
                continue
    pytest.fail(f"RLlib has no connector {name}")
