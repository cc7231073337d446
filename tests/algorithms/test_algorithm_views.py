"""Views that were given while an algorithm runs can be taken away."""

from __future__ import annotations

from typing import Any

import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.views import View
from epibatch.core.errors import ConfigError, EpibatchError, UnknownNameError


def config() -> Any:
    own = {"own": View("rewards", -2)}
    small = {"train_batch_size_per_learner": 60, "minibatch_size": 30, "num_epochs": 1}
    return PPOConfig().environment("CartPole-v1").training(**small).rl_module(view_requirements=own)


@pytest.mark.parametrize("trained", [False, True])
def test_an_algorithm_with_a_view_of_a_misspelt_column_can_be_repaired(trained: bool) -> None:
    algo = config().build_algo()
    before = str(algo.pipelines)
    if trained:
        algo.train()
    algo.add_view("x", View("rewrds", shift=-1))
    for _ in range(2):
        with pytest.raises(EpibatchError, match=r"'rewards'[\s\S]*algo.remove_view\('x'\)") as raised:
            algo.train()
        assert isinstance(raised.value, (UnknownNameError, ConfigError))
    algo.remove_view("x")
    assert str(algo.pipelines) == before and list(algo.config.view_requirements) == ["own"]
    assert algo.get_state()["added_views"] == {}
    algo.train()
    algo.add_view("x", View("rewards", shift=-1))
    batch = algo.pipelines["learner"](rl_module=algo.get_module(), episodes=algo.env_runner.sample(num_timesteps=9))
    assert {"x", "own"} <= set(batch)
    algo.stop()


def test_only_what_add_view_gave_can_be_removed() -> None:
    algo = config().build_algo()
    algo.add_view("before", View("rewards", -1))
    for name, text in {"own": "views of the config and its modules stay", "befor": "did you mean 'before'"}.items():
        with pytest.raises(UnknownNameError, match=text):
            algo.remove_view(name)
    assert list(algo.config.view_requirements) == ["own", "before"]
    algo.stop()
