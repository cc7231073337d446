"""The Python blocks of docs/*.md run, and print what stands in the text block right under them.

A python or yaml block whose first line is a comment with nothing but a file's name is that file. In sh blocks
`epibatch new`, `train`, `play`, `inspect`, `record`, `data`, `check` and `port` are run; what `data`, `check` and
`port` print is compared too. A page whose first line is `<!-- needs: MODULE -->` runs where that is installed.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys
import types
from pathlib import Path

import pytest
from fixture_cases import slow_but
from typer.testing import CliRunner

from epibatch.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
LONG = {
    "algorithms", "callbacks", "configuration", "debugging", "environments", "export", "external-environments",
    "getting-started", "images-and-observations", "inspect", "many-environments", "moving-from-cleanrl",
    "moving-from-rsl-rl", "moving-from-sb3", "moving-from-torchrl", "multi-agent", "other-spaces", "own-loop", "pieces",
    "porting", "profiling", "recorded-data", "replay", "rewards-and-columns", "rollout-storage", "run-folder",
    "tutorial-5-own-algorithm", "writing-a-module", "writing-a-piece",
}  # their blocks train or check for seconds  # fmt: skip
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.-]+\.(?:py|yaml))\n")
NEEDS = re.compile(r"\A<!-- needs: ([\w.]+) -->$", re.MULTILINE)
COMMAND = re.compile(r"^epibatch ((?:new|train|play|inspect|record|data|port|check) .*)$", re.MULTILINE)


def blocks_of(text):
    """Blocks to run as (first line, language, source, expected output or None)."""
    fences = list(FENCE.finditer(text))
    for fence, following in zip(fences, [*fences[1:], None]):
        if fence[1] not in ("python", "sh") and not (fence[1] == "yaml" and FILE.match(fence[2])):
            continue
        # Only a text block with nothing but blank lines in between belongs to the Python block.
        belongs = following and following[1] == "text" and not text[fence.end() : following.start()].strip()
        yield text[: fence.start(2)].count("\n"), fence[1], fence[2], following[2] if belongs else None


def run_commands(source):
    """Run the commands of an sh block; returns what `epibatch port` and `check` printed, None without them."""
    printed = None
    for arguments in COMMAND.findall(source):
        result = CliRunner().invoke(app, shlex.split(arguments))
        shows = arguments.startswith(("port ", "check ", "data "))
        assert result.exit_code in ((0, 1) if shows else (0,)), (arguments, result.output)
        if shows:
            printed = (printed or "") + result.output
    return printed


def run_page(path, module):
    """Run a page's blocks in one namespace; returns (line, expected, printed) of those with a text block."""
    outputs = []
    for line, language, source, expected in blocks_of(path.read_text(encoding="utf-8")):
        if file := FILE.match(source):
            Path(file[1]).write_text(source, encoding="utf-8")
            continue
        if language == "sh":
            shown = run_commands(source)
            if expected is not None and shown is not None:
                outputs.append((line, expected, shown))
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + source, str(path), "exec"), module.__dict__)
        if expected is not None:
            outputs.append((line, expected, printed.getvalue()))
    return outputs


@pytest.mark.parametrize(
    "path",
    slow_but([path for path in PAGES if path.stem not in LONG], PAGES),
    ids=lambda path: path.relative_to(REPOSITORY).as_posix(),
)
def test_code_blocks_run(path, tmp_path, monkeypatch):
    if needed := NEEDS.match(path.read_text(encoding="utf-8")):
        pytest.importorskip(needed[1], exc_type=ImportError)
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a script or a notebook in that folder
    module = types.ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, "docs_page", module)  # dataclasses look their module up
    for line, expected, printed in run_page(path, module):
        assert printed == expected, f"{path.name}:{line}"


def test_blocks_are_found():
    text = "```python\na = 1\nprint(a)\n```\n\n```text\n1\n```\nt\n```python\nb = a\n```\nand\n\n```text\n2\n```\n"
    text += "```yaml\nleft: out\n```\n```yaml\n# in.yaml\n```\n```sh\nls\n```\n"
    assert list(blocks_of(text)) == [
        (1, "python", "a = 1\nprint(a)\n", "1\n"),
        (10, "python", "b = a\n", None),
        (21, "yaml", "# in.yaml\n", None),
        (24, "sh", "ls\n", None),
    ]


def test_files_are_written_and_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("```yaml\n# room.yaml\nenv: 1\n```\n```sh\nepibatch train missing.yaml\n```\n")
    with pytest.raises(AssertionError, match=r"missing\.yaml"):
        run_page(Path("page.md"), types.ModuleType("page"))
    assert Path("room.yaml").read_text() == "# room.yaml\nenv: 1\n"
