"""The first reset and step of an environment are checked, later ones cost nothing."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EnvironmentContractError, SpaceError
from epibatch.env_runner.env_checks import FirstCallChecks, TerminalCopies

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
