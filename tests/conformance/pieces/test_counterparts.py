"""RLlib has the pieces that our pieces name as counterparts."""

from __future__ import annotations

from importlib import import_module

import pytest

from epibatch.core.registry import built_in_pieces, counterparts, piece_class, snake_case

ROOMS = ("common", "env_to_module", "module_to_env", "learner")
NAMES = sorted({own for name in built_in_pieces() for own in counterparts(piece_class(name)).get("RLlib", ())})


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
