"""Import paths that users rely on: names may be added, none may be lost.

`names.json` lists names by module; `rllib_names.json` lists names by RLlib's module, with their place here.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from epibatch.porting import port_source

NAMES: dict[str, list[str]] = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
RLLIB_NAMES: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("rllib_names.json").read_text(encoding="utf-8")
)
SEVERAL_OBJECTS = {"FlattenObservations", "default_pipeline"}
"""Names that mean another object in each package."""


def load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", NAMES)
def test_a_module_keeps_its_names(module):
    loaded = importlib.import_module(module)
    assert [name for name in NAMES[module] if name not in loaded.__all__ or not hasattr(loaded, name)] == []


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [("epibatch.connectors", "Call", "ChunkGroup"), ("epibatch.core.errors", "explain", "SomeError")],
)
def test_an_old_name_says_the_new_one(module, name, now):
    with pytest.raises(ImportError, match=now) as caught:
        load(module, name)
    assert name in caught.value.found


@pytest.mark.parametrize("theirs", RLLIB_NAMES)
def test_ported_imports_lead_to_the_same_objects(theirs):
    ported = port_source(f"from {theirs} import {', '.join(RLLIB_NAMES[theirs])}\n")
    imported: dict[str, Any] = {}
    exec(ported.text, imported)
    for name, place in RLLIB_NAMES[theirs].items():
        assert imported[name] is load(*place.split(":")), name


def test_every_path_of_a_name_leads_to_one_object():
    objects: dict[str, list[Any]] = {}
    for module, names in NAMES.items():
        for name in set(names) - SEVERAL_OBJECTS:
            objects.setdefault(name, []).append(load(module, name))
    assert [name for name, found in objects.items() if any(each is not found[0] for each in found)] == []
