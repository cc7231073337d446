from __future__ import annotations

import ast

import pytest

from epibatch.porting.scopes import nodes_in_scopes, own_names


@pytest.mark.parametrize(
    "source",
    [
        "def f(x, /, *ray): return ray",
        "def f(*, ray=1): return ray",
        "lambda **ray: ray",
        "def f():\n  ray = 1\n  def g(): return ray",
        "def f():\n  with a as ray: ray",
        "def f():\n  try: a\n  except E as ray: ray",
        "def f():\n  def ray(): pass\n  ray",
        "{ray: 1 for ray in a if ray}",
        "[b for a in c for ray in a if ray]",
    ],
)
def test_names_of_ones_own_are_hidden(source):
    loads = _loads(source)
    assert loads and all("ray" in hidden for hidden in loads)


@pytest.mark.parametrize(
    "source",
    [
        "ray",
        "def f(a=ray): pass",
        "@ray\ndef f(ray): pass",
        "def f(ray): pass\nray",
        "def f():\n  global ray\n  ray = 1\n  ray",
        "def f():\n  import ray.x\n  ray",
        "[a for a in ray]",
        "class A:\n  ray = 1\n  def f(self): return ray",
    ],
)
def test_others_are_not(source):
    loads = _loads(source)
    assert loads and not any("ray" in hidden for hidden in loads)


def _loads(source):
    nodes = nodes_in_scopes(ast.parse(source))
    return [hidden for node, hidden in nodes if isinstance(node, ast.Name) and node.id == "ray" and _is_load(node)]


def _is_load(node):
    return isinstance(node.ctx, ast.Load)


def test_every_node_comes_once():
    tree = ast.parse("def f(a, *b, c=1): return [d for d in a if d]\nclass G: h = lambda i: (i, j := i)\n")
    leaf = (ast.comprehension, ast.expr_context)  # contexts are shared objects; a comprehension's parts come instead
    expected = [id(node) for node in ast.walk(tree) if not isinstance(node, leaf)]
    found = [id(node) for node, _ in nodes_in_scopes(tree) if not isinstance(node, leaf)]
    assert sorted(found) == sorted(expected)


def test_what_a_scope_binds_and_shares():
    own, shared = own_names(ast.parse("import a.b, c as d\ne = 1\nfor f in g: pass\ndef h(i): j = 1").body)
    assert own == {"e", "f", "h"} and shared == {"a", "d"}
