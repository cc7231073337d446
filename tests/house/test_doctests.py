"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import importlib.util

import pytest

FEWEST_MODULES = 30
FEWEST_EXAMPLES = 30
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NOT_IMPORTABLE = {"epibatch.__main__"}
NEEDED = {"epibatch.interop.rllib": "ray"}  # package -> what its modules and their examples need


def examples_in(name):
    """The docstrings of a module that hold examples."""
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]


def lacks_something(name):
    """Whether a module needs something that is not installed."""
    needed = [what for package, what in NEEDED.items() if f"{name}.".startswith(f"{package}.")]
    return any(importlib.util.find_spec(what) is None for what in needed)


def test_docstring_examples(module_name):
    if module_name in NOT_IMPORTABLE:
        return
    if lacks_something(module_name):
        pytest.skip("it needs an extra that is not installed")
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    for example in examples_in(module_name):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_none_went_missing(modules):
    names = [name for name in modules if name not in NOT_IMPORTABLE and not lacks_something(name)]
    assert len(names) >= FEWEST_MODULES
    assert sum(len(examples_in(name)) for name in names) >= FEWEST_EXAMPLES
