"""Settings of learners and modules."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.learner import LearnerSettings, Loss, MultiAgentSettings, PPOLoss, PPOSettings

BATCH = {"red": {"obs": [0]}, "blue": {"obs": [0, 0]}}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", -1, "greater than or equal to 0"),
        ("lr", float("nan"), "a finite number"),
        ("lr", "1e-3", "a valid number"),
        ("optimizer", "adm", "did you mean 'adam'"),
        ("grad_clip", -1.0, "greater than 0"),
        ("grad_clip_by", "global_nrm", "'global_norm', 'norm' or 'value'"),
        ("num_epochs", 0, "greater than or equal to 1"),
        ("minibatch_size", 0, "greater than or equal to 1"),
        ("shuffle", "never", "'epoch' or 'once'"),
        ("remainder", "keeep", "'keep', 'drop' or 'spread'"),
        ("seed", -1, "greater than or equal to 0"),
        ("seed", 1.5, "a valid integer"),
        ("sed", 1, "did you mean 'seed'"),
    ],
)
def test_settings_are_checked(option, value, message):
    with pytest.raises(ConfigError, match=rf"^LearnerSettings\n(?s:.*)- {option}: .*{message}"):
        LearnerSettings(**{option: value})


def test_a_setting_of_the_loss_is_named():
    with pytest.raises(ConfigError, match="PPOSettings has 'desired_kl'"):
        LearnerSettings(desired_kl=0.01)


def test_changes_are_checked():
    assert LearnerSettings(lr=0.1).with_changes(seed=3) == LearnerSettings(lr=0.1, seed=3)
    with pytest.raises(ConfigError, match="lr: input should be greater than or equal to 0"):
        LearnerSettings(lr=0.1).with_changes(lr=-1.0)


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
        ({"policy_to_train": ["a"]}, "did you mean 'policies_to_train'"),
    ],
)
def test_other_forms_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        MultiAgentSettings(**options)
    with pytest.raises(TypeError, match="were given"):
        MultiAgentSettings({}, None, 3)


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


COMMON = {"lr": 0.1, "num_epochs": 3}
LOSS = PPOLoss(PPOSettings(clip_param=0.2, entropy_coeff=0.5))


class Zero(Loss):
    def __call__(self, batch, outputs, distribution_class, coefficients):
        return outputs["x"] * 0, {}


@pytest.fixture
def override(points):
    """The settings and the loss of a module with overrides."""

    def override(loss, changes):
        multi_agent = {"overrides_per_module": {"red": changes}}
        settings = {"minibatch_size": None, "seed": None, **COMMON}
        learner = points.learner(points.modules(red=(0.0, 0.0)), {}, loss, multi_agent, **settings)
        return learner.settings_of("red"), learner.loss_of("red")

    return override


def test_overrides_are_settings_of_learner_and_loss(override):
    assert override(LOSS, {}) == (LearnerSettings(**COMMON), LOSS)
    settings, loss = override(LOSS, {"minibatch_size": 8, "grad_clip": 0.5, "clip_param": 0.1})
    assert settings == LearnerSettings(**COMMON, minibatch_size=8, grad_clip=0.5)
    assert loss == PPOLoss(PPOSettings(clip_param=0.1, entropy_coeff=0.5))


def test_another_loss(override):
    own = PPOLoss(PPOSettings(clip_param=0.4))
    assert override(Zero(), {"loss": own, "kl_coeff": 0.0})[1] == PPOLoss(PPOSettings(clip_param=0.4, kl_coeff=0.0))
    _, loss = override(LOSS, {"loss": lambda batch, outputs, distribution: (1, {})})
    assert isinstance(loss, Loss) and loss({}, {}, None, {}) == (1, {})


@pytest.mark.parametrize(
    ("loss", "changes", "message"),
    [
        (LOSS, {"lrr": 0.1}, "did you mean 'lr'"),
        (LOSS, {"clip_parm": 0.1}, "did you mean 'clip_param'"),
        (Zero(), {"clip_param": 0.1}, "'clip_param'"),
        (LOSS, {"lr": -1.0}, "lr: input should be greater than or equal to 0"),
        (LOSS, {"clip_param": 0.0}, "clip_param"),
        (LOSS, {"loss": dict}, "a Loss, a class of one, a function"),
    ],
)
def test_errors_of_overrides_name_the_module(override, loss, changes, message):
    with pytest.raises(ConfigError, match=rf"^overrides of module 'red':[\s\S]*{message}"):
        override(loss, changes)
