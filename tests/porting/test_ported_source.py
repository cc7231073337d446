from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys

import pytest
from fixture_cases import random_examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.core.errors import MissingExtraError, PortingError
from epibatch.porting import PortedSource, port_source

# ------------------------------------------------------------------------------------- random modules to port

MODULES = {
    "ray.rllib.core": ["Columns", "DEFAULT_MODULE_ID", "COMPONENT_LEARNER", "columns"],
    "ray.rllib.connectors.connector_v2": ["ConnectorV2"],
    "ray.rllib.connectors.learner": ["GeneralAdvantageEstimation", "NoSuchPiece", "AddOneTsToEpisodesAndTruncate"],
    "ray.tune.registry": ["register_env", "get_trainable_cls", "register_trainable"],
    "ray.rllib.policy.sample_batch": ["SampleBatch", "DEFAULT_POLICY_ID"],
    "ray.rllib.utils": ["numpy", "override", "spaces"],
    "ray": ["tune", "init"],
    "raytracer": ["Columns", "init"],
    "os.path": ["join", "split"],
}
COMMENTS = ["", "  # ä comment", "  # noqa: F401", "#x"]
CONTEXTS = ["{0}", "def f():\n    x = 1\n    {1}", "try:\n    {1}\nexcept ImportError:\n    pass", "if 1: {0}"]
CONTEXTS += [
    "é = 'ü'; {0}",
    "{0}; y = '''\n  import ray\n'''",
    "if TYPE_CHECKING:\n        {2}",
    "class A:\n\tb = 1\n\t{3}",
]
OTHERS = ["x = 'import ray.rllib.core'", "# from ray.rllib.core import Columns", "", "print(  'ä' )", "y = (1,\n  2)"]
INDENTS = ["", "    ", "        ", "\t"]


@st.composite
def import_statements(draw):
    """A function of the indentation that gives one import statement, formatted in some way."""
    module = draw(st.sampled_from(sorted(MODULES)))
    names = draw(st.lists(st.sampled_from(MODULES[module]), min_size=1, max_size=4))
    names = [f"{name} as b{i}" if draw(st.booleans()) else name for i, name in enumerate(names)]
    comments = [draw(st.sampled_from(COMMENTS)) for _ in range(len(names) + 2)]
    form = draw(st.sampled_from(["plain", "dotted", "line", "backslash", "parenthesis", "lines"]))

    def statement(indent):
        if form == "plain":
            return f"import  {module} as m, os"
        if form == "dotted":
            return f"import {module}"
        if form == "line":
            return f"from {module} import {', '.join(names)}"
        if form == "backslash":
            return f"from {module} \\\n{indent}   import {f', {chr(92)}{chr(10)}  '.join(names)}"
        if form == "parenthesis":
            return f"from {module} import ({', '.join(names)})"
        rows = [f"{indent}    {name},{comment}" for name, comment in zip(names, comments)]
        return "\n".join([f"from {module} import ({comments[-1]}", *rows, f"{indent}# ö{comments[-2]}", f"{indent})"])

    return statement


