from __future__ import annotations

import math
import os.path

import pytest

from epibatch.core.errors import RegistryError
from epibatch.core.import_paths import load_object


def test_what_stands_there():
    assert load_object("math:sqrt", "here", "function") is math.sqrt
    assert load_object("os:path.join", "here", "function") is os.path.join


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("math.sqrt", "expected: an import path module:function"),
        (":sqrt", "expected: an import path module:function"),
        ("math:", "expected: an import path module:function"),
        ("math:sqrtt", "AttributeError"),
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
