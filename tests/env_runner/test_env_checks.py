"""Checks of environments of one agent: spaces, modes, and what each call returns."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, EnvironmentContractError, SpaceError
from epibatch.env_runner import make_vector_env
from epibatch.env_runner.env_checks import (
    AUTORESET_MODES,
    FirstCallChecks,
    TerminalCopies,
    autoreset_mode,
    check_vector_env,
    gymnasium_mode,
)

BOX = gym.spaces.Box(0, 9, (2,), np.float32)
ROW = np.zeros(2, np.float32)


class Returns(gym.Env):
    """Returns what it is told to."""

    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, reset=(ROW, {}), step=(ROW, 0.0, False, False, {}), space=BOX):
        self.results, self.observation_space = (reset, step), space

    def reset(self, *, seed=None, options=None):
        return self.results[0]

    def step(self, action):
        return self.results[1]


def step_with(**changes):
    names = ["observation", "reward", "terminated", "truncated", "info"]
    right = dict(zip(names, (ROW, 0.0, False, False, {})))
    return tuple({**right, **changes}.values())


@pytest.mark.parametrize(
    ("reset", "found"),
    [
        (ROW, "expected: two values: observation, info\n  found:    float32 array of shape (2,)"),
        (None, "found:    None"),
        ((ROW, {}, 1), "found:    3 values: float32 array of shape (2,), dict, 1"),
        ((ROW, None), "expected: a dict as info\n  found:    None"),
    ],
)
def test_a_wrong_reset(reset, found):
    with pytest.raises(EnvironmentContractError) as caught:
        FirstCallChecks(Returns(reset)).reset()
    assert str(caught.value).startswith("Returns.reset()\n") and found in str(caught.value)


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (
            (ROW, 0.0, False, {}),
            "terminated, truncated, info\n  found:    4 values: float32 array of shape (2,), 0.0, Fal",
        ),
        (step_with(reward=None), "expected: a number as reward\n  found:    None"),
        (step_with(reward=np.zeros(2)), "found:    float64 array of shape (2,)"),
        (step_with(reward="1"), "found:    '1'"),
        (step_with(reward=float("nan")), "expected: a finite reward\n  found:    nan"),
        (step_with(reward=np.float32(np.inf)), "expected: a finite reward"),
        (step_with(terminated=None), "expected: True or False as terminated\n  found:    None"),
        (step_with(truncated=2), "expected: True or False as truncated\n  found:    2"),
        (step_with(truncated="False"), "expected: True or False as truncated\n  found:    'False'"),
        (step_with(truncated=float("nan")), "expected: True or False as truncated\n  found:    nan"),
        (step_with(terminated=np.zeros(2, bool)), "found:    bool array of shape (2,)"),
        (step_with(info=[]), "expected: a dict as info\n  found:    list"),
    ],
)
def test_a_wrong_step(step, found):
    with pytest.raises(EnvironmentContractError) as caught:
        FirstCallChecks(Returns(step=step)).step(0)
    assert str(caught.value).startswith("Returns.step()\n") and found in str(caught.value)


@pytest.mark.parametrize("reward", [1, True, 0.5, np.float32(2), np.int8(3), np.array([1.5]), np.bool_(True)])
def test_right_rewards(reward):
    step = step_with(reward=reward, terminated=np.bool_(True), truncated=1)
    assert FirstCallChecks(Returns(step=step)).step(0) is step


@pytest.mark.parametrize(
    ("space", "observation", "found"),
    [
        (BOX, np.zeros(3, np.float32), "float32 array of shape (3,)"),
        (gym.spaces.Dict(a=BOX), {"a": ROW, "b": ROW}, "dict with keys ['a', 'b']"),
        (gym.spaces.Tuple([BOX]), (ROW, ROW), "tuple of 2"),
        (gym.spaces.Discrete(3), 1.0, "float"),
    ],
)
def test_observations_outside_of_the_space(space, observation, found):
    env = FirstCallChecks(Returns((observation, {}), step_with(observation=observation), space))
    for call, name in ((env.reset, "reset"), (lambda: env.step(0), "step")):
        with pytest.raises(SpaceError) as caught:
            call()
        assert f"observation of Returns.{name}()" in str(caught.value) and found in str(caught.value)


def test_after_a_right_call_the_environments_own_methods_are_called():
    inner = Returns()
    env = FirstCallChecks(inner)
    assert env.reset(seed=1) == (ROW, {}) and env.step(0)[1] == 0.0
    assert env.reset == inner.reset and env.step == inner.step


def test_a_wrong_call_is_checked_again():
    inner = Returns(step=step_with(reward=None))
    env = FirstCallChecks(inner)
    for _ in range(2):
        with pytest.raises(EnvironmentContractError):
            env.step(0)


def test_the_classs_metadata_stay_as_they_are():
    env = gym.vector.SyncVectorEnv([lambda: FirstCallChecks(Returns())], autoreset_mode="SameStep")
    assert env.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in Returns.metadata


def test_terminal_observations_outlive_the_next_reset():
    row = np.zeros(2, np.float32)
    for ended in (True, False):
        step = ({"deep": (row, 3)}, 0.0, False, ended, {})
        found = TerminalCopies(Returns(step=step)).step(0)[0]
        row[:] += 1
        assert found["deep"][1] == 3 and np.array_equal(found["deep"][0], row) is not ended


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


class Scaled(gym.Env):
    """Observations that are all of one value, in a Box of [0, 1]."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.value, self.nested = config["value"], config.get("nested", False)
        box = gym.spaces.Box(0.0, config.get("high", 1.0), (2,), np.float32)
        self.observation_space = gym.spaces.Dict(picture=box) if self.nested else box

    def observation(self):
        row = np.full(2, self.value, np.float32)
        return {"picture": row} if self.nested else row

    def reset(self, *, seed=None, options=None):
        return self.observation(), {}

    def step(self, action):
        return self.observation(), 1.0, False, False, {}


def warnings_of(**env_config):
    config = PPOConfig().environment(Scaled, env_config=env_config).env_runners(num_envs_per_env_runner=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        algo = config.build_algo()
        algo.env_runner.sample(num_timesteps=8)
        algo.stop()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("value", [255.0, -3.0])
def test_far_out_of_bounds_is_warned_of_once(value):
    (text,) = warnings_of(value=value)
    assert "first observation of Scaled" in text and "from 0 to 1" in text and f"{value:g}" in text


def test_the_part_is_named():
    (text,) = warnings_of(value=255.0, nested=True)
    assert "picture" in text


@pytest.mark.parametrize("settings", [{"value": 1.5}, {"value": 0.5}, {"value": 1e6, "high": np.inf}])
def test_others_are_not(settings):
    assert warnings_of(**settings) == []


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
