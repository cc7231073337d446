"""Imports point down: face > env_runner | learner > connectors > episodes > cluster > core."""

from __future__ import annotations

import ast
import re

import pytest

from sources import Source

MAY_IMPORT = {
    "core": {"core"},
    "cluster": {"core", "cluster"},
    "episodes": {"core", "cluster", "episodes"},
    "connectors": {"core", "cluster", "episodes", "connectors"},
    "env_runner": {"core", "cluster", "episodes", "connectors", "env_runner"},
    "learner": {"core", "cluster", "episodes", "connectors", "learner"},
    "face": {"core", "cluster", "episodes", "connectors", "env_runner", "learner", "face"},
}
PARTS = {"episodes", "connectors", "env_runner", "learner"}


def room_of(module):
    """The room a module of ours belongs to; None for other people's modules."""
    first, *rest = module.split(".")
    if first != "epibatch":
        return None
    return rest[0] if rest and rest[0] in MAY_IMPORT else "face"


def faults_in(source):
    """Every import of a source that breaks a rule of the house, as a sentence."""
    module = source.module
    here = room_of(module)
    faults = []
    for one in source.imports:
        line, relative = one.line, one.is_relative
        target = f"epibatch.{one.name}" if one.module == "epibatch" and one.name else one.module
        there = room_of(target)
        if target.split(".")[0] in PARTS:
            faults.append(f"{module}:{line} imports {target!r} by its folder name; write `from ..{target} import ...`")
        elif there is None or here == there:
            continue
        elif there not in MAY_IMPORT[here]:
            faults.append(f"{module}:{line} ({here}) must not import {target} ({there})")
        elif here in PARTS and there in PARTS and not relative:
            faults.append(f"{module}:{line} imports {there} absolutely; between parts write `from ..{there} import`")
        elif here in PARTS and there in ("core", "cluster") and relative:
            faults.append(f"{module}:{line} imports {there} relatively; write `from epibatch.{there}... import`")
    return faults


def test_arrows_point_down(sources):
    assert [fault for source in sources.values() for fault in faults_in(source)] == []


FORBIDDEN = [
    ("epibatch.core.spaces", "from ..connectors import X", r"\(core\) must not import epibatch.connectors "),
    ("epibatch.cluster.connect", "from epibatch.episodes import X", r"\(cluster\) must not import epibatch.episodes "),
    ("epibatch.episodes.replay", "from .. import connectors", r"\(episodes\) must not import epibatch.connectors "),
    ("epibatch.connectors.a.b", "def f():\n    import epibatch.cli", r"a.b:2 \(connectors\) must not .*face"),
    ("epibatch.connectors.a", "import importlib\nimportlib.import_module('epibatch.cli')", "must not import"),
    ("epibatch.learner.learner", "from ..env_runner import X", r"\(learner\) must not import epibatch.env_runner "),
    ("epibatch.learner.learner", "from epibatch.connectors import X", "write `from ..connectors import`"),
    ("epibatch.learner.learner", "from ..core.errors import X", "imports core relatively"),
    ("epibatch.learner.learner", "from episodes import X", "by its folder name"),
    ("epibatch.learner.learner", "from ..connectors import learner\nfrom epibatch.core.errors import X", None),
    ("epibatch.algorithms.ppo", "from epibatch.learner import Learner\nfrom ..env_runner import runner", None),
]


@pytest.mark.parametrize(("module", "source", "message"), FORBIDDEN)
def test_arrows_are_seen(module, source, message):
    faults = faults_in(Source(f"{module}.py", module, ast.parse(source)))
    assert len(faults) == (message is not None)
    assert all(re.search(message, fault) for fault in faults), faults
