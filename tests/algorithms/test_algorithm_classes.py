from __future__ import annotations

import pytest

from epibatch.algorithms import PPO, PPOConfig
from epibatch.algorithms.algorithm_classes import ALGORITHM_CLASSES, get_trainable_cls
from epibatch.core.errors import UnknownNameError


def test_ppo_by_its_name():
    assert get_trainable_cls("PPO") is PPO
    config = get_trainable_cls("PPO").get_default_config()
    assert type(config) is PPOConfig
    assert config.to_dict() == PPOConfig().to_dict()
    assert get_trainable_cls("PPO").get_default_config() is not config


def test_each_name_leads_to_a_class():
    for name, cls in ALGORITHM_CLASSES.items():
        assert cls.__name__ == name


def test_others_are_refused_by_name():
    with pytest.raises(UnknownNameError, match=r"'IMPALA'\n.*Known: PPO"):
        get_trainable_cls("IMPALA")
