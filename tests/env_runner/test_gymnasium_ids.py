"""Ids of Gymnasium and their own vector versions."""

from __future__ import annotations

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode

from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.env_runner import make_vector_env


def cart_poles(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **kwargs):
    return gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=autoreset_mode)


@pytest.fixture
def own_id():
    gym.register("OwnCartPole-v0", vector_entry_point=cart_poles)
    yield "OwnCartPole-v0"
    del gym.registry["OwnCartPole-v0"]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_vector_entry_point_that_takes_the_mode_gets_it(own_id, mode):
    env = make_vector_env(own_id, 2, "vector_entry_point", autoreset=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode.upper()] and env.num_envs == 2
    env.close()


def test_one_that_does_not_is_no_silent_other_mode():
    make_vector_env("CartPole-v1", 2, "vector_entry_point", autoreset="next_step").close()
    with pytest.raises(ConfigError, match=r"'same_step', as gym_env_autoreset_mode says\n.*'next_step'.*its own way"):
        make_vector_env("CartPole-v1", 2, "vector_entry_point", autoreset="same_step")


def test_an_id_without_a_vector_version():
    with pytest.raises(ConfigError, match=r"(?s)'Pendulum-v1'.*without vector_entry_point.*'sync'.*CartPole-v1"):
        make_vector_env("Pendulum-v1", 2, "vector_entry_point")


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_unknown_ids(mode):
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v"):
        make_vector_env("CartPol-v1", 2, mode)
