"""Names that load on first use, by import path or from an extra, and advice about wrong ones."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

import epibatch.connectors.learner
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.core.errors import PieceError, PipelineError
from epibatch.core.registry import register


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


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("epibatch.connectors", "View", "import it from epibatch.connectors.views"),
        ("epibatch.connectors.learner", "NumpyToTensr", "did you mean 'NumpyToTensor'?"),
        ("epibatch.algorithms", "Impala", "Known: .*more"),
    ],
)
def test_a_wrong_name_says_what_to_import(package, name, said):
    expected = f"module '{package}' has no attribute '{name}'; {said}"
    with pytest.raises(AttributeError, match=re.escape(expected).replace(r"\.\*", ".*")):
        getattr(importlib.import_module(package), name)
    with pytest.raises(ImportError, match=re.escape(expected).replace(r"\.\*", ".*")):
        exec(f"from {package} import {name}", {})


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("epibatch.algorithms.dreamer", r"'epibatch\.algorithms' has no attribute 'dreamer'; .*Known: .* more"),
        ("json.nothing", r"No module named 'json\.nothing'"),
    ],
)
def test_a_module_that_is_not_there(module, message):
    with pytest.raises(ModuleNotFoundError, match=message):
        importlib.import_module(module)


def test_asking_whether_a_module_is_there_is_no_error():
    assert importlib.util.find_spec("epibatch.algorithms.dreamer") is None
    assert importlib.util.find_spec("epibatch.algorithms.ppo") is not None
    assert not hasattr(epibatch.connectors, "View")


Theirs = type("ConnectorV2", (), {"__module__": "ray.rllib.connectors.connector_v2"})
TheirEpisode = type("SingleAgentEpisode", (), {"__module__": "ray.rllib.env.x", "get_observations": lambda self: []})


class Mine(Theirs):
    """As a user's piece that still inherits RLlib's class."""


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda: EnvToModulePipeline(connectors=[Mine]),
            PieceError,
            r"epibatch port FILE --write(.|\n)*from_rllib_piece",
        ),
        (lambda: EnvToModulePipeline(connectors=[Mine()]), PieceError, "epibatch port FILE"),
        (lambda: register("theirs")(Mine), PieceError, "epibatch port FILE"),
        (
            lambda: EnvToModulePipeline()(episodes=[TheirEpisode()]),
            PipelineError,
            r"ray\.rllib\.env\.x\.SingleAgentEpisode(.|\n)*interop\.rllib\.from_rllib",
        ),
    ],
)
def test_objects_of_rllib_are_to_be_ported_or_converted(use, error, message):
    with pytest.raises(error, match=message):
        use()