@st.composite
def modules(draw):
    blocks = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            blocks.append(draw(st.sampled_from(OTHERS)))
        else:
            context, statement = draw(st.sampled_from(CONTEXTS)), draw(import_statements())
            blocks.append(context.format(*map(statement, INDENTS)) + draw(st.sampled_from(COMMENTS[:3])))
    text = "\n".join(blocks) + draw(st.sampled_from(["", "\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


def without_imports(text):
    """The program without imports of ray, epibatch and their like, as data."""

    class Drop(ast.NodeTransformer):
        def visit_Import(self, node):
            return None

        visit_ImportFrom = visit_Import

    return ast.dump(Drop().visit(ast.parse(text)))


def lines_beside_imports(text):
    """Every line that no import statement stands on."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    taken = {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}
    return [line for number, line in enumerate(re.split(r"(?<=\n)", text), 1) if number not in taken]


def bound_names(text):
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    aliases = [(node, alias) for node in nodes for alias in node.names]
    return sorted(
        alias.asname or alias.name
        for node, alias in aliases
        if alias.asname or isinstance(node, ast.ImportFrom)  # `import a.b` binds the first part of another path now
    )


def promised(text):
    """Every (module, name) of ours that a module imports."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return [(node.module, alias.name) for node in nodes for alias in node.names if node.module.startswith("epibatch")]


@settings(
    max_examples=random_examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(modules())
def test_only_imports_change_and_only_once(text):
    ported = port_source(text)
    again = port_source(ported.text)
    assert again.text == ported.text and again.imports == 0
    assert {left.name for left in again.leftovers} == {left.name for left in ported.leftovers}
    assert without_imports(ported.text) == without_imports(text)
    assert lines_beside_imports(ported.text) == lines_beside_imports(text)
    assert bound_names(ported.text) == bound_names(text)
    if "\n" in ported.text:  # an import over several lines may become one line, without any line end
        assert ("\r\n" in text) == ("\r\n" in ported.text)
    assert "\r" not in ported.text.replace("\r\n", "")
    comments = re.findall(r"#[^\r\n]*", text)
    assert [comment for comment in comments if comment not in ported.text] == []
    for module, name in promised(ported.text):
        assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
    for left in ported.leftovers:
        leaf = left.name.rpartition(".")[2]
        assert leaf in text.split("\n")[left.line - 1]
        assert leaf in "\n".join(ported.text.split("\n")[left.line_after - 1 :])


@pytest.mark.skipif(not shutil.which("patch"), reason="no program to apply diffs with")
@settings(max_examples=random_examples(10), deadline=None)
@given(modules())
def test_the_diff_is_what_patch_applies(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("patch")
    ported = port_source(text)
    (folder / "module.py").write_bytes(text.encode())
    diff = ported.diff("module.py")
    assert bool(diff) == (ported.text != text)
    if diff:
        command = ["patch", "--binary", "-p0", "-s"]
        subprocess.run(command, input=diff.encode(), cwd=folder, check=True)
    assert (folder / "module.py").read_bytes() == ported.text.encode()


# ------------------------------------------------------------------------------------------------ cases


IMPORTS = [
    ("import ray.rllib.utils.numpy as rnp", "import epibatch.core.spaces as rnp", []),
    ("import os, ray.rllib.policy as p, ray.rllib.core", "import os, ray.rllib.policy as p, epibatch.core", ["policy"]),
    ("import ray.rllib.core as ray", "import epibatch.core as ray", []),
    ("from .ray import core\nfrom . import ray", "from .ray import core\nfrom . import ray", []),
    ("from ray.rllib.policy import *", "from ray.rllib.policy import *", ["*"]),
    ("from ray.rllib.core import *", "from epibatch.core import *", []),
    (
        "from ray.rllib.algorithms.callbacks import DefaultCallbacks",
        "from epibatch.env_runner.callbacks import RLlibCallback as DefaultCallbacks",
        [],
    ),
    (
        "from ray.tune.registry import register_env, get_trainable_cls",
        "from epibatch.core.registry import register_env\n"
        "from epibatch.algorithms.algorithm_classes import get_trainable_cls",
        [],
    ),
    (
        "from ray.rllib.core import (  # head\n    Columns,  # first\n\n    # above\n    Nothing\n    # last\n)",
        "from epibatch.core import (  # head\n    Columns,  # first\n)\n"
        "from ray.rllib.core import (\n    # above\n    Nothing,\n    # last\n)",
        ["Nothing"],
    ),
    (
        "from ray.rllib.core import (\n    Nothing, Columns as C,\n    Neither, ALL_MODULES\n)",
        "from ray.rllib.core import Nothing, Neither\nfrom epibatch.core import Columns as C, ALL_MODULES",
        ["Nothing", "Neither"],
    ),
    (  # beside other statements the parts go on the same line
        "if 1: from ray.rllib.core import Columns, Nothing",
        "if 1: from epibatch.core import Columns; from ray.rllib.core import Nothing",
        ["Nothing"],
    ),
    (
        "x; from ray.rllib.core import Columns, Nothing  # noqa",
        "x; from epibatch.core import Columns; from ray.rllib.core import Nothing  # noqa",
        ["Nothing"],
    ),
    (  # comments for tools go with each part, others with the last
        "from ray.rllib.core import Columns, Nothing  # noqa: F401",
        "from epibatch.core import Columns  # noqa: F401\nfrom ray.rllib.core import Nothing  # noqa: F401",
        ["Nothing"],
    ),
]


@pytest.mark.parametrize(("source", "text", "missing"), IMPORTS, ids=[row[0].split("\n")[0] for row in IMPORTS])
def test_imports(source, text, missing):
    ported = port_source(source)
    assert ported.text == text
    assert sorted(left.name.rpartition(".")[2] for left in ported.leftovers) == sorted(missing)


USES = [
    ("import ray\n", ["1 ray"]),
    ("import ray\nray.init(num_cpus=2)", ["2 ray.init"]),
    ("import ray\nx = 'ray.rllib.core.Columns'", ["1 ray", "2 ray.rllib.core.Columns"]),
    ("from ray import tune\n", ["1 ray.tune"]),
    ("from ray import tune, air\ntune.run()", ["1 ray.air", "2 ray.tune.run"]),
    ("import ray.rllib.utils.numpy as n\nn.one_hot\nn.softmax", ["3 ray.rllib.utils.numpy.softmax"]),
    ("from ray.rllib.policy import policy as p\np.Policy", ["1 ray.rllib.policy.policy"]),
    ("from ray.rllib.core import columns\ncolumns.Columns", []),
    (
        "from ray import air, tune\ntune.Tuner('PPO', run_config=air.RunConfig()).fit()",
        ["2 ray.air.RunConfig", "2 ray.tune.Tuner"],
    ),
    (
        "from ray.rllib import SampleBatch as SB\nSB.CUR_OBS, SB.concat_samples, SB.PREV_ACTIONS",
        ["1 ray.rllib.SampleBatch", "2 ray.rllib.SampleBatch.CUR_OBS"],
    ),
    ('"""ray.rllib.core"""\ntext = "x-ray.y"', []),
]


@pytest.mark.parametrize(("source", "left"), USES)
def test_uses_that_imports_do_not_reach(source, left):
    assert [f"{each.line} {each.name}" for each in port_source(source).leftovers] == left


@pytest.mark.parametrize(
    "source",
    [
        "def f(x, /, *ray): return ray.x",
        "import ray\ndef f():\n  ray = 1\n  def g(): return ray.x",
        "import ray\ndef f():\n  with a as ray: ray.x",
        "def f():\n  try: a\n  except E as ray: ray.x",
        "{ray.x: 1 for ray in a if ray.y}",
    ],
)
def test_other_things_named_ray(source):
    assert [left.name for left in port_source(source).leftovers if left.name != "ray"] == []


@pytest.mark.parametrize(
    "source",
    [
        "ray.x",
        "def f(a=ray.x): pass",
        "import ray\ndef trace(ray): return ray.origin\nray.x",
        "import ray\n@ray.x\ndef f(ray): pass",
        "import ray\ndef f():\n  global ray\n  ray = 1\n  ray.x",
        "import ray\n[ray.y for ray in ray.x]",
        "import ray\nclass A:\n  ray = 1\n  def f(self): return ray.x",
    ],
)
def test_ray_beside_other_things_of_its_name(source):
    assert [left.name for left in port_source(source).leftovers] == ["ray.x"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("from ray import tune\ntune.register_env", "used as an attribute: write epibatch.core.registry.register_env"),
        ("x: 'ray.rllib.algorithms.ppo:PPO'", "used in a string: write epibatch.algorithms.ppo.PPO"),
        (
            "ray.rllib.policy.sample_batch.SampleBatch.CUR_OBS",
            "used as an attribute: write epibatch.core.columns.Columns.OBS",
        ),
    ],
)
def test_what_to_write_instead(source, reason):
    assert port_source(source).leftovers[-1].reason == reason


def test_names_that_only_a_star_can_have_brought():
    source = """
from ray.rllib.connectors.common import *
import a.b, c as d
from e import f as g
def h(i, *j, **k): return i, j, k, One
class L: pass
for m, n in o: pass
try: Two
except ValueError as p: p
print(a, d, g, h, L, m, n, __name__, __file__, One, [q for q in Three], NumpyToTensor)
"""
    left = [(each.line, each.name.rpartition(".")[2]) for each in port_source(source).leftovers]
    assert left == [(5, "One"), (7, "o"), (8, "Two"), (10, "Three")]


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("", "not used below: delete it (no such name in epibatch.core)"),
        ("def f(x: 'list[Nothing]'): pass\n", "no such name in epibatch.core"),
        ("__all__ = ['Nothing']\n", "no such name in epibatch.core"),
        (f'"""Nothing {"at all " * 40}"""\n', "not used below: delete it (no such name in epibatch.core)"),
    ],
)
def test_a_name_that_is_imported_and_not_used_can_go(rest, said):
    (left,) = port_source(f"from ray.rllib.core import Nothing\n{rest}").leftovers
    assert left.reason == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print 'hello'\n", r"mine\.py, line 1\n.*\n.*Missing parentheses"),
        ("x = '\0'", "null byte|NUL"),
    ],
)
def test_what_is_no_python(text, said):
    with pytest.raises(PortingError, match=f"(?s){said}.*Python 3 first"):
        port_source(text, "mine.py")


