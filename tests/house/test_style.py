"""Short functions, no asserts for users, documented names."""

from __future__ import annotations

import ast
import re

import pytest

from sources import FUNCTIONS

LONGEST_FUNCTION = 40
UNFINISHED = re.compile("|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X")))


def body_length(function):
    """Lines of a function's body, its docstring not counted."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def style_faults(source, tree):
    """What breaks the rules in one module's source, as (line, sentence)."""
    for number, line in enumerate(source.splitlines(), 1):
        if UNFINISHED.search(line):
            yield number, "unfinished work"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "an assert in the package: raise a named error"
        elif isinstance(node, FUNCTIONS) and body_length(node) > LONGEST_FUNCTION:
            yield node.lineno, f"{node.name} has {body_length(node)} lines, at most {LONGEST_FUNCTION}"


def name_of(expression):
    """The last name of a base class or decorator: `typing.Generic[T]` -> `Generic`."""
    if isinstance(expression, (ast.Subscript, ast.Call)):
        return name_of(expression.value if isinstance(expression, ast.Subscript) else expression.func)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def classes_in(trees):
    """Class name -> class node, over all modules."""
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def inherits_docstring(cls, method, classes):
    """Whether an ancestor documents the method, or is not ours and so documents itself."""
    for base in map(name_of, cls.bases):
        if base in ("object", "ABC", "Generic", "Protocol"):
            continue
        if base not in classes:
            return True
        own = [node for node in classes[base].body if isinstance(node, FUNCTIONS) and node.name == method]
        if any(ast.get_docstring(node) for node in own) or inherits_docstring(classes[base], method, classes):
            return True
    return False


def undocumented(tree, classes):
    """Public classes, functions and methods without a docstring, as (line, name)."""
    for node in tree.body:
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not is_repeated(node):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            for method in (m for m in node.body if isinstance(m, FUNCTIONS) and not m.name.startswith("_")):
                documented = ast.get_docstring(method) is not None or is_repeated(method)
                if not documented and not inherits_docstring(node, method.name, classes):
                    yield method.lineno, f"{node.name}.{method.name}"


def is_repeated(node):
    """Whether a definition belongs to one documented elsewhere: an overload, a setter, a deleter."""
    return any(name_of(decorator) in ("overload", "setter", "deleter") for decorator in node.decorator_list)


def test_modules_are_in_style(modules, sources):
    faults = [
        f"{name}:{line}: {fault}"
        for name, path in modules.items()
        for line, fault in style_faults(path.read_text(encoding="utf-8"), sources[name].tree)
    ]
    assert faults == []


def test_public_names_are_documented(sources):
    trees = {name: source.tree for name, source in sources.items()}
    classes = classes_in(trees.values())
    missing = [f"{name}:{line}: {what}" for name, tree in trees.items() for line, what in undocumented(tree, classes)]
    assert missing == []


def test_modules_say_what_they_are(sources):
    assert [name for name, source in sources.items() if not ast.get_docstring(source.tree)] == []


def test_tests_have_no_packages(repository):
    assert list((repository / "tests").rglob("__init__.py")) == []


def lines(count):
    return "\n".join(f"    x = {i}" for i in range(count))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (f"def long():\n{lines(41)}", "long has 41 lines, at most 40"),
        (f"class C:\n  def long(self):\n{lines(41)}", "long has 41 lines"),
        ("def f(x):\n    assert x", "an assert in the package"),
        ("x = 1  # TO" + "DO later", "unfinished work"),
    ],
)
def test_faults_are_seen(source, fault):
    ((_, found),) = style_faults(source, ast.parse(source))
    assert fault in found


@pytest.mark.parametrize(
    "source",
    [
        f"def fits():\n{lines(40)}",
        f'def documented():\n    """One.\n\n    Two.\n    """\n{lines(40)}',
    ],
)
def test_good_sources_have_no_faults(source):
    assert list(style_faults(source, ast.parse(source))) == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): pass", ["f"]),
        ("def _f(): pass", []),
        ("class C: pass", ["C"]),
        ('class C:\n    "Doc."\n    def m(self): pass\n    def _p(self): pass\n    def __len__(self): pass', ["C.m"]),
        ('class B:\n    "Doc."\n    def m(self): "Doc."\nclass C(B):\n    "Doc."\n    def m(self): pass', []),
        ('class B:\n    "Doc."\nclass C(B):\n    "Doc."\n    def m(self): pass', ["C.m"]),
        ('class C(torch.nn.Module):\n    "Doc."\n    def forward(self): pass', []),
        ('class C:\n    "Doc."\n    @m.setter\n    def m(self, value): pass', []),
    ],
)
def test_missing_docstrings_are_seen(source, missing):
    tree = ast.parse(source)
    assert [what for _, what in undocumented(tree, classes_in([tree]))] == missing
