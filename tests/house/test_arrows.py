"""Imports point down: face > env_runner | learner > connectors > episodes > core."""

from __future__ import annotations

import ast
import re

import pytest

MAY_IMPORT = {
    "core": {"core"},
    "episodes": {"core", "episodes"},
    "connectors": {"core", "episodes", "connectors"},
    "env_runner": {"core", "episodes", "connectors", "env_runner"},
    "learner": {"core", "episodes", "connectors", "learner"},
    "face": {"core", "episodes", "connectors", "env_runner", "learner", "face"},
}
PARTS = {"episodes", "connectors", "env_runner", "learner"}


def room_of(module):
    """The room a module of ours belongs to; None for other people's modules."""
    first, *rest = module.split(".")
    if first != "epibatch":
        return None
    return rest[0] if rest and rest[0] in MAY_IMPORT else "face"


def imports_of(source, module, is_package):
    """Yield (line, absolute module name, whether it was written relatively) for every import in a source text."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            if target == "epibatch":  # the room is what is imported: `from .. import connectors`
                yield from ((node.lineno, f"{target}.{alias.name}", bool(node.level)) for alias in node.names)
            else:
                yield node.lineno, target, bool(node.level)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            literal = node.args[0] if node.args else None
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                yield node.lineno, literal.value, False


def faults_in(source, module, is_package=False):
    """Every import of a source text that breaks a rule of the house, as a sentence."""
    here = room_of(module)
    faults = []
    for line, target, relative in imports_of(source, module, is_package):
        there = room_of(target)
        if target.split(".")[0] in PARTS:
            faults.append(f"{module}:{line} imports {target!r} by its folder name; write `from ..{target} import ...`")
        elif there is None or here == there:
            continue
        elif there not in MAY_IMPORT[here]:
            faults.append(f"{module}:{line} ({here}) must not import {target} ({there})")
        elif here in PARTS and there in PARTS and not relative:
            faults.append(f"{module}:{line} imports {there} absolutely; between parts write `from ..{there} import`")
        elif here in PARTS and there == "core" and relative:
            faults.append(f"{module}:{line} imports core relatively; write `from epibatch.core... import`")
    return faults


def test_arrows_point_down(modules):
    faults = []
    for module, path in modules.items():
        faults += faults_in(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    assert faults == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("epibatch.core.spaces", "from epibatch.core.errors import SpaceError"),
        ("epibatch.episodes.replay", "import numpy as np\nfrom .single_agent_episode import SingleAgentEpisode"),
        ("epibatch.connectors.common.pad", "from ...episodes import SingleAgentEpisode"),
        ("epibatch.connectors.common.pad", "from ..connector_v2 import ConnectorV2"),
        ("epibatch.learner.learner", "from ..connectors import learner"),
        ("epibatch.env_runner.runner", "from ..episodes.vector_episodes import VectorEpisodes"),
        ("epibatch.algorithms.ppo", "from epibatch.learner import Learner\nfrom ..env_runner import runner"),
        ("epibatch.cli", "from epibatch import __version__"),
    ],
)
def test_allowed(module, source):
    assert faults_in(source, module) == []


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("epibatch.core.spaces", "from epibatch.episodes import X", r"\(core\) must not import epibatch.episodes "),
        ("epibatch.core.spaces", "from ..connectors import X", r"\(core\) must not import epibatch.connectors "),
        ("epibatch.core.rl_module.spec", "from epibatch import learner", r"\(core\) must not import epibatch.learner "),
        ("epibatch.episodes.replay", "from ..connectors.common import X", r"\(episodes\) must not import"),
        ("epibatch.episodes.replay", "from .. import connectors", r"\(episodes\) must not import epibatch.connectors "),
        ("epibatch.connectors.a.b", "from ...learner import X", r"\(connectors\) must not import epibatch.learner "),
        ("epibatch.connectors.a.b", "def f():\n    import epibatch.cli", r"a.b:2 \(connectors\) must not .*face"),
        ("epibatch.connectors.a", "import importlib\nimportlib.import_module('epibatch.cli')", "must not import"),
        ("epibatch.learner.learner", "from ..env_runner import X", r"\(learner\) must not import epibatch.env_runner "),
        ("epibatch.env_runner.runner", "from ..learner import X", r"\(env_runner\) must not import epibatch.learner "),
        ("epibatch.learner.learner", "from epibatch import Algorithm", r"\(learner\) must not import .*\(face\)"),
        ("epibatch.learner.learner", "from epibatch.connectors import X", "write `from ..connectors import`"),
        ("epibatch.learner.learner", "from ..core.errors import X", "imports core relatively"),
        ("epibatch.learner.learner", "from episodes import X", "by its folder name"),
    ],
)
def test_forbidden(module, source, message):
    (fault,) = faults_in(source, module)
    assert re.search(message, fault), fault
