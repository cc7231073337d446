"""What makes an environment, and how it is given the config."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.core.errors import ConfigError
from epibatch.core.registry import register_env
from epibatch.env_runner import make_vector_env
from fixture_envs import CountingEnv


def made(kind, settings):
    env = CountingEnv()
    env.given = kind, settings
    return env


def by_position(settings):
    return made("one dict", settings)


def by_name(length=1, env_config=None):
    return made("one dict", env_config)


def by_keywords(length=1, **others):
    return made("keywords", {"length": length, **others})


@pytest.mark.parametrize("creator", [by_position, by_name, by_keywords])
def test_config_is_one_dict_or_keywords(creator):
    kind = "keywords" if creator is by_keywords else "one dict"
    assert make_vector_env(creator, 1, env_config={"length": 3}).get_attr("given") == ((kind, {"length": 3}),)


def test_a_registered_name():
    register_env("creators_by_position", by_position)
    assert make_vector_env("creators_by_position", 1).get_attr("given") == (("one dict", {}),)


def test_unknown_keywords_are_named_with_the_nearest_one():
    def narrow(length=1):
        return CountingEnv(length)

    with pytest.raises(ConfigError, match=r"narrow takes[\s\S]*'lenght'[\s\S]*did you mean 'length'"):
        make_vector_env(narrow, 1, env_config={"lenght": 3})


def test_what_makes_no_environment():
    with pytest.raises(ConfigError, match=r"an environment class or a function[\s\S]*int: 3"):
        make_vector_env(3, 1)


def test_missing_packages_are_named():
    def needs_more():
        raise gym.error.DependencyNotInstalled("box2d is not installed")

    with pytest.raises(ConfigError, match=r"box2d is not installed\n.*install them"):
        make_vector_env(needs_more, 1)
