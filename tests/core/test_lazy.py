"""Names load on first use, and a wrong one is an AttributeError like any other."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

import epibatch.connectors.learner


def test_names_come_from_the_modules_of_the_stub(tmp_path, monkeypatch):
    (tmp_path / "names_of_lazy_test" / "inner").mkdir(parents=True)
    for folder, stub in (
        ("", "from .parts import Thing as Thing\n"),
        ("inner", "from ..parts import Thing as Thing\n"),
    ):
        text = "from epibatch.core.lazy import lazy_exports\n__getattr__, __dir__ = lazy_exports(__name__)\n"
        (tmp_path / "names_of_lazy_test" / folder / "__init__.py").write_text(text)
        (tmp_path / "names_of_lazy_test" / folder / "__init__.pyi").write_text(f"{stub}from . import leaf as leaf\n")
        (tmp_path / "names_of_lazy_test" / folder / "leaf.py").touch()
    (tmp_path / "names_of_lazy_test" / "parts.py").write_text("class Thing: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    inner = importlib.import_module("names_of_lazy_test.inner")
    assert "names_of_lazy_test.parts" not in sys.modules
    assert inner.__all__ == ["Thing", "leaf"] and {"Thing", "leaf", "__name__"} <= set(dir(inner))
    assert inner.Thing is sys.modules["names_of_lazy_test"].Thing
    assert inner.leaf is sys.modules["names_of_lazy_test.inner.leaf"]


def test_a_package_offers_the_common_pieces_of_its_side():
    from epibatch.connectors.common import NumpyToTensor

    assert epibatch.connectors.learner.NumpyToTensor is NumpyToTensor
    assert "NumpyToTensor" in dir(epibatch.connectors.learner)


def test_the_package_of_pieces_offers_every_piece():
    from epibatch.connectors.common import FrameStacking

    assert epibatch.connectors.FrameStacking is FrameStacking


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("epibatch", "PPO", "import it from epibatch.algorithms"),
        ("epibatch.connectors", "View", "import it from epibatch.connectors.views"),
        (
            "epibatch.connectors.learner",
            "AddObservationFromEpisodesToBatch",
            "did you mean 'AddObservationsFromEpisodesToBatch'?",
        ),
        ("epibatch.algorithms", "SAC", "Known: .*PPO"),
    ],
)
def test_a_wrong_name_says_what_to_import(package, name, said):
    expected = f"module '{package}' has no attribute '{name}'; {said}"
    with pytest.raises(AttributeError, match=re.escape(expected).replace(r"\.\*", ".*")):
        getattr(importlib.import_module(package), name)
    with pytest.raises(ImportError, match=re.escape(expected).replace(r"\.\*", ".*")):
        exec(f"from {package} import {name}", {})


def test_a_module_that_is_not_there_says_what_is():
    with pytest.raises(ModuleNotFoundError, match=r"'epibatch\.algorithms' has no attribute 'sac'; Known: .*PPOConfig"):
        exec("import epibatch.algorithms.sac", {})


def test_asking_whether_a_module_is_there_is_no_error():
    assert importlib.util.find_spec("epibatch.algorithms.sac") is None
    assert importlib.util.find_spec("epibatch.algorithms.ppo") is not None
    assert not hasattr(epibatch.connectors, "View")


def test_modules_of_others_are_reported_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'json\.nothing'") as caught:
        exec("import json.nothing", {})
    assert caught.value.name == "json.nothing"
