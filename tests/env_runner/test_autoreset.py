"""Names of autoreset modes, and resets of ended environments by hand."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.core.errors import ConfigError, EnvironmentContractError, RunnerError
from epibatch.env_runner.autoreset import AUTORESET_MODES, autoreset_mode, gymnasium_mode, reset_done


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


def test_reset_done_resets_only_what_ended(toys):
    make = toys.factory()
    env = SyncVectorEnv([lambda: make({})] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env.reset()
    env.step(np.array([0, 0]))
    observations, _ = reset_done(env, np.array([False, True]))
    assert observations[:, 0].tolist() == [1, 1100]


def test_reset_done_on_an_environment_that_cannot():
    class Stubborn:
        def reset(self, *, seed=None, options=None):
            raise TypeError("no options here")

    with pytest.raises(RunnerError, match=r"(?s)reset_mask.*no options here.*NEXT_STEP or SAME_STEP"):
        reset_done(Stubborn(), np.array([True]))


class Counting:
    """Two observations that count resets; heeds the mask or not."""

    def __init__(self, heeds):
        self.heeds, self.counts = heeds, np.array([[5.0], [np.nan]])

    def reset(self, *, seed=None, options=None):
        mask = options["reset_mask"] if self.heeds else slice(None)
        self.counts[mask] = -1.0
        return self.counts, {}


def test_running_environments_must_stay_as_they_are():
    done = np.array([True, False])
    kind, careless = Counting(True), Counting(False)
    observations, _ = reset_done(kind, done, kind.counts.copy())
    np.testing.assert_array_equal(observations[:, 0], [-1.0, np.nan])
    with pytest.raises(
        EnvironmentContractError, match=r"(?s)running environments: they were reset as well.*heed the mask"
    ):
        reset_done(careless, done, careless.counts.copy())
