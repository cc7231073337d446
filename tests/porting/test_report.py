from __future__ import annotations

import io

import pytest
from rich.console import Console

from epibatch.porting import port_source, report

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
