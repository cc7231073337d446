from __future__ import annotations

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.rllib_methods import RLLIB_METHODS


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("rollouts", r"use env_runners\(\.\.\.\)"),
        ("resources", "leave it out"),
        ("framework", "always PyTorch's"),
        ("offline_data", "not there yet"),
    ],
)
def test_rllibs_methods_say_what_to_do(name, advice):
    with pytest.raises(AttributeError, match=rf"PPOConfig has no method '{name}': .*{advice}.*Methods: .*env_runners"):
        getattr(PPOConfig(), name)()


def test_none_of_them_is_there():
    assert [name for name in RLLIB_METHODS if hasattr(PPOConfig(), name)] == []


def test_misspelt_method():
    with pytest.raises(AttributeError, match=r"did you mean 'training'.*Settings: .*lr.*Methods: .*training") as caught:
        _ = PPOConfig().trainng
    assert "check" not in str(caught.value).replace("checkpoint", "")
