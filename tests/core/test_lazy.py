"""Names load on first use, and a wrong one is an AttributeError like any other."""

from __future__ import annotations

import importlib.util
import re

import pytest

import epibatch.connectors.learner
from epibatch.core.lazy import lazy_exports


def test_names_come_from_their_homes_relative_or_absolute():
    from epibatch.core.columns import Columns
    from epibatch.learner.ppo_loss import PPOLoss

    for package, name, value in (("epibatch.learner", "PPOLoss", PPOLoss), ("epibatch", "Columns", Columns)):
        get, names = lazy_exports(package)
        assert get(name) is value
        assert {name, "__name__"} <= set(names())


def test_a_package_offers_the_common_pieces_of_its_side():
    from epibatch.connectors.common import NumpyToTensor

    assert epibatch.connectors.learner.NumpyToTensor is NumpyToTensor
    assert "NumpyToTensor" in dir(epibatch.connectors.learner)


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("epibatch", "PPO", "import it from epibatch.algorithms"),
        ("epibatch.connectors", "FrameStacking", "import it from epibatch.connectors.common"),
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
    assert not hasattr(epibatch.connectors, "FrameStacking")


def test_modules_of_others_are_reported_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'json\.nothing'") as caught:
        exec("import json.nothing", {})
    assert caught.value.name == "json.nothing"


def test_an_unknown_name_is_an_attribute_error():
    get, _ = lazy_exports("epibatch.learner", {})
    with pytest.raises(AttributeError, match=r"module 'epibatch.learner' has no attribute 'Nope'"):
        get("Nope")
