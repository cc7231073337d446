"""Every built-in piece keeps the contract of pieces; tests/built_in_pieces.yaml tells how to try some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_cases import slow_but
from ruamel.yaml import YAML

from epibatch.connectors.authoring import ColumnTransform, Undo
from epibatch.connectors.common import AgentToModuleMapping
from epibatch.connectors.replay import HindsightGoals
from epibatch.core.registry import build_piece, built_in_pieces, piece_class, piece_name
from epibatch.testing import check_connector
from epibatch.testing.space_text import space_from_text

ENTRIES = YAML(typ="safe").load(
    Path(__file__).with_suffix(".yaml").with_stem("built_in_pieces").read_text(encoding="utf-8")
)
PIECES = sorted({piece_name(piece_class(name)) for name in built_in_pieces()})
FIRST = list({piece_class(name).__module__.rpartition(".")[0]: name for name in reversed(PIECES)}.values())
SPACES = ("observation_space", "action_space")
KEYS = {"arguments", "made_by", *SPACES, "agents", "model_config", "skip", "only", "why"}


class Half(ColumnTransform):
    """Actions of half the size."""

    columns = "actions"

    def transform(self, x):
        return x / 2

    def inverse(self, y):
        return y * 2


def undo_of_half():
    return Undo(of=Half())


def network():
    return build_piece({"piece": "frozen_module", "module": "torch.nn:Softplus"}, allow_imports=True)


def symmetry():
    spec = {"piece": "symmetric_augmentation", "observations": "torch:neg", "actions": "torch:clone"}
    return build_piece(spec, allow_imports=True)


def nearness(achieved, desired, info):
    return -np.abs(achieved - desired).sum(-1)


def goals():
    return HindsightGoals(compute_reward=nearness)


def mapped_to_one(agent_id, episode):
    return "default_policy"


def mapping_to_one():
    return AgentToModuleMapping(rl_module_specs=["default_policy"], agent_to_module_mapping_fn=mapped_to_one)


def spaces_of(entry):
    if "agents" in entry:
        return tuple({agent: space_from_text(own[i]) for agent, own in entry["agents"].items()} for i in (0, 1))
    return tuple(space_from_text(entry[key]) if key in entry else None for key in SPACES)


def test_every_entry_is_of_a_piece():
    assert set(ENTRIES) <= set(PIECES)


@pytest.mark.parametrize("name", slow_but(FIRST, PIECES))  # one of each folder is quick enough
def test_it_keeps_the_contract(name):
    entry = ENTRIES.get(name, {})
    assert set(entry) <= KEYS and ("only" in entry) == ("why" in entry)
    how = {key: entry[key] for key in ("model_config", "skip", "only") if key in entry}
    spec = {"piece": name, **entry.get("arguments", {})}
    report = check_connector(
        globals().get(entry.get("made_by"), lambda: build_piece(spec)), spaces=spaces_of(entry), **how
    )
    assert report.passed and ("runs" in report.passed or "only" in entry)
