"""What the calls of an environment return is checked: in the first calls, in later ones, and in other processes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import EnvironmentContractError, EpibatchError, SpaceError
from epibatch.env_runner import SingleAgentEnvRunner, make_vector_env
from fixture_envs import BOX, ScriptedEnv

ROW = np.zeros(3, np.float32)
GOOD = (ROW, 1.0, False, False, {})
NAMES = ("observation", "reward", "terminated", "truncated", "info")


def step_with(**changes):
    """A good step with other values."""
    return tuple(changes.get(name, good) for name, good in zip(NAMES, GOOD))


def vector_of(*envs, **settings):
    """A vector environment of these, after its reset."""
    left = list(envs)
    made = make_vector_env(lambda: left.pop(0), len(envs), **settings)
    made.reset(seed=0)
    return made


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (ROW, "expected: two values: observation, info\n  found:    float32 array of shape (3,)"),
        (None, "found:    None"),
        ((ROW, {}, 1), "found:    3 values: float32 array of shape (3,), dict, 1"),
        ((ROW, None), "expected: a dict as info\n  found:    None"),
    ],
)
def test_a_wrong_reset(result, found):
    env = ScriptedEnv()
    env.first = result
    with pytest.raises(EnvironmentContractError) as caught:
        vector_of(env)
    assert str(caught.value).startswith("ScriptedEnv.reset()\n") and found in str(caught.value)


FLAG = "expected: True or False as {}\n  found:    {}"
WRONG_VALUES = [
    ({"reward": None}, "expected: a number as reward\n  found:    None"),
    ({"reward": np.zeros(2)}, "found:    float64 array of shape (2,)"),
    ({"reward": "1"}, "expected: a number as reward\n  found:    '1'"),
    ({"terminated": None}, FLAG.format("terminated", "None")),
    ({"truncated": 2}, FLAG.format("truncated", "2")),
    ({"truncated": "False"}, FLAG.format("truncated", "'False'")),
    ({"truncated": float("nan")}, FLAG.format("truncated", "nan")),
    ({"terminated": np.zeros(2, bool)}, "found:    bool array of shape (2,)"),
]
WRONG_FIRST_STEPS = [
    (
        GOOD[:3],
        "observation, reward, terminated, truncated, info\n  found:    3 values: float32 array of shape (3,), 1.0",
    ),
    (step_with(reward=float("nan")), "expected: a finite reward\n  found:    nan"),
    (step_with(reward=np.float32(np.inf)), "expected: a finite reward"),
    (step_with(reward=10**400), "expected: a finite reward\n  found:    int"),
    (step_with(info=[]), "expected: a dict as info\n  found:    list"),
    *((step_with(**changes), found) for changes, found in WRONG_VALUES),
]


@pytest.mark.parametrize(("step", "found"), WRONG_FIRST_STEPS)
def test_a_wrong_first_step_is_checked_until_one_is_right(step, found):
    envs = vector_of(ScriptedEnv(step, step, GOOD))
    for _ in range(2):
        with pytest.raises(EnvironmentContractError) as caught:
            envs.step(np.array([0]))
        assert str(caught.value).startswith("ScriptedEnv.step()\n") and found in str(caught.value)
    inner = envs.envs[0].unwrapped
    for _ in range(102):  # bounds are checked in the first hundred
        assert envs.step(np.array([0]))[1] == 1.0
    assert envs.envs[0].step == inner.step and envs.envs[0].reset == inner.reset  # no check is left


@pytest.mark.parametrize(
    "reward", [1, True, 0.5, np.float32(2), np.int8(3), np.array([1.5]), np.bool_(True), np.array(2.0)]
)
def test_right_rewards_and_flags_of_any_type(reward):
    envs = vector_of(ScriptedEnv(step_with(reward=reward, terminated=np.bool_(True), truncated=1)))
    for _ in range(2):
        _, rewards, terminateds, truncateds, _ = envs.step(np.array([0]))
        assert (rewards[0], terminateds[0], truncateds[0]) == (float(np.asarray(reward).item()), True, True)
        envs.reset()


WRONG_ROWS = [
    (np.zeros(2, np.float32), "float32 array of shape (2,)"),
    (np.zeros((1, 3), np.float32), "float32 array of shape (1, 3)"),
    (np.float32(0), "float32 array of shape ()"),
    (np.zeros(3, complex), "complex128 array of shape (3,)"),
    (np.array(["0", "1", "2"]), "<U1"),
    ([[1.0], [2.0, 3.0]], "list"),
    (None, "NoneType"),
]
WRONG_LATER_STEPS = [
    *((step_with(observation=row), SpaceError, found) for row, found in WRONG_ROWS),
    *((step_with(**changes), EnvironmentContractError, found) for changes, found in WRONG_VALUES),
]


@pytest.mark.parametrize(("step", "error", "found"), WRONG_LATER_STEPS)
def test_a_wrong_later_step_is_a_failure_of_its_environment_alone(step, error, found):
    ended = step_with(observation=ROW + 1, terminated=True)
    envs = vector_of(ScriptedEnv(GOOD, step, ended), ScriptedEnv(GOOD, ended))
    envs.step(np.array([0, 0]))
    observations, rewards, terminateds, *_ = envs.try_step(np.array([0, 0]))
    assert observations[1].tolist() == [1.0] * 3 and (rewards[1], terminateds.tolist()) == (1.0, [False, True])
    assert list(envs.failures) == [0] and isinstance(envs.failures[0], error) and found in str(envs.failures[0])
    envs.reset()
    assert not envs.failures
    assert envs.step(np.array([0, 0]))[2].tolist() == [True, True]


@pytest.mark.parametrize("index", [0, 5, 9, 12])
def test_a_wrong_step_in_another_process_names_the_environment_and_loses_no_episode(index, tmp_path):
    step, error, found = WRONG_LATER_STEPS[index]
    ended = step_with(terminated=True)

    def make(config):
        for number in range(9):  # the first is made for its spaces alone
            try:
                (tmp_path / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            return ScriptedEnv(*([step] if number == 2 else [ended]))

    config = PPOConfig().environment(make)
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode="async")
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(error, match=r"number \d of 2, [\s\S]*failed in step\(\)[^\n]*:") as caught:
        runner.sample(num_timesteps=20)
    assert isinstance(caught.value, EpibatchError) and found in str(caught.value)
    (episode,) = runner.sample(num_timesteps=1)
    assert episode.is_done and len(episode) == 1  # that of the other one, which ended in the same step
    runner.stop()


NESTED = Dict(a=Discrete(3), b=Tuple((BOX, Dict(c=BOX))))
PARTS = {"a": 1, "b": (ROW, {"c": ROW})}


@pytest.mark.parametrize("good", [0, 1])
@pytest.mark.parametrize(
    ("row", "part", "found"),
    [
        ({"a": 1}, "", "['a']"),
        ({**PARTS, "more": 1}, "", "['a', 'b', 'more']"),
        ({**PARTS, "b": (*PARTS["b"], 1)}, "['b']", "tuple of 3"),
        ({**PARTS, "b": (ROW, {"c": ROW, "d": 1})}, "['b'][1]", "['c', 'd']"),
        ({**PARTS, "b": (ROW, {"c": np.zeros(2)})}, "['b'][1]['c']", "shape (2,)"),
        ({**PARTS, "a": 0.5}, "['a']", "float"),
    ],
)
def test_which_part_of_a_nested_observation_does_not_fit(row, part, found, good):
    """In the first step, and in later ones."""
    right = ScriptedEnv(step_with(observation=PARTS), reset=(PARTS, {}), space=NESTED)
    steps = [step_with(observation=PARTS)] * good
    envs = vector_of(right, ScriptedEnv(*steps, step_with(observation=row), reset=(PARTS, {}), space=NESTED))
    for _ in steps:
        envs.step(np.array([0, 1]))
    with pytest.raises(SpaceError) as error:
        envs.step(np.array([0, 1]))
    where = "ScriptedEnv" if good else "ScriptedEnv.step()"
    assert f"observation of {where}{part}\n" in str(error.value) and found in str(error.value)


def test_a_type_that_the_space_cannot_hold_is_named():
    pixels = Box(0, 255, (3,), np.uint8)
    env = ScriptedEnv(step_with(observation=np.zeros(3, np.uint8)), step_with(observation=ROW + 0.5), space=pixels)
    envs = vector_of(env)
    envs.step(np.array([0]))
    with pytest.raises(SpaceError, match=r"observation of ScriptedEnv[\s\S]*uint8[\s\S]*Cannot cast"):
        envs.step(np.array([0]))


def test_terminal_observations_outlive_the_next_reset():
    class Reused(ScriptedEnv):
        """Returns the same array from every call."""

        def reset(self, **settings):
            self.first[0][:] = 7
            return super().reset()

    envs = vector_of(Reused(step_with(observation=ROW, terminated=True), reset=(ROW, {})), autoreset="same_step")
    ROW[:] = 0
    try:
        observations, *_, infos = envs.step(np.array([0]))
        assert infos["final_obs"][0].tolist() == [0.0] * 3 and observations[0].tolist() == [7.0] * 3
    finally:
        ROW[:] = 0


def test_the_classs_metadata_stay_as_they_are():
    class Own(ScriptedEnv):
        metadata = {"render_modes": []}  # noqa: RUF012

    assert vector_of(Own(), autoreset="same_step").metadata["autoreset_mode"].name == "SAME_STEP"
    assert Own.metadata == {"render_modes": []}


# ------------------------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    ("value", "high", "nested", "words"),
    [
        (255.0, 1.0, False, ("first observation of ScriptedEnv", "from 0 to 1", "255")),
        (-3.0, 1.0, False, ("-3",)),
        (255.0, 1.0, True, ("picture",)),
        (1.5, 1.0, False, None),
        (0.5, 1.0, True, None),
        (1e6, np.inf, False, None),
    ],
)
def test_far_out_of_bounds_is_warned_of_once(value, high, nested, words, recwarn):
    box, row = Box(0.0, high, (2,), np.float32), np.full(2, value, np.float32)
    space, row = (Dict(picture=box), {"picture": row}) if nested else (box, row)
    env = ScriptedEnv(step_with(observation=row), reset=(row, {}), space=space)
    warnings.simplefilter("default")
    envs = make_vector_env(lambda: env, 1)
    for _ in range(2):
        envs.reset(seed=0)
        envs.step(np.array([0]))
    assert len(recwarn) == (words is not None)
    assert all(word in str(recwarn[0].message) for word in words or ())
