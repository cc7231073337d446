from __future__ import annotations

import pytest

from epibatch.core.errors import ConfigError
from epibatch.learner.settings import LearnerSettings


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", 0, "greater than 0"),
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


def test_changes_are_checked():
    assert LearnerSettings(lr=0.1).with_changes(seed=3) == LearnerSettings(lr=0.1, seed=3)
    with pytest.raises(ConfigError, match="lr: input should be greater than 0"):
        LearnerSettings(lr=0.1).with_changes(lr=-1.0)


def test_defaults():
    settings = LearnerSettings()
    assert settings.lr == 5e-5 and settings.grad_clip is None and settings.num_epochs == 1
