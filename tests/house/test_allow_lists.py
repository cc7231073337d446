"""Rules that the code still breaks in places: the places are listed, and the lists only shrink."""

from __future__ import annotations

import ast

import pytest

import rules
from allow_lists import LISTS, AllowList, problems, shrunk
from sources import Source, only_imports


def sources_of(**texts):
    """Modules of a small package; `__` in a name is a dot, and a name that ends with it is a package."""
    found = {}
    for name, text in texts.items():
        module = ".".join(["epibatch", *name.strip("_").split("__")])
        path = module.replace(".", "/") + ("/__init__.py" if name.endswith("__") else ".py")
        found[module] = Source(path, module, ast.parse(text))
    return found


@pytest.mark.parametrize("allowed", LISTS, ids=lambda allowed: allowed.name)
def test_the_code_keeps_to_the_list(allowed, sources):
    found = problems(allowed, allowed.path.read_text(encoding="utf-8"), allowed.places(sources))
    assert not found, "\n" + "\n".join(found)


def test_no_import_cycles(sources):
    assert rules.import_cycles(sources) == {}


@pytest.mark.parametrize(
    ("texts", "cycle"),
    [
        ({"a": "from .b import x", "b": "def f():\n    from .c import x", "c": "import epibatch.a"}, ["a", "b", "c"]),
        ({"a": "from .p import x", "p__": "if 1:\n    from .b import x", "p__b": "from ..a import y"}, ["a", "p.b"]),
        ({"a": "from .b import x", "b": "import importlib\nimportlib.import_module('epibatch.a')"}, ["a", "b"]),
        ({"a": "from .b import x", "b": "if TYPE_CHECKING:\n    from .a import y"}, []),
    ],
)
def test_cycles_are_seen(texts, cycle):
    members = [f"epibatch.{name}" for name in cycle]
    assert rules.import_cycles(sources_of(**texts)) == dict.fromkeys(members, members)


@pytest.mark.parametrize(
    ("rule", "text", "wrong"),
    [
        (rules.imports_in_functions, "class C:\n    def f(self):\n        import epibatch.core.b", True),
        (rules.imports_in_functions, "def f():\n    importlib.import_module('epibatch.core.b')", True),
        (rules.imports_in_functions, "from .b import x\ndef f():\n    import torch", False),
        (rules.imports_in_functions, "if TYPE_CHECKING:\n    from .b import x", False),
        (rules.private_attributes, "self.other._rows", True),
        (rules.private_attributes, "make()._rows", True),
        (rules.private_attributes, "super()._rows", False),
        (rules.private_attributes, "def f(self, other): return other._rows == self._rows", False),
        (rules.private_attributes, "class C:\n    _rows: int\nc._rows", False),
    ],
)
def test_places_are_seen(rule, text, wrong):
    assert bool(rule(sources_of(core__="", core__a=text, core__b="x = y = 1"))) is wrong


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        ("def test():\n    from epibatch.episodes import chunk", True),
        ("from epibatch.episodes import (\n    SingleAgentEpisode,\n    chunk,\n)", True),
        ("from epibatch.core.errors import SpaceError\nfrom epibatch import cli", False),
        ("from epibatch.episodes.single_agent_episode import SingleAgentEpisode", False),
    ],
)
def test_internals_in_tests_are_seen(text, internal):
    names = ["episodes__", "episodes__chunk", "episodes__single_agent_episode", "cli", "core__errors"]
    test = Source("tests/test_a.py", "test_a", ast.parse(only_imports(f'"""Text."""\nimport numpy\n\n{text}\n')))
    found = rules.internals_in_tests(sources_of(**dict.fromkeys(names, "")), [test])
    places = [f"line {4 + text.startswith('def')}: epibatch.episodes.chunk"]
    assert found == ({"tests/test_a.py": places} if internal else {})


def private(**counts):
    return {f"{name}.py": ["line 1: other._x"] * count for name, count in counts.items()}


ALLOWED = AllowList("private_attributes", "use public names", rules.private_attributes)


@pytest.mark.parametrize(
    ("text", "places", "message", "new"),
    [
        ("a.py 2\n", private(a=1), "private_attributes.txt: replace the line `a.py 2` by `a.py 1`", "a.py 1\n"),
        ("a.py 2\n", private(), "private_attributes.txt: delete the line `a.py 2`", ""),
        ("a.py 2\n", private(a=3), "a.py: 2 allowed, 3 found; use public names:", None),
        ("a.py 2\nb.py 1\n", private(a=3), "a.py: 2 allowed, 3 found; use public names:", "a.py 3\n"),
        ("a.py 2\n", private(moved=2), "private_attributes.txt: delete the line `a.py 2`", "moved.py 2\n"),
        ("b.py 1\na.py 3\na.py 2\n", private(a=2, b=1), "lines are doubled or not sorted", "a.py 2\nb.py 1\n"),
        ("a.py 2\nb.py 1\n", private(b=1, a=2), None, "a.py 2\nb.py 1\n"),
    ],
)
def test_a_difference_names_the_line_and_a_list_never_grows(text, places, message, new):
    found = problems(ALLOWED, text, places)
    assert (message in found[0] and "tests/house/allow_lists.py" in found[-1]) if message else found == []
    assert shrunk(ALLOWED, text, places) == new
