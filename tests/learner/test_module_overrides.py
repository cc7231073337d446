from __future__ import annotations

import pytest

from epibatch.core.errors import ConfigError
from epibatch.learner import LearnerSettings, PPOLoss, PPOSettings
from epibatch.learner.loss import Loss, PlainLoss
from epibatch.learner.module_overrides import override

COMMON, LOSS = LearnerSettings(lr=0.1, num_epochs=3), PPOLoss(PPOSettings(clip_param=0.2, entropy_coeff=0.5))


class Zero(Loss):
    def __call__(self, batch, outputs, distribution_class, coefficients):
        return outputs["x"] * 0, {}


def test_nothing_changed():
    assert override("red", COMMON, LOSS, {}) == (COMMON, LOSS)


def test_settings_of_learner_and_loss():
    settings, loss = override("red", COMMON, LOSS, {"minibatch_size": 8, "grad_clip": 0.5, "clip_param": 0.1})
    assert settings == LearnerSettings(lr=0.1, num_epochs=3, minibatch_size=8, grad_clip=0.5)
    assert loss == PPOLoss(PPOSettings(clip_param=0.1, entropy_coeff=0.5))


def test_another_loss():
    own = PPOLoss(PPOSettings(clip_param=0.4))
    assert override("red", COMMON, Zero(), {"loss": own, "kl_coeff": 0.0})[1] == PPOLoss(
        PPOSettings(clip_param=0.4, kl_coeff=0.0)
    )
    _, loss = override("red", COMMON, LOSS, {"loss": lambda batch, outputs, distribution: (1, {})})
    assert isinstance(loss, PlainLoss) and loss({}, {}, None, {}) == (1, {})


@pytest.mark.parametrize(
    ("loss", "changes", "message"),
    [
        (LOSS, {"lrr": 0.1}, "did you mean 'lr'"),
        (LOSS, {"clip_parm": 0.1}, "did you mean 'clip_param'"),
        (Zero(), {"clip_param": 0.1}, "'clip_param'"),
        (LOSS, {"lr": -1.0}, "lr: input should be greater than 0"),
        (LOSS, {"clip_param": 0.0}, "clip_param"),
        (LOSS, {"loss": dict}, "a Loss, a class of one, or a function"),
    ],
)
def test_errors_name_the_module(loss, changes, message):
    with pytest.raises(ConfigError, match=rf"^overrides of module 'red':[\s\S]*{message}"):
        override("red", COMMON, loss, changes)
