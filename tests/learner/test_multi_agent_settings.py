from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.learner import MultiAgentSettings

BATCH = {"red": {"obs": [0]}, "blue": {"obs": [0, 0]}}


@pytest.mark.parametrize(
    ("rule", "updated", "known"),
    [
        (None, {"red", "blue"}, None),
        (["red"], {"red"}, {"red"}),
        ({"red", "blue"}, {"red", "blue"}, {"red", "blue"}),
        ((), set(), set()),
        (lambda module_id, batch: len(batch[module_id]["obs"]) > 1, {"blue"}, None),
        (lambda module_id, batch: np.bool_(module_id == "red"), {"red"}, None),
    ],
)
def test_which_modules_are_updated(rule, updated, known):
    settings = MultiAgentSettings(policies_to_train=rule)
    assert {name for name in BATCH if settings.should_be_updated(name, BATCH)} == updated
    assert settings.known_ids == known


@pytest.mark.parametrize("answer", [None, "red", 1])
def test_a_function_has_to_say_yes_or_no(answer):
    settings = MultiAgentSettings(policies_to_train=lambda module_id, batch: answer)
    with pytest.raises(ConfigError, match=r"policies_to_train\('red', batch\)[\s\S]*True or False"):
        settings.should_be_updated("red", BATCH)


def test_a_function_that_raises_is_named():
    def missing(module_id, batch):
        return batch["green"]

    with pytest.raises(KeyError) as caught:
        MultiAgentSettings(policies_to_train=missing).should_be_updated("red", BATCH)
    assert "in policies_to_train('red', batch)" in caught.value.__notes__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies_to_train": "red"}, r"\['red'\]"),
        ({"policies_to_train": 3}, "module ids"),
        ({"overrides_per_module": {"red": 0.1}}, "overrides_per_module"),
        ({"overrides_per_module": ["red"]}, "overrides_per_module"),
    ],
)
def test_other_forms_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        MultiAgentSettings(**options)


@pytest.mark.parametrize("options", [{"policies_to_train": ["blu"]}, {"overrides_per_module": {"blu": {}}}])
def test_names_are_checked(options):
    with pytest.raises(UnknownNameError, match=r"'blu'[\s\S]*did you mean 'blue'"):
        MultiAgentSettings(**options).check_ids(BATCH)
    MultiAgentSettings(**options).check_ids(["blu"])


def test_settings_are_values():
    first = MultiAgentSettings({"red": {"lr": 1.0}}, ["red", "blue"])
    more = first.with_module("blue", {"lr": 2.0})
    assert more.overrides_per_module == {"red": {"lr": 1.0}, "blue": {"lr": 2.0}}
    assert first.with_module("blue", None) is first
    less = more.without_module("red")
    assert (less.overrides_per_module, less.policies_to_train) == ({"blue": {"lr": 2.0}}, ["blue"])
    assert first.overrides_per_module == {"red": {"lr": 1.0}} and first.policies_to_train == ["red", "blue"]
