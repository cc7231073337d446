"""Names that load on first use, by import path or from an extra, and advice about wrong ones."""

from __future__ import annotations

import importlib.util
import math
import os.path
import re
import sys

import pytest

import epibatch.connectors.learner
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.core.errors import MissingExtraError, PieceError, PipelineError, RegistryError
from epibatch.core.imports import advice_for_episode, advice_for_piece, import_extra, load_object
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


def test_a_module_that_fails(tmp_path, monkeypatch):
    (tmp_path / "gives_up.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RegistryError, match="SystemExit"):
        load_object("gives_up:it", "here")


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


Theirs = type("ConnectorV2", (), {"__module__": "ray.rllib.connectors.connector_v2"})
TheirEpisode = type("SingleAgentEpisode", (), {"__module__": "ray.rllib.env.x", "get_observations": lambda self: []})


class Mine(Theirs):
    """As a user's piece that still inherits RLlib's class."""


@pytest.mark.parametrize("piece", [Mine, Mine()])
def test_pieces_are_to_be_ported_or_wrapped(piece):
    advice = advice_for_piece(piece)
    assert "epibatch port FILE --write" in advice and "from_rllib_piece" in advice
    with pytest.raises(PieceError, match="epibatch port FILE"):
        EnvToModulePipeline(connectors=[piece])


def test_classes_named_in_a_file_are_to_be_ported():
    with pytest.raises(PieceError, match="epibatch port FILE"):
        register("theirs")(Mine)


def test_episodes_are_to_be_converted():
    with pytest.raises(PipelineError, match=r"ray\.rllib\.env\.x\.SingleAgentEpisode(.|\n)*interop\.rllib\.from_rllib"):
        EnvToModulePipeline()(episodes=[TheirEpisode()])


@pytest.mark.parametrize("advice", [advice_for_piece(3), advice_for_piece(dict), advice_for_episode(dict)])
def test_for_others_there_is_no_advice(advice):
    assert advice == ""
