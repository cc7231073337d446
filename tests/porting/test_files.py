"""`epibatch port` reads and writes files byte for byte, and shows the diff and what is left."""

from __future__ import annotations

import os
import stat

import pytest
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.porting import port_source

IMPORT, OURS = "from ray.rllib.core import Columns", "from epibatch.core import Columns"
TEXT = "from ray.rllib.core import Columns, Nothing\nimport ray\nray.init(a=[Nothing])\n"


@pytest.fixture
def port(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words, **options: CliRunner(**options).invoke(app, ["port", *words])


@pytest.mark.parametrize(
    "content",
    [
        f"{IMPORT}\r\ny = 2\r\n".encode(),
        f"{IMPORT}\nx = 'ä'\n".encode(),
        f"\ufeff{IMPORT}\n".encode(),
        f"# -*- coding: latin-1 -*-\n{IMPORT}\nx = 'ä'\n".encode("latin-1"),
        b"",
    ],
    ids=["carriage returns", "utf-8", "byte order mark", "latin-1", "empty"],
)
def test_encodings_newlines_permissions_and_links_stay(port, tmp_path, content):
    path, link = tmp_path / "real" / "a.py", tmp_path / "a.py"
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o750)
    link.symlink_to(path)
    assert port("a.py", "--write").exit_code == 0
    assert path.read_bytes() == content.replace(IMPORT.encode(), OURS.encode())
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o750
    assert os.listdir(path.parent) == ["a.py"]


def refusing(*_):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("folder/", None, "epibatch port folder/*.py"),
        ("latin.py", b"x = '\xe4'\n", "save it as UTF-8"),
        ("odd.py", b"# coding: klingon\n", "declare its encoding"),
    ],
)
def test_what_cannot_be_read(port, tmp_path, name, content, said):
    (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_bytes(content)
    result = port(name)
    assert result.exit_code == 2 and said in result.stderr


@pytest.mark.parametrize(
    ("owner", "step", "said"),
    [
        ("pathlib.Path", "read_bytes", "make it readable"),
        ("os", "replace", "apply the diff yourself"),
        ("os", "fsync", "apply the diff yourself"),
    ],
)
def test_a_file_or_folder_without_permission_stays_as_it_is(port, tmp_path, monkeypatch, owner, step, said):
    (tmp_path / "a.py").write_text(TEXT)
    with monkeypatch.context() as patch:
        patch.setattr(f"{owner}.{step}", refusing)
        result = port("a.py", "--write")
    assert result.exit_code == 2 and "Permission denied" in result.stderr and said in result.stderr
    assert (tmp_path / "a.py").read_text() == TEXT and os.listdir(tmp_path) == ["a.py"]


def test_the_diff_is_plain_and_a_line_for_each_name_that_is_left(port, tmp_path):
    text = f"{TEXT}class A:\r\n\tfrom ray.rllib.core import Columns\r\n\x0c\r\n\tx = '\u2028 [b]'\r\n"
    (tmp_path / "my.py").write_bytes(text.encode())
    shown = port("my.py").stdout_bytes.decode()
    diff = port_source(text).diff("my.py")
    assert shown.startswith(diff) and "\r\n \tx = '\u2028 [b]'\r\n" in diff
    assert shown[len(diff) :].splitlines() == [
        "my.py:1: ray.rllib.core.Nothing: no such name in epibatch.core",
        "my.py:3: ray.init: no cluster here: nothing needs to be started or shut down",
    ]
    written = port("my.py", "--write").stdout
    assert "my.py:2: ray.rllib.core.Nothing" in written and "my.py:4: ray.init" in written


def test_a_terminal_gets_colours(port, tmp_path):
    (tmp_path / "my.py").write_text(TEXT)
    shown = port("my.py", env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    assert "\x1b[31m-from ray.rllib.core" in shown and "\x1b[32m+from epibatch.core" in shown


@pytest.mark.parametrize(
    ("sources", "write", "sentence"),
    [
        ([TEXT], False, "1 import to change in 1 file, 2 places left to do by hand; --write changes it"),
        ([IMPORT] * 2, False, "2 imports to change in 2 files, nothing left to do by hand; --write changes them"),
        (["import ray\n", ""], True, "no imports to change, 1 place left to do by hand"),
    ],
)
def test_the_last_line(port, tmp_path, sources, write, sentence):
    for i, source in enumerate(sources):
        (tmp_path / f"{i}.py").write_text(source)
    result = port(*[f"{i}.py" for i in range(len(sources))], *["--write"] * write)
    assert result.stderr == f"{sentence}\n"
