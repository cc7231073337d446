from __future__ import annotations

import ast

import pytest

from epibatch.porting.import_statements import port_from_import, port_plain_import

TABLE = [
    ("import ray.rllib.connectors.connector_v2", "import epibatch.connectors.connector_v2", ()),
    ("import ray.rllib.utils.numpy as rnp", "import epibatch.core.spaces as rnp", ()),
    ("import  os ,  ray.rllib.core.columns  as  c", "import  os ,  epibatch.core.columns  as  c", ()),
    ("import ray, os", "import ray, os", (0,)),
    ("import os, ray.rllib.policy as p, ray.rllib.core", "import os, ray.rllib.policy as p, epibatch.core", (1,)),
    ("import ray.rllib.core as ray", "import epibatch.core as ray", ()),
    ("import ray . rllib . core", "import epibatch.core", ()),
    ("import \\\n    ray.rllib.core", "import \\\n    epibatch.core", ()),
    ("import raytracer, os.path as p", "import raytracer, os.path as p", ()),
    (
        "from ray.rllib.connectors.connector_v2 import ConnectorV2",
        "from epibatch.connectors.connector_v2 import ConnectorV2",
        (),
    ),
    ("from  ray.rllib.core  import  Columns as  C", "from  epibatch.core  import  Columns as  C", ()),
    ("from ray.rllib.core import (Columns)", "from epibatch.core import (Columns)", ()),
    (
        "from ray.rllib.core import (  # these\n    Columns,  # names\n    # and\n    DEFAULT_MODULE_ID as M\n)",
        "from epibatch.core import (  # these\n    Columns,  # names\n    # and\n    DEFAULT_MODULE_ID as M\n)",
        (),
    ),
    (
        "from ray.rllib.core import Columns, \\\n  ALL_MODULES",
        "from epibatch.core import Columns, \\\n  ALL_MODULES",
        (),
    ),
    ("from ray.rllib.core import *", "from epibatch.core import *", ()),
    ("from ray.rllib.policy import *", "from ray.rllib.policy import *", (0,)),
    ("from ray import rllib", "from ray import rllib", (0,)),
    ("from ray.rllib.core import columns", "from epibatch.core import columns", ()),
    ("from ray.rllib.utils import numpy", "from epibatch.core import spaces as numpy", ()),
    ("from ray.rllib.utils import numpy as n", "from epibatch.core import spaces as n", ()),
    (
        "from ray.rllib.algorithms.callbacks import DefaultCallbacks",
        "from epibatch.env_runner.callbacks import RLlibCallback as DefaultCallbacks",
        (),
    ),
    (
        "from ray.rllib.core import Columns, Nothing, ALL_MODULES as A",
        "from epibatch.core import Columns, ALL_MODULES as A\nfrom ray.rllib.core import Nothing",
        (1,),
    ),
    (
        "from ray.tune.registry import register_env, get_trainable_cls",
        "from epibatch.core.registry import register_env\n"
        "from epibatch.algorithms.algorithm_classes import get_trainable_cls",
        (),
    ),
    (
        "from ray.rllib.core import (  # head\n    Columns,  # first\n\n    # above\n    Nothing\n    # last\n)",
        "from epibatch.core import (  # head\n    Columns,  # first\n)\n"
        "from ray.rllib.core import (\n    # above\n    Nothing,\n    # last\n)",
        (1,),
    ),
    (
        "from ray.rllib.core import (\n    Columns,\n    Nothing,\n)",
        "from epibatch.core import Columns\nfrom ray.rllib.core import Nothing",
        (1,),
    ),
]


def port(source, before="", behind=""):
    (node,) = ast.parse(source).body
    if isinstance(node, ast.Import):
        return port_plain_import(node, source)
    return port_from_import(node, source, before, behind)


@pytest.mark.parametrize(("source", "text", "missing"), TABLE, ids=[row[0].split("\n")[0] for row in TABLE])
def test_table(source, text, missing):
    ported = port(source)
    assert (ported.text, ported.missing) == (text, missing)
    ast.parse(text)


def bound(source):
    """Every (module, name, name it is bound to) that statements import."""
    return {
        (getattr(node, "module", None), alias.name, alias.asname)
        for node in ast.parse(source).body
        for alias in node.names
    }


def test_a_split_loses_no_name_and_says_where_the_rest_is():
    ported = port("from ray.rllib.core import (\n    Nothing, Columns as C,\n    Neither, ALL_MODULES\n)")
    assert bound(ported.text) == {
        ("ray.rllib.core", "Nothing", None),
        ("ray.rllib.core", "Neither", None),
        ("epibatch.core", "Columns", "C"),
        ("epibatch.core", "ALL_MODULES", None),
    }
    rows = ported.text.split("\n")
    assert ported.missing == (0, 2) and {rows[ported.lines[position]] for position in ported.missing} == {
        "from ray.rllib.core import Nothing, Neither"
    }


def test_names_that_are_left_over_several_lines_have_their_own():
    ported = port("from ray.rllib.core import (  # all\n    # no\n    Nothing,\n    Columns,\n    Neither,  # nor\n)")
    rows = ported.text.split("\n")
    assert [rows[ported.lines[position]] for position in ported.missing] == ["    Nothing,", "    Neither,  # nor"]


@pytest.mark.parametrize(("before", "behind"), [("if 1: ", ""), ("", "; x = 1"), ("x; ", "  # noqa"), (" ", " ; x")])
def test_a_split_beside_other_statements_goes_on_the_same_line(before, behind):
    ported = port("from ray.rllib.core import Columns, Nothing", before, behind)
    assert ported.text == "from epibatch.core import Columns; from ray.rllib.core import Nothing"


@pytest.mark.parametrize("indent", ["    ", "\t"])
def test_a_split_keeps_the_indentation(indent):
    ported = port("from ray.rllib.core import Columns, Nothing", indent)
    assert ported.text == f"from epibatch.core import Columns\n{indent}from ray.rllib.core import Nothing"


@pytest.mark.parametrize(("comment", "repeated"), [("  # noqa: F401", True), ("  # the names", False)])
def test_comments_for_tools_go_with_each_part(comment, repeated):
    first, second = port("from ray.rllib.core import Columns, Nothing", behind=comment).text.split("\n")
    assert first.endswith(comment) == repeated
    assert not second.endswith(comment)  # there it stands already
