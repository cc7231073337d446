from __future__ import annotations

import math
import os.path
import sys

import pytest

from epibatch.core.errors import RegistryError
from epibatch.core.imports import load_object


def test_what_stands_there():
    assert load_object("math:sqrt", "here", "function") is math.sqrt
    assert load_object("os:path.join", "here", "function") is os.path.join


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("math.sqrt", "expected: an import path module:function"),
        (":sqrt", "expected: an import path module:function"),
        ("math:", "expected: an import path module:function"),
        ("math:sqrtt", "did you mean 'sqrt'"),
        ("os:path.jion", "posixpath has no 'jion'"),
        ("no_such_module_at_all:f", "ModuleNotFoundError"),
    ],
)
def test_what_does_not(path, found):
    with pytest.raises(RegistryError, match="here") as caught:
        load_object(path, "here", "function")
    assert found in str(caught.value)


def test_a_module_that_fails(tmp_path, monkeypatch):
    (tmp_path / "gives_up.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RegistryError, match="SystemExit"):
        load_object("gives_up:it", "here")


@pytest.mark.parametrize(
    ("path", "source", "do"),
    [
        ("no_such_module:It", "", "check the spelling of module:Class, and that no_such_module is installed"),
        (
            "no_such_module.deeper:It",
            "",
            "check the spelling of module:Class, and that no_such_module is installed or in",
        ),
        ("needy:It", "import no_such_module", "install no_such_module, which needy imports"),
        ("needy:It", "1 / 0", "mend needy: it raises this when it is imported"),
        ("needy:Itt", "from math import pi\nclass It: pass\nclass Them: pass", "did you mean 'It'? Known: It, Them$"),
    ],
)
def test_what_to_do(tmp_path, monkeypatch, path, source, do):
    (tmp_path / "needy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "needy", raising=False)
    with pytest.raises(RegistryError, match=f"do: +{do.replace('?', '[?]')}"):
        load_object(path, "here")
    sys.modules.pop("needy", None)
