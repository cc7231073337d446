from __future__ import annotations

import pytest

from epibatch.core import registry
from epibatch.core.errors import RegistryError, UnknownNameError
from epibatch.core.registry import env_creator, register_env, registered_envs


@pytest.fixture(autouse=True)
def clean_envs():
    before = dict(registry._env_creators)
    yield
    registry._env_creators.clear()
    registry._env_creators.update(before)


def test_environment_by_name():
    register_env("corridor", lambda env_config: ("env", env_config))
    assert env_creator("corridor")({"length": 3}) == ("env", {"length": 3})
    assert "corridor" in registered_envs()


def test_registering_again_replaces():
    register_env("corridor", lambda env_config: 1)
    register_env("corridor", lambda env_config: 2)
    assert env_creator("corridor")({}) == 2


def test_unknown_environment():
    register_env("corridor", lambda env_config: 1)
    with pytest.raises(UnknownNameError, match=r"'corridr'\n.*\n.*\n.*did you mean 'corridor'"):
        env_creator("corridr")


@pytest.mark.parametrize(("name", "creator"), [("", list), (3, list), ("x", "CartPole-v1"), ("x", None)])
def test_wrong_registration(name, creator):
    with pytest.raises(RegistryError, match="register_env\n  expected: a name and a function"):
        register_env(name, creator)


def test_everything_is_re_exported():
    assert all(hasattr(registry, name) for name in registry.__all__)
