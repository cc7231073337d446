from __future__ import annotations

import ast
import re
import shutil
import subprocess
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epibatch.core.errors import PortingError
from epibatch.porting import PortedSource, port_source
from epibatch.porting.offered_names import offered_names

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


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        assert name in offered_names(module) or offered_names(f"{module}.{name}") is not None
    for left in ported.leftovers:
        leaf = left.name.rpartition(".")[2]
        assert leaf in text.split("\n")[left.line - 1]
        assert leaf in "\n".join(ported.text.split("\n")[left.line_after - 1 :])


@pytest.mark.skipif(not shutil.which("patch"), reason="no program to apply diffs with")
@settings(max_examples=40, deadline=None)
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


def test_lines_of_what_is_left_before_and_after():
    text = "from ray.rllib.core import Columns, Nothing\nimport ray\n\nray.init()\n"
    ported = port_source(text)
    assert ported.text.split("\n")[:2] == ["from epibatch.core import Columns", "from ray.rllib.core import Nothing"]
    assert [(left.line, left.line_after, left.name) for left in ported.leftovers] == [
        (1, 2, "ray.rllib.core.Nothing"),
        (4, 5, "ray.init"),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import ray\n", ["ray"]),
        ("import ray\nray.init()", ["ray.init"]),
        ("import ray; ray.init()", ["ray.init"]),
        ("import ray\nx = 'ray.rllib.core.Columns'", ["ray", "ray.rllib.core.Columns"]),
        ("from ray import tune\n", ["ray.tune"]),
        ("from ray import tune, air\ntune.run()", ["ray.air", "ray.tune.run"]),
        ("import ray.rllib.core\nray.rllib.core.Columns", ["ray.rllib.core.Columns"]),
        ("from ray.rllib.connectors.common import *\nAgentToModuleMapping, NumpyToTensor", []),
        ("from .ray import core\nfrom . import ray\n", []),
        ("from __future__ import annotations\nx: 'int' = 1", []),
        ("", []),
    ],
)
def test_what_is_left(text, names):
    found = [left.name.removeprefix("ray.rllib.connectors.common.") for left in port_source(text).leftovers]
    assert sorted(found) == names


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("", "not used below: delete it (no such name in epibatch.core)"),
        ("x = Nothing\n", "no such name in epibatch.core"),
        ("def f(x: 'list[Nothing]'): pass\n", "no such name in epibatch.core"),
        ("__all__ = ['Nothing']\n", "no such name in epibatch.core"),
        (f'"""Nothing {"at all " * 40}"""\n', "not used below: delete it (no such name in epibatch.core)"),
    ],
)
def test_a_name_that_is_imported_and_not_used_can_go(rest, said):
    (left,) = port_source(f"from ray.rllib.core import Nothing\n{rest}").leftovers
    assert left.reason == said


def test_nothing_to_port_gives_the_same_object_of_text_and_no_diff():
    text = "import numpy as np\n"
    assert port_source(text) == PortedSource(text, text, 0, ())
    assert port_source(text).diff() == ""


def test_a_byte_order_mark_and_old_newlines_stay():
    assert port_source("import ray.rllib.core as c\rx = 1\r").text == "import epibatch.core as c\rx = 1\r"
    text = "if 1:\r    from ray.rllib.core import (Columns,\r       Nothing)\r"
    assert port_source(text).text == (
        "if 1:\r    from epibatch.core import Columns\r    from ray.rllib.core import Nothing\r"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print 'hello'\n", r"mine\.py, line 1\n.*\n.*Missing parentheses"),
        ("x = 1\n  y = 2\n", r"mine\.py, line 2"),
        ("x = '\0'", "null byte|NUL"),
        ("(" * 1000, "mine.py"),
    ],
)
def test_what_is_no_python(text, said):
    with pytest.raises(PortingError, match=f"(?s){said}.*Python 3 first"):
        port_source(text, "mine.py")


def test_warnings_about_somebody_elses_strings_are_kept_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert port_source("x = '\\d'\nimport ray.rllib.core as c\n").imports == 1


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
        (9, "learners(num_gpus_per_learner=...)"),
    ]
    assert "from epibatch.env_runner.multi_agent_env import make_multi_agent" in ported.text
    assert port_source(ported.text).leftovers == ported.leftovers
    assert port_source(CONFIGURED.partition("config = ")[2]).leftovers == (), "no import says what config is"
