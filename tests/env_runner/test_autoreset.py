"""Names of autoreset modes."""

from __future__ import annotations

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.core.errors import ConfigError
from epibatch.env_runner.env_checks import AUTORESET_MODES, autoreset_mode, gymnasium_mode


class Still(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_names_are_gymnasiums_in_small_letters(mode):
    assert mode.name.lower() in AUTORESET_MODES
    assert gymnasium_mode(mode.name.lower()) is gymnasium_mode(mode.value) is gymnasium_mode(mode) is mode


@pytest.mark.parametrize("name", ["same", "nextstep", 3, None])
def test_other_names(name):
    with pytest.raises(ConfigError, match="'next_step', 'same_step', 'disabled'"):
        gymnasium_mode(name)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_mode(mode):
    env = SyncVectorEnv([Still], autoreset_mode=mode)
    assert autoreset_mode(env) == mode.name.lower()


def test_autoreset_mode_of_an_environment_that_does_not_say():
    env = SyncVectorEnv([Still])
    env.metadata = {}
    assert autoreset_mode(env) == "next_step"