def test_nothing_to_port_old_newlines_and_strings_that_python_warns_of():
    text = "import numpy as np\n"
    assert port_source(text) == PortedSource(text, text, 0, ()) and port_source(text).diff() == ""
    text = "if 1:\r    from ray.rllib.core import (Columns,\r       Nothing)\r"
    split = "if 1:\r    from epibatch.core import Columns\r    from ray.rllib.core import Nothing\r"
    assert port_source(text).text == split
    assert port_source("x = '\\d'\nimport ray.rllib.core as c\n").imports == 1  # warnings are errors here


CONFIGURED = """\
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import make_multi_agent

config = PPOConfig().api_stack(enable_rl_module_and_learner=True).framework("torch")
config.training(lr=0.1, model={"fcnet_hiddens": [8]}).training(
    lr_schedule=[[0, 0.1]],
    use_critic=True,
)
config.resources(num_gpus=1).learners(num_gpus_per_learner=1).framework("tf2")
scheduler.training(lr_schedule=None)
"""


def test_calls_of_a_config_that_fail_here_are_left():
    ported = port_source(CONFIGURED)
    assert [(left.line, left.name) for left in ported.leftovers] == [
        (6, "training(lr_schedule=...)"),
        (7, "training(use_critic=...)"),
        (9, "framework(...)"),
    ]
    assert "from epibatch.env_runner.multi_agent_env import make_multi_agent" in ported.text
    assert port_source(ported.text).leftovers == ported.leftovers
    assert port_source(CONFIGURED.partition("config = ")[2]).leftovers == (), "no import says what config is"


def test_a_missing_extra_is_named_once(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "libcst", None)
    monkeypatch.delitem(sys.modules, "epibatch.porting.import_rewriter", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        port_source("import ray.rllib.core\n")
    assert caught.value.do == "pip install 'epibatch[port]'"
    files = [tmp_path / name for name in ("a.py", "b.py")]
    for file in files:
        file.write_text("x = 1\n")
    result = CliRunner().invoke(app, ["port", *map(str, files)])
    assert result.exit_code == 2 and result.stderr.count("pip install 'epibatch[port]'") == 1
