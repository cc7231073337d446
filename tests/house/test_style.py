"""Public names are documented. (ruff refuses asserts and unfinished work in the package.)"""

from __future__ import annotations

import ast
import importlib
import inspect


def undocumented(package):
    """The public classes, functions and methods of a package that have no docstring, inherited ones included."""
    loaded = importlib.import_module(package)
    for name in loaded.__all__:
        public = getattr(loaded, name)
        if not (inspect.isclass(public) or inspect.isfunction(public)):
            continue
        if not inspect.getdoc(public):
            yield name
        for method, kind in vars(public).items() if inspect.isclass(public) else ():
            is_method = inspect.isfunction(kind) or isinstance(kind, (property, classmethod, staticmethod))
            if is_method and not method.startswith("_") and not inspect.getdoc(getattr(public, method)):
                yield f"{name}.{method}"


def test_public_names_are_documented(package_name):
    assert list(undocumented(package_name)) == []


def test_modules_say_what_they_are(sources):
    assert [name for name, source in sources.items() if not ast.get_docstring(source.tree)] == []


def test_tests_have_no_packages(repository):
    assert list((repository / "tests").rglob("__init__.py")) == []
