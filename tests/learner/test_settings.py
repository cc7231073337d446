from __future__ import annotations

import pytest

from epibatch.core.errors import ConfigError
from epibatch.learner.settings import LearnerSettings


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", 0, "a finite number > 0"),
        ("lr", float("nan"), "a finite number > 0"),
        ("lr", "1e-3", "a finite number > 0"),
        ("optimizer", "adamw", "did you mean 'adam'"),
        ("grad_clip", -1.0, "a finite number > 0"),
        ("grad_clip_by", "global_nrm", "did you mean 'global_norm'"),
        ("num_epochs", 0, "an integer >= 1"),
        ("minibatch_size", 0, "an integer >= 1"),
        ("shuffle", "never", "'epoch', 'once' or None"),
        ("remainder", "keeep", "did you mean 'keep'"),
        ("seed", -1, "an integer >= 0 or None"),
        ("seed", 1.5, "an integer >= 0 or None"),
    ],
)
def test_settings_are_checked(option, value, message):
    with pytest.raises(ConfigError, match=f"^{option}\n") as caught:
        LearnerSettings(**{option: value})
    assert message in str(caught.value)


def test_defaults():
    settings = LearnerSettings()
    assert settings.lr == 5e-5 and settings.grad_clip is None and settings.num_epochs == 1
