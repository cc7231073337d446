"""Files are read and written byte for byte; the report shows the diff and what is left."""

from __future__ import annotations

import io
import os
import stat

import pytest
from rich.console import Console

from epibatch.core.errors import PortingError, StorageError
from epibatch.porting import port_source, report, source_files


@pytest.mark.parametrize(
    ("content", "text", "encoding"),
    [
        (b"x = 1\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n", "utf-8"),
        ("x = 'ä'\n".encode(), "x = 'ä'\n", "utf-8"),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n", "utf-8-sig"),
        ("# -*- coding: latin-1 -*-\nx = 'ä'\n".encode("latin-1"), None, "iso-8859-1"),
        (b"", "", "utf-8"),
    ],
)
def test_files_come_back_byte_for_byte(tmp_path, content, text, encoding):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    file = source_files.read_source(path)
    assert file.encoding == encoding
    assert text is None or file.text == text
    source_files.write_source(file, file.text)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a.py"]


def test_the_new_text_has_the_old_encoding_permissions_and_place(tmp_path):
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "a.py"
    path.write_bytes("# coding: latin-1\n# ä\n".encode("latin-1"))
    path.chmod(0o750)
    link = tmp_path / "a.py"
    link.symlink_to(path)
    source_files.write_source(source_files.read_source(link), "# coding: latin-1\n# ö\n")
    assert path.read_bytes() == "# coding: latin-1\n# ö\n".encode("latin-1")
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("folder", None, r"a folder\n.*epibatch port .*folder/\*\.py"),
        ("missing.py", None, "nothing there"),
        ("book.ipynb", b"{}", "jupyter nbconvert --to script"),
        ("latin.py", b"x = '\xe4'\n", "save it as UTF-8"),
        ("odd.py", b"# coding: klingon\n", "declare its encoding"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name == "folder":
        path.mkdir()
    with pytest.raises(PortingError, match=f"(?s){said}"):
        source_files.read_source(path)


def refusing(*_):
    raise PermissionError(13, "Permission denied")


def test_a_file_that_must_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    monkeypatch.setattr(type(path), "read_bytes", refusing)
    with pytest.raises(PortingError, match=r"PermissionError: Permission denied\n.*make it readable"):
        source_files.read_source(path)


def test_a_file_that_is_read_only(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    file = source_files.read_source(path)
    monkeypatch.setattr(source_files.os, "access", lambda *_: False)  # as for anybody but root
    with pytest.raises(StorageError, match=r"read-only\n.*chmod u\+w"):
        source_files.write_source(file, "x = 2\n")
    assert path.read_text() == "x = 1\n"


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_folder_that_nothing_can_be_written_to(tmp_path, monkeypatch, step):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    file = source_files.read_source(path)
    monkeypatch.setattr(source_files.os, step, refusing)
    with pytest.raises(StorageError, match=r"Permission denied\n.*apply the diff yourself"):
        source_files.write_source(file, "x = 2\n")
    assert path.read_text() == "x = 1\n"
    assert os.listdir(tmp_path) == ["a.py"]


# ------------------------------------------------------------------------------------------- report

TEXT = "from ray.rllib.core import Columns, Nothing\nimport ray\nray.init(a=[Nothing])\n"


def shown(text=TEXT, *, written=False, **console):
    out = io.StringIO(newline="")
    report.show_ported(
        Console(file=out, width=40, highlight=False, **console), "my.py", port_source(text), written=written
    )
    return out.getvalue()


def test_plain_output_is_the_diff_and_a_line_for_each_name_that_is_left():
    text = shown()
    diff = port_source(TEXT).diff("my.py")
    assert text.startswith(diff)
    assert text[len(diff) :].splitlines() == [
        "my.py:1: ray.rllib.core.Nothing: no such name in epibatch.core",
        "my.py:3: ray.init: no cluster here: nothing needs to be started or shut down",
    ]


def test_plain_output_keeps_what_a_terminal_would_expand_or_break_at():
    text = "class A:\r\n\tfrom ray.rllib.core import Columns\r\n\x0c\r\n\tx = '\u2028 [b]'\r\n"
    assert shown(text) == port_source(text).diff("my.py")
    assert "\r\n \tx = '\u2028 [b]'\r\n" in shown(text)


def test_lines_are_those_of_the_file_as_it_is_then():
    assert "my.py:2: ray.rllib.core.Nothing" in shown(written=True)
    assert "my.py:4: ray.init" in shown(written=True)


def test_a_terminal_gets_colours():
    text = shown(force_terminal=True, color_system="standard")
    assert "\x1b[31m-from ray.rllib.core" in text and "\x1b[32m+from epibatch.core" in text


@pytest.mark.parametrize(
    ("sources", "write", "sentence"),
    [
        ([TEXT], False, "1 import to change in 1 file, 2 places left to do by hand; --write changes it"),
        ([TEXT], True, "1 import changed in 1 file, 2 places left to do by hand"),
        (["import ray.rllib.core as c\n"] * 2, False, "2 imports to change in 2 files, nothing left to do by hand; "),
        (["import ray\n", ""], True, "no imports to change, 1 place left to do by hand"),
        ([""], False, "no imports to change, nothing left to do by hand"),
    ],
)
def test_the_last_line(sources, write, sentence):
    found = report.summary([port_source(source) for source in sources], write=write)
    assert found == sentence or (sentence.endswith("; ") and found == f"{sentence}--write changes them")
