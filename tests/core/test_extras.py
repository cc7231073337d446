from __future__ import annotations

import json
import sys

import pytest

from epibatch.core.errors import MissingExtraError
from epibatch.core.imports import import_extra


def test_what_is_installed_is_imported():
    assert import_extra("json", "video", "videos") is json


def test_what_is_missing_is_named_with_the_command():
    with pytest.raises(MissingExtraError, match=r"^videos[\s\S]*no_such_module[\s\S]*pip install 'epibatch\[video\]'"):
        import_extra("no_such_module", "video", "videos")


def test_so_is_what_an_installed_module_needs(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match="no_such_module") as caught:
        import_extra("half_there", "tensorboard", "the logger 'tensorboard'")
    assert isinstance(caught.value, ImportError) and "half_there" not in sys.modules


def test_other_errors_of_the_module_are_its_own(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        import_extra("broken_extra", "video", "videos")
