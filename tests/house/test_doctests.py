"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib

FEWEST_MODULES = 30
FEWEST_EXAMPLES = 30
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NOT_IMPORTABLE = {"epibatch.__main__"}


def examples_in(name):
    """The docstrings of a module that hold examples."""
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]


def test_docstring_examples(module_name):
    if module_name in NOT_IMPORTABLE:
        return
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    for example in examples_in(module_name):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_none_went_missing(modules):
    names = [name for name in modules if name not in NOT_IMPORTABLE]
    assert len(names) >= FEWEST_MODULES
    assert sum(len(examples_in(name)) for name in names) >= FEWEST_EXAMPLES
