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


def test_loaders_are_there(sources):
    assert rules.LOADERS - set(sources) == set(), "take the module out of LOADERS in tests/house/rules.py"


@pytest.mark.parametrize(
    ("texts", "cycle"),
    [
        ({"a": "from .b import x", "b": "from . import a"}, ["a", "b"]),
        ({"a": "from .b import x", "b": "def f():\n    from .c import x", "c": "import epibatch.a"}, ["a", "b", "c"]),
        ({"a": "from .p import x", "p__": "if 1:\n    from .b import x", "p__b": "from ..a import y"}, ["a", "p.b"]),
        ({"a": "from .b import x", "b": "import importlib\nimportlib.import_module('epibatch.a')"}, ["a", "b"]),
        ({"a": "from .b import x", "b": "if TYPE_CHECKING:\n    from .a import y"}, []),
        ({"a": "from .b import x", "b": "if TYPE_CHECKING:\n    pass\nelse:\n    from .a import y"}, ["a", "b"]),
        ({"a": "from .b import x", "b": "from .c import x", "c": "import torch"}, []),
    ],
)
def test_cycles_are_seen(texts, cycle):
    members = [f"epibatch.{name}" for name in cycle]
    assert rules.import_cycles(sources_of(**texts)) == dict.fromkeys(members, members)


def test_cycles_are_the_strongly_connected_components():
    graph = {"a": "b", "b": "ac", "c": "d", "d": "e", "e": "c", "f": "a", "g": "g"}
    assert rules.cycles_of(graph) == [["a", "b"], ["c", "d", "e"]]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f():\n    from .b import x, y", 2),
        ("class C:\n    def f(self):\n        if self:\n            import epibatch.core.b", 1),
        ("def f():\n    importlib.import_module('epibatch.core.b')", 1),
        ("from .b import x, y", 0),
        ("def f():\n    import torch\n    from matplotlib import pyplot", 0),
        ("if TYPE_CHECKING:\n    from .b import x", 0),
    ],
)
def test_imports_in_functions_are_counted_by_package(text, count):
    places = rules.imports_in_functions(sources_of(core__="", core__a=text, core__b="x = y = 1"))
    assert {room: len(found) for room, found in places.items()} == ({"epibatch.core": count} if count else {})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from .p import x", True),
        ("from epibatch.p import x", True),
        ("from .q import x", True),
        ("def f():\n    from .p import x", True),
        ("importlib.import_module(name)", True),
        ("import_module('epibatch.p.b')", True),
        ("from .p.b import x", False),
        ("from .p import b", False),
        ("from .p import own", False),
        ("from collections import OrderedDict", False),
    ],
)
def test_indirect_imports_are_seen(text, wrong):
    modules = sources_of(a=text, p__="from .b import x\nown = 1", p__b="def x(): pass", q="from .p.b import x")
    found = rules.indirect_imports(modules)
    assert ("epibatch/a.py" in found) is wrong
    assert "epibatch/p/__init__.py" not in found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("other._rows", True),
        ("self.other._rows", True),
        ("others[0]._rows", True),
        ("make()._rows", True),
        ("self._rows", False),
        ("super()._rows", False),
        ("def f(self, other): return other._rows == self._rows", False),
        ("class C:\n    _rows: int\nc._rows", False),
        ("class C:\n    def _rows(self): pass\nc._rows()", False),
        ("other.__dict__", False),
        ("named._replace(x=1)", False),
    ],
)
def test_private_attributes_of_other_modules_are_seen(text, wrong):
    assert ("epibatch/a.py" in rules.private_attributes(sources_of(a=text))) is wrong


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        ("from epibatch.episodes.chunk import x", True),
        ("def test():\n    from epibatch.episodes import chunk", True),
        ("from epibatch.episodes import (\n    SingleAgentEpisode,\n    chunk,\n)", True),
        ("import epibatch.episodes.chunk as chunk", True),
        ("from epibatch.episodes import SingleAgentEpisode", False),
        ("from epibatch.core.errors import SpaceError\nfrom epibatch import cli", False),
        ("from epibatch.episodes.single_agent_episode import SingleAgentEpisode", False),
        ("from epibatch.connectors.learner.add_columns import AddColumns", False),
    ],
)
def test_internals_in_tests_are_seen(text, internal):
    single, pieces = "episodes__single_agent_episode", "connectors__learner"
    names = ["episodes__", "episodes__chunk", single, "cli", "core__errors", f"{pieces}__", f"{pieces}__add_columns"]
    test = Source("tests/test_a.py", "test_a", ast.parse(only_imports(f'"""Text."""\nimport numpy\n\n{text}\n')))
    found = rules.internals_in_tests(sources_of(**dict.fromkeys(names, "")), [test])
    places = [f"line {4 + text.startswith('def')}: epibatch.episodes.chunk"]
    assert found == ({"tests/test_a.py": places} if internal else {})


def test_packages_with_an_underscore_are_internal():
    modules = sources_of(connectors__="", connectors___engine__="", connectors__columns__="")
    assert [name for name in modules if not rules.is_public(name, modules)] == ["epibatch.connectors._engine"]


def private(**counts):
    return {f"{name}.py": ["line 1: other._x"] * count for name, count in counts.items()}


ALLOWED = AllowList("private_attributes", "use public names", rules.private_attributes)


@pytest.mark.parametrize(
    ("text", "places", "message"),
    [
        ("a.py 2\n", private(a=1), "private_attributes.txt: replace the line `a.py 2` by `a.py 1`"),
        ("a.py 2\n", private(), "private_attributes.txt: delete the line `a.py 2`"),
        ("a.py 2\n", private(a=3), "a.py: 2 allowed, 3 found; use public names:"),
        ("a.py 2\n", private(a=2, b=1), "b.py: 0 allowed, 1 found"),
        ("b.py 1\na.py 2\n", private(a=2, b=1), "lines are doubled or not sorted"),
        ("a.py 2\na.py 3\n", private(a=2), "lines are doubled or not sorted"),
    ],
)
def test_a_difference_names_the_line(text, places, message):
    first, *_, last = problems(ALLOWED, text, places)
    assert message in first
    assert "tests/house/allow_lists.py" in last


def test_equal_lists_have_no_problems():
    assert problems(ALLOWED, "a.py 2\nb.py 1\n", private(b=1, a=2)) == []


@pytest.mark.parametrize(
    ("text", "places", "new"),
    [
        ("a.py 2\nb.py 1\n", private(a=1), "a.py 1\n"),
        ("a.py 2\n", private(moved=2), "moved.py 2\n"),
        ("a.py 2\nb.py 1\n", private(a=3), "a.py 3\n"),
        ("b.py 1\na.py 3\na.py 2\n", private(a=2, b=1), "a.py 2\nb.py 1\n"),
        ("a.py 2\n", private(a=3), None),
        ("a.py 2\n", private(moved=3), None),
        ("a.py 2\na.py 3\n", private(a=3), None),
    ],
)
def test_the_command_never_lets_a_list_grow(text, places, new):
    assert shrunk(ALLOWED, text, places) == new
