"""No package loads torch when it is imported, and every name a package promises is there."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

REPORT = "import sys; print([name for name in {heavy!r} if name in sys.modules])"
HEAVY = ["torch", "matplotlib", "scipy", "pandas", "ray"]


def loaded_after(statements, heavy):
    """Which of the heavy modules a fresh interpreter has loaded after some statements."""
    code = "\n".join([statements, REPORT.format(heavy=heavy)])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_importing_a_package_is_light(package_name):
    assert loaded_after(f"import {package_name}", HEAVY) == "[]"


def test_episodes_never_load_torch(modules):
    names = [name for name in modules if name.startswith("epibatch.episodes")]
    assert loaded_after("\n".join(f"import {name}" for name in names), ["torch", "matplotlib"]) == "[]"


def test_episode_classes_load_no_torch():
    statement = "from epibatch import SingleAgentEpisode, VectorEpisodes; from epibatch.core import Columns"
    assert loaded_after(statement, HEAVY) == "[]"


def test_the_measure_sees_torch():
    assert loaded_after("import torch", ["torch"]) == "['torch']"


def test_promised_names_resolve(package_name):
    loaded = importlib.import_module(package_name)
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert set(loaded.__all__) <= set(dir(loaded))


def test_unknown_names_are_attribute_errors(package_name):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(package_name).no_such_name
