"""What makes an environment, and how it is given the config."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.core.errors import ConfigError
from epibatch.core.registry import register_env
from epibatch.env_runner.env_creators import call_creator, check_keywords, creator_of, missing_packages_named


def by_position(settings):
    return ("one dict", settings)


def by_name(length=1, env_config=None):
    return ("one dict", env_config)


def by_keywords(length=1, **others):
    return ("keywords", {"length": length, **others})


@pytest.mark.parametrize("creator", [by_position, by_name, by_keywords])
def test_config_is_one_dict_or_keywords(creator):
    kind = "keywords" if creator is by_keywords else "one dict"
    assert call_creator(creator, {"length": 3}) == (kind, {"length": 3})


def test_unknown_keywords_are_named_with_the_nearest_one():
    def narrow(length=1):
        return length

    with pytest.raises(ConfigError, match=r"narrow takes[\s\S]*'lenght'[\s\S]*did you mean 'length'"):
        call_creator(narrow, {"lenght": 3})
    check_keywords(by_keywords, {"anything": 1})


def test_names_classes_and_functions():
    register_env("creators_by_position", by_position)
    assert creator_of("creators_by_position") is by_position
    assert creator_of(by_name) is by_name
    assert creator_of("gymnasium.envs.classic_control:CartPoleEnv").__name__ == "CartPoleEnv"
    assert creator_of("CartPole-v1") is None
    with pytest.raises(ConfigError, match=r"an environment class or a function[\s\S]*int: 3"):
        creator_of(3)


def test_missing_packages_are_named():
    def needs_more():
        with missing_packages_named():
            raise gym.error.DependencyNotInstalled("box2d is not installed")

    with pytest.raises(ConfigError, match=r"box2d is not installed\n.*install them"):
        needs_more()
