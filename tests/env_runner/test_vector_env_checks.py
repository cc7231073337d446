"""What is no environment, or another one than asked for, is named before anything is stepped."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.env_runner import make_vector_env
from epibatch.env_runner.env_checks import check_vector_env


def cart_poles(num_envs=2):
    return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs)


class Bare(gym.Env):
    observation_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("maker", "words"),
    [
        (lambda: None, "found:    None: does the function return it?"),
        (lambda: "CartPole-v1", "found:    str 'CartPole-v1'"),
        (cart_poles, "set gym_env_vectorize_mode='vector_entry_point'"),
        (Bare, "expected: a gymnasium Space as action_space"),
    ],
)
def test_no_environment(mode, maker, words):
    with pytest.raises(ConfigError) as caught:
        make_vector_env(maker, 2, mode)
    assert words in str(caught.value)


def test_a_wrapper_that_returns_nothing():
    def forgets(env):
        pass

    with pytest.raises(ConfigError, match=r"made by forgets\n.*gymnasium\.Env\n.*None"):
        make_vector_env(lambda: gym.make("CartPole-v1"), 1, wrappers=[forgets])


def test_a_vector_environment_of_ones_own():
    for own in (cart_poles, lambda num_envs, **kwargs: cart_poles(num_envs), lambda config: cart_poles(config["n"])):
        env = make_vector_env(own, 3, "vector_entry_point", {"n": 3} if own is not cart_poles else {})
        assert env.num_envs == 3
        env.close()


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (lambda: cart_poles(5), "expected: 2 environments, as num_envs_per_env_runner says\n  found:    num_envs = 5"),
        (lambda: None, "expected: a gymnasium.vector.VectorEnv\n  found:    None"),
        (lambda: gym.make("CartPole-v1"), "take 'sync' if single environments are made"),
        (gym.vector.VectorEnv, "found:    no num_envs, single_observation_space, single_action_space"),
    ],
)
def test_another_vector_environment_than_asked_for(own, words):
    with pytest.raises(ConfigError) as caught:
        make_vector_env(own, 2, "vector_entry_point")
    assert words in str(caught.value)


def test_wrappers_need_single_environments():
    with pytest.raises(ConfigError, match=r"gymnasium\.wrappers\.vector"):
        make_vector_env(cart_poles, 2, "vector_entry_point", wrappers=["ClipAction"])


class Odd(gym.Env):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (gym.spaces.Text(5), "observation space\n"),
        (gym.spaces.Sequence(gym.spaces.Discrete(3)), "observation space\n"),
        (gym.spaces.Graph(gym.spaces.Discrete(3), None), "observation space\n"),
        (gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Tuple([gym.spaces.Text(3)])), "space['b'][0]\n"),
    ],
    ids=["text", "sequence", "graph", "nested"],
)
def test_observations_without_one_shape(space, where):
    with pytest.raises(SpaceError) as caught:
        make_vector_env(lambda: Odd(space), 2)
    message = str(caught.value)
    assert (
        where in message
        and "with a wrapper around the environment (gymnasium.wrappers.TransformObservation)" in message
    )


def test_a_refused_environment_is_closed():
    env = cart_poles()
    with pytest.raises(ConfigError):
        check_vector_env(env, 3)
    assert env.closed


def test_a_sampled_text_environment_works_behind_the_wrapper_that_the_error_names():
    class Says(Odd):
        def __init__(self):
            super().__init__(gym.spaces.Text(5))

        def reset(self, *, seed=None, options=None):
            return "abc", {}

    box = gym.spaces.Box(0, 255, (5,), np.uint8)
    encode = lambda text: np.frombuffer(text.ljust(5).encode(), np.uint8)  # noqa: E731
    wrap = lambda env: gym.wrappers.TransformObservation(env, encode, box)  # noqa: E731
    env = make_vector_env(Says, 2, wrappers=[wrap])
    assert env.reset()[0].tolist() == [[97, 98, 99, 32, 32]] * 2
