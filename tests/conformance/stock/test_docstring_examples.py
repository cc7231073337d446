"""RLlib's connectors have their place here, and the examples in docstrings of what it has run here, ported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epibatch.core.registry import built_in_pieces, counterparts, piece_class
from oracle.libraries import EPIBATCH, RLLIB, Library
from stock.installed import DocstringExample, NotPorted, docstring_examples, rllib_file, run_example, run_source

OLD_MODULES = ("action", "agent", "connector", "registry", "util")
"""Modules and packages below `ray.rllib.connectors` that only the old API stack uses."""


def files() -> Iterator[tuple[str, Path]]:
    """Modules of connectors and their files."""
    root = rllib_file("connectors")
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] not in OLD_MODULES:
            below = [part for part in parts if part != "__init__"]
            yield ".".join(["ray.rllib.connectors", *below]), path


def names(path: Path) -> set[str]:
    """Classes that a module defines, second names that it gives them, and what it says it offers."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "__all__":
                found |= set(ast.literal_eval(node.value))
            elif isinstance(node.value, (ast.Name, ast.Call)) and node.targets[0].id[0].isupper():
                found.add(node.targets[0].id)
    return found


LISTED = [(module, name) for module, path in files() for name in sorted(names(path))]


def test_the_list_is_whole():
    found = {name for _, name in LISTED}
    assert len(found) >= 30
    assert {"MultiAgentObservationPreprocessor", "ObservationPreprocessor", "FrameStackingLearner"} <= found


@pytest.mark.parametrize(("module", "name"), LISTED)
def test_a_connector_is_here(module, name):
    here = module.replace("ray.rllib", "epibatch")  # porting is search and replace
    assert hasattr(import_module(here), name), f"{module}.{name} has no place here"


PIECES = [piece_class(name) for name in built_in_pieces()]
COUNTERPARTS = sorted({name for piece in PIECES for name in counterparts(piece).get("RLlib", ())})


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_a_counterpart_is_in_rllib(name):
    """What docstrings name as RLlib's."""
    packages = [
        RLLIB.module(f"connectors.{package}") for package in ("common", "env_to_module", "module_to_env", "learner")
    ]
    modules = [import_module(path) for path, _ in LISTED]
    assert any(hasattr(module, name) for module in [*packages, *modules]), f"RLlib has no connector {name}"


FILES = [
    "connectors/**/*.py",
    "env/single_agent_episode.py",
    "env/multi_agent_episode.py",
    "env/utils/infinite_lookback_buffer.py",
    "callbacks/callbacks.py",
    "core/columns.py",
    "core/distribution/**/*.py",
    "core/learner/**/*.py",
    "core/rl_module/**/*.py",
    "utils/numpy.py",
    "utils/postprocessing/*.py",
    "utils/spaces/*.py",
]

OLD_STACK = "old API stack"
CATALOGS = "catalogs and encoders"
LEARNER = r"no such name in epibatch\.learner"

NOT_HERE: dict[str, str] = {
    "connectors.connector.ActionConnector": OLD_STACK,
    "connectors.connector.AgentConnector#2": OLD_STACK,
    "core.distribution.distribution.Distribution": CATALOGS,
    "core.learner.learner.Learner": CATALOGS,
    "core.learner.learner.Learner#1": LEARNER,
    "core.rl_module.default_model_config.DefaultModelConfig": "example code of RLlib",
    "core.rl_module.rl_module.RLModule": CATALOGS,
    "core.rl_module.rl_module.RLModule#1": CATALOGS,
    "core.rl_module.rl_module.RLModule#2": CATALOGS,
    "env.multi_agent_episode.MultiAgentEpisode.to_numpy": "nothing here takes the place",  # of RLlib's own tests
}
"""Example -> what `epibatch port` says about a name that it needs."""

NEXT = "connectors.learner.add_next_observations_from_episodes_to_train_batch"
STATES = "connectors.common.add_states_from_episodes_to_batch"
BOOTSTRAP = "connectors.learner.add_one_ts_to_episodes_and_truncate"
STOPS: dict[str, tuple[type[Exception], str]] = {
    # It gives rewards for one env step more than actions.
    "env.multi_agent_episode.MultiAgentEpisode.slice": (ValueError, "4 of actions, 5 of rewards"),
    # These two were never complete: they name a type that they do not import.
    "connectors.connector.AgentConnector": (NameError, "AgentConnectorDataType"),
    "connectors.connector.AgentConnector#1": (NameError, "AgentConnectorDataType"),
    # Checks that fail because episodes are arrays here from the start (docs/porting.md).
    f"{STATES}.AddStatesFromEpisodesToBatch": (AssertionError, "y does not have the same length as x"),
    f"{NEXT}.AddNextObservationsFromEpisodesToTrainBatch": (AssertionError, "y needs to be a tuple/list as well"),
    "env.single_agent_episode.SingleAgentEpisode.to_numpy": (AssertionError, r"assert not episode\.is_numpy"),
    # Because bootstrap rows are virtual here (docs/porting.md).
    f"{BOOTSTRAP}.AddOneTsToEpisodesAndTruncate": (AssertionError, "is not the same as y"),
}
"""Example -> the error at which it stops, or the check; what stands in front of that has run, with its checks."""


def found() -> list[DocstringExample]:
    root = rllib_file("")
    paths = sorted({path for pattern in FILES for path in root.glob(pattern)})
    return [one for path in paths for one in docstring_examples(path.relative_to(root).as_posix())]


EXAMPLES = found()
RUN = [one for one in EXAMPLES if one.name not in {*NOT_HERE, *STOPS}]
BY_NAME = {one.name: one for one in EXAMPLES}


def names_for(example: DocstringExample, library: Library) -> dict[str, Any]:
    """Names that an example uses without importing them: the class in whose docstring it stands."""
    return {"ConnectorV2": library.ConnectorV2} if example.name.startswith("connectors.connector_v2") else {}


def as_array(value: Any) -> Any:
    """Rows as an array, whether they came as one or as a list of rows."""
    if isinstance(value, dict):
        return {key: as_array(part) for key, part in value.items()}
    if isinstance(value, (list, np.ndarray, int, float)) and not isinstance(value, bool):
        rows = np.asarray(value)
        return value if rows.dtype == object else rows
    return value


def test_examples_are_found():
    assert len(RUN) >= 15
    assert {*NOT_HERE, *STOPS} <= set(BY_NAME), "the lists name examples that RLlib does not have"


@pytest.mark.parametrize("example", RUN, ids=lambda example: example.name)
def test_an_example_runs_and_gives_what_it_gives_in_rllib(example):
    ours = run_example(example, names_for(example, EPIBATCH))
    theirs = run_source(example.source, example.name, names_for(example, RLLIB))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        if isinstance(other, (list, np.ndarray, int, float, dict, str, type(None))):  # no objects of their own
            np.testing.assert_equal(as_array(mine), as_array(other))


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_what_is_not_here_is_still_not_here(name):
    with pytest.raises(NotPorted) as raised:
        run_example(BY_NAME[name], {})
    assert any(re.search(NOT_HERE[name], reason) for reason in raised.value.reasons), raised.value.reasons


@pytest.mark.parametrize("name", sorted(STOPS))
def test_an_example_runs_up_to_what_is_different(name):
    error, said = STOPS[name]
    with pytest.raises(error) as raised:
        run_example(BY_NAME[name], {})
    lines = BY_NAME[name].source.splitlines()
    at = [lines[entry.lineno] for entry in raised.traceback if str(entry.path) == name]
    assert re.search(said, "\n".join([str(raised.value), *at]))
