"""No package loads torch when it is imported, and every name a package promises is there."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

HEAVY = ["torch", "matplotlib", "scipy", "pandas", "ray", "libcst"]


def first_heavy(modules, heavy):
    """The first of some modules that makes a new interpreter load one of the heavy ones; empty if none does."""
    code = f"import importlib, sys\nfor name in {sorted(modules)!r}:\n    importlib.import_module(name)\n"
    code += f"    if any(other in sys.modules for other in {heavy!r}): print(name); break"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_packages_is_light(packages):
    assert first_heavy(packages, HEAVY) == ""


def test_episodes_never_load_torch(modules):
    names = [name for name in modules if name.startswith("epibatch.episodes")]
    assert first_heavy(names, ["torch", "matplotlib"]) == ""


def test_episode_classes_load_no_torch():
    code = "from epibatch import SingleAgentEpisode, VectorEpisodes; from epibatch.core import Columns\n"
    code += f"import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_measure_sees_what_is_loaded():
    assert first_heavy(["json", "statistics"], ["fractions"]) == "statistics"


def test_promised_names_resolve(package_name):
    loaded = importlib.import_module(package_name)
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert set(loaded.__all__) <= set(dir(loaded))


def test_unknown_names_are_attribute_errors(package_name):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(package_name).no_such_name
