from __future__ import annotations

import inspect

import pytest

from epibatch.algorithms import AlgorithmConfig, PPOConfig
from epibatch.env_runner.env_runner import RunnerConfig

PROTOCOLS = [cls for cls in RunnerConfig.__mro__ if cls.__module__ == RunnerConfig.__module__]
ATTRIBUTES = {name for cls in PROTOCOLS for name in cls.__annotations__}
METHODS = [
    name for cls in PROTOCOLS for name, value in vars(cls).items() if inspect.isfunction(value) and name[0] != "_"
]


@pytest.mark.parametrize("config", [AlgorithmConfig, PPOConfig])
@pytest.mark.parametrize("name", sorted(ATTRIBUTES | set(METHODS)))
def test_algorithm_configs_have_what_a_runner_uses(config, name):
    assert hasattr(config(), name)


@pytest.mark.parametrize("name", METHODS)
def test_builders_take_the_arguments_that_a_runner_passes(name):
    wanted = inspect.signature(getattr(RunnerConfig, name)).parameters
    found = inspect.signature(getattr(AlgorithmConfig, name)).parameters
    assert list(wanted)[1:] == list(found)[1 : len(wanted)]
    assert all(found[own].default is not inspect.Parameter.empty for own in list(wanted)[1:])


def test_there_is_something_to_check():
    assert {"env", "seed", "explore"} <= ATTRIBUTES
    assert {"build_env_to_module_connector", "get_rl_module_spec"} <= set(METHODS)
