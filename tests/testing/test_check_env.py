"""`check_env`: planted faults are found with their path and step, and good environments have no findings."""

from __future__ import annotations

import json
import os
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.core.errors import ConfigError, EnvironmentCheckError, UnknownNameError
from epibatch.env_runner import MultiAgentEnv, ParallelPettingZooEnv, PettingZooEnv, make_multi_agent
from epibatch.testing import check_env
from fixture_envs import RandomEnv

CAMERA = Box(0, 255, (2, 2), np.uint8)
SPACE = Dict(camera=CAMERA, pose=Tuple([Box(-1, 1, (3,), np.float32), Discrete(4, start=1)]))
LENGTH, FAULT_AT = 5, 3


class Robot(gym.Env):
    """Episodes of LENGTH steps with seeded observations; `fault(step, result)` changes what step FAULT_AT returns."""

    observation_space, action_space = SPACE, Box(-2, 2, (1,), np.float32)

    def __init__(self, fault=None):
        self.fault = fault

    def _observe(self):
        rng = self.np_random
        pose = (np.float32([self.t, -self.t, 2]) / LENGTH, int(rng.integers(1, 5)))
        return {"camera": rng.integers(0, 256, (2, 2), np.uint8), "pose": pose}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        result = [self._observe(), float(action[0]), self.t == LENGTH, False, {}]
        if self.t == FAULT_AT and self.fault is not None:
            result = self.fault(*result)
        return tuple(result)


def with_observation(**changes):
    return lambda observation, *rest: [{**observation, **changes}, *rest]


def with_value(index, value):
    return lambda *result: [*result[:index], value, *result[index + 1 :]]


def without_camera(observation, *rest):
    del observation["camera"]
    return [observation, *rest]


def raises(*result):
    raise ZeroDivisionError("wheel of size 0")


GOOD = np.zeros(3, np.float32)
FAULTS = {
    "type": (with_observation(camera=np.zeros((2, 2))), "observation['camera']", "float64"),
    "shape": (with_observation(camera=np.zeros((2, 3), np.uint8)), "observation['camera']", "(2, 3)"),
    "rank": (with_observation(camera=np.zeros((1, 2, 2), np.uint8)), "observation['camera']", "(1, 2, 2)"),
    "missing key": (without_camera, "observation", "['pose']"),
    "additional key": (with_observation(sonar=1), "observation", "sonar"),
    "bounds": (with_observation(pose=(np.float32([0, 0, -1.01]), 1)), "observation['pose'][0]", "-1.01 at (2,)"),
    "choice": (with_observation(pose=(GOOD, 0)), "observation['pose'][1]", "0"),
    "NaN": (with_observation(pose=(np.float32([0, np.nan, 0]), 1)), "observation['pose'][0]", "nan at (1,)"),
    "reward is text": (with_value(1, "1.0"), "reward", "'1.0'"),
    "reward is NaN": (with_value(1, np.nan), "reward", "nan"),
    "flag is text": (with_value(2, "False"), "terminated", "'False'"),
    "info is a list": (with_value(4, []), "info", "list"),
    "four values": (lambda *result: result[:4], "step()", "4 values"),
    "raises": (raises, "step()", "ZeroDivisionError: wheel of size 0"),
}


def findings_of(env, **settings):
    """The report of an environment with errors."""
    with pytest.raises(EnvironmentCheckError) as caught:
        check_env(env, **{"num_steps": 4 * LENGTH, "timeout_s": None, **settings})
    assert isinstance(caught.value, AssertionError)
    return caught.value.report


class Pair(MultiAgentEnv):
    """Two robots; that of bob has a fault."""

    def __init__(self, fault):
        super().__init__()
        self.robots = {"ann": Robot(), "bob": Robot(fault)}
        self.agents = self.possible_agents = list(self.robots)
        self.observation_spaces = dict.fromkeys(self.agents, SPACE)
        self.action_spaces = dict.fromkeys(self.agents, Robot.action_space)

    def reset(self, *, seed=None, options=None):
        seeds = {"ann": seed, "bob": None if seed is None else seed + 1}
        return {agent: robot.reset(seed=seeds[agent])[0] for agent, robot in self.robots.items()}, {}

    def step(self, action_dict):
        steps = {agent: self.robots[agent].step(action) for agent, action in action_dict.items()}
        if {*map(len, steps.values())} != {5}:
            return steps["bob"]
        columns = [{agent: step[i] for agent, step in steps.items()} for i in range(5)]
        columns[2]["__all__"] = all(columns[2].values())
        return tuple(columns)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("agents", [1, 2])
def test_a_planted_fault_is_found_with_its_path_and_step(fault, agents):
    change, path, found = FAULTS[fault]
    report = findings_of(lambda: Robot(change) if agents == 1 else Pair(change))
    if agents == 2 and "()" not in path:
        name, bracket, keys = path.partition("[")
        path = f"{name}s['bob']{bracket}{keys}"
    (finding,) = [finding for finding in report if finding.path == path]
    assert finding.level == "error" and (finding.step, finding.episode) == (FAULT_AT, 1) and found in finding.found
    assert finding.times > 1 and not report.ok and f"error: {path}, step 3 of episode 1" in str(report)
    assert len(report.findings) == 1, str(report)


class Robots(gym.vector.VectorEnv):
    """Counts to LENGTH in two environments; `changes` replace what the vector step FAULT_AT returns."""

    def __init__(self, num_envs, mode="same_step", **changes):
        self.num_envs, self.changes = num_envs, changes
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode[mode.upper()]}
        self.single_observation_space, self.single_action_space = Box(0, LENGTH, (1,)), Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.t = np.where(mask, 0, getattr(self, "t", 0))
        self.steps = 0 if seed is not None else self.steps
        return self._observe(), {}

    def _observe(self):
        return self.t[:, None].astype(np.float32)

    def step(self, actions):
        self.t, self.steps = self.t + 1, self.steps + 1
        done = self.t == LENGTH
        values = {"rewards": np.ones(self.num_envs), "terminateds": done, "truncateds": np.zeros(self.num_envs, bool)}
        values["infos"] = {}
        if self.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP and done.any():
            values["infos"] = {"final_obs": self._observe(), "_final_obs": done}
            self.t = np.where(done, 0, self.t)
        values = {"observations": self._observe(), **values}
        return tuple((values | (self.changes if self.steps == FAULT_AT else {})).values())


@pytest.mark.parametrize(
    ("changes", "path", "environment", "found"),
    [
        ({"observations": np.float32([[1], [5.5]])}, "observations", 1, "5.5 at (1, 0)"),
        ({"observations": np.zeros((2, 2), np.float32)}, "observations", None, "(2, 2)"),
        ({"rewards": np.array([np.nan, 0])}, "rewards[0]", 0, "nan"),
        ({"rewards": np.zeros((2, 1))}, "rewards", None, "(2, 1)"),
        ({"truncateds": ["False", False]}, "truncateds[0]", 0, "'False'"),
        ({"infos": None}, "infos", None, "None"),
    ],
)
def test_a_fault_of_a_vector_environment_is_found_with_its_number(changes, path, environment, found):
    report = findings_of(lambda num_envs: Robots(num_envs, **changes))
    (finding,) = report
    assert (finding.path, finding.step, finding.environment) == (path, FAULT_AT, environment)
    assert found in finding.found


def test_ends_in_vector_environments():
    for mode in ("same_step", "disabled"):
        report = check_env(lambda num_envs, mode=mode: Robots(num_envs, mode), num_steps=4 * LENGTH, timeout_s=None)
        assert not report.findings and report.num_episodes == 2 * 4, str(report)


class NoFinal(Robots):
    def step(self, actions):
        return (*super().step(actions)[:4], {})


def test_a_vector_environment_without_terminal_observations():
    (finding,) = check_env(NoFinal, num_steps=9, timeout_s=None)
    assert (finding.level, finding.path, finding.step, finding.environment) == ("warning", "infos", LENGTH, 0)


class Unseeded(Robot):
    def reset(self, *, seed=None, options=None):
        return super().reset()


class Shared(Robot):
    total = 0

    def _observe(self):
        Shared.total = (0 if self.t == 0 else Shared.total + 1) % 4
        return {**super()._observe(), "pose": (GOOD, Shared.total + 1)}


class Reuses(Robot):
    camera = None

    def _observe(self):
        observation = super()._observe()
        if self.camera is None:
            self.camera = observation["camera"]
        self.camera[:] = observation["camera"]
        return {**observation, "camera": self.camera}


@pytest.mark.parametrize(
    ("env", "level", "path", "step", "text"),
    [
        (Unseeded, "error", "observation['camera']", 0, r"super().reset(seed=seed)"),
        (Shared, "error", "observation['pose'][1]", 1, "beside a second environment"),
        (Reuses, "warning", "observation['camera']", 1, "overwritten"),
    ],
)
def test_faults_of_several_calls(env, level, path, step, text):
    (finding,) = findings_of(env) if level == "error" else check_env(env, num_steps=20, timeout_s=None)
    assert (finding.level, finding.path, finding.step) == (level, path, step) and text in str(finding)


def test_two_faults_of_one_value_are_two_findings():
    class Both(RandomEnv):
        count = 0

        def _observe(self):
            self.count += 1
            return np.full(1, {2: 7, 4: np.nan}.get(self.count, 0), np.float32)

    found = [finding.found for finding in findings_of(lambda: Both(Box(-1, 1, (1,))))]
    assert found[:2] == ["7.0 at (0,)", "nan at (0,)"]


class Locked(gym.Env):
    """Refuses actions that its mask forbids: 1 for the first entry, and 0 for the second."""

    observation_space, action_space = Dict(action_mask=MultiBinary(5)), MultiDiscrete([2, 3])
    taken: frozenset = frozenset()

    def reset(self, *, seed=None, options=None):
        return {"action_mask": np.int8([1, 0, 0, 1, 1])}, {}

    def step(self, action):
        assert action[0] == 0 and action[1] > 0
        self.taken |= {int(action[1])}
        return self.reset()[0], 0.0, False, False, {}


class LockedChoice(Locked):
    """The same of one choice of five."""

    action_space = Discrete(5)

    def step(self, action):
        assert action in (0, 3, 4)
        return super().step([0, 1])


def test_masks_of_several_choices_are_heeded():
    env = Locked()
    assert not check_env(env, num_steps=30).findings and env.taken == {1, 2}
    report = check_env(
        lambda num_envs: gym.vector.SyncVectorEnv([LockedChoice] * num_envs), num_steps=30, timeout_s=None
    )
    assert not report.findings, str(report)


class WithoutOptions(Robot):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)


class ClosesTwice(Robot):
    def close(self):
        raise OSError("not open")


@pytest.mark.parametrize(
    ("env", "path", "found", "num_steps"),
    [(WithoutOptions, "reset()", "keyword argument 'options'", 0), (ClosesTwice, "close()", "OSError: not open", 20)],
)
def test_calls_that_raise(env, path, found, num_steps):
    report = findings_of(env)
    (finding,) = report
    assert finding.path == path and found in finding.found and report.num_steps == num_steps


class Hangs(Robot):
    def step(self, action):
        if self.t == FAULT_AT:
            time.sleep(600)
        return super().step(action)


class Dies(Robot):
    def step(self, action):
        if self.t == FAULT_AT:
            os._exit(7)
        return super().step(action)


@pytest.mark.parametrize(
    ("env", "timeout", "found"), [(Hangs, 0.5, "the process was killed"), (Dies, 60, "it has ended, with exit code 7")]
)
def test_an_environment_that_hangs_or_dies_is_reported_with_its_step(env, timeout, found):
    report = findings_of(env, timeout_s=timeout)
    (finding,) = report
    assert (finding.path, finding.step, finding.episode) == ("step()", FAULT_AT + 1, 1) and found in finding.found
    assert report.num_steps == FAULT_AT


GOOD_ENVS = [
    "CartPole-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Taxi-v3",
    make_multi_agent("CartPole-v1"),
    Robot,
    Robot(),
    lambda: RandomEnv(
        Dict(a=MultiBinary(3), b=MultiDiscrete([[2, 3], [4, 1]]), c=Box(-np.inf, np.inf, (), np.float64))
    ),
    lambda: gym.wrappers.TimeLimit(RandomEnv(action_space=SPACE), 4),
    lambda num_envs: gym.make_vec("CartPole-v1", num_envs, "vector_entry_point"),
    lambda num_envs: gym.vector.SyncVectorEnv([RandomEnv] * num_envs),
]


@pytest.mark.parametrize("number", range(len(GOOD_ENVS)))
def test_good_environments_have_no_findings(number):
    report = check_env(GOOD_ENVS[number], num_steps=50, timeout_s=None)
    assert report.ok and not report.findings and report.num_steps == 50, str(report)


def test_environments_of_pettingzoo_have_no_findings():
    pytest.importorskip("pettingzoo")
    parallel = ParallelPettingZooEnv("classic/rps_v2")
    for env in (
        "pettingzoo/classic/tictactoe_v3",
        PettingZooEnv("classic/tictactoe_v3").env,
        parallel,
        parallel.par_env,
    ):
        report = check_env(env, num_steps=30, timeout_s=None)
        assert not report.findings and report.num_steps == 30, str(report)


class Rounded(RandomEnv):
    """The sum of three times 0.1 in float32, a unit in the last place above 0.3."""

    def __init__(self):
        super().__init__(Box(0, np.float32(0.3), (1,)))

    def _observe(self):
        return np.nextafter(np.float32([0.3]), np.float32(1))


def test_rounding_at_a_bound_is_no_fault():
    assert not check_env(Rounded, num_steps=9, timeout_s=None).findings


@pytest.mark.parametrize("space", [gym.spaces.Sequence(Discrete(3)), gym.spaces.Graph(Box(0, 1, (2,)), None)])
def test_values_of_any_number_of_rows_are_checked(space):
    assert not check_env(lambda: RandomEnv(space), num_steps=9, timeout_s=None).findings
    wrong = findings_of(lambda: gym.wrappers.TransformObservation(RandomEnv(space), lambda _: 1.5, space))
    assert [finding.found for finding in wrong.errors] == ["1.5"]


def refuses(config):
    raise OSError("no licence")


def test_what_cannot_be_made():
    (finding,) = findings_of(refuses)
    assert (
        finding.path == "its constructor" and "OSError: no licence" in finding.found and "test_check" in finding.found
    )
    for env, error, text in (
        ("CartPole-v99", UnknownNameError, "CartPole-v1"),
        (lambda: None, ConfigError, "None: does the function return it"),
        (3, ConfigError, "int: 3"),
    ):
        with pytest.raises(error, match=text):
            check_env(env, num_steps=5)
    with pytest.raises(ConfigError, match="none with a made environment"):
        check_env(Robot(), env_config={"fault": None})


def test_settings_out_of_range_are_no_fault_of_the_environment():
    wrong = {"num_steps": (0, True, 1.5), "seed": (-1, 1.5, None), "timeout_s": (0, -1.0, "5", np.nan)}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ConfigError, match=name):
                check_env("CartPole-v1", **{name: value})
    assert check_env(RandomEnv, num_steps=np.int64(3), timeout_s=None).num_steps == 3


MODULE = """
from gymnasium.spaces import Box
from gymnasium.envs.classic_control import CartPoleEnv

class Cart(CartPoleEnv):
    def __init__(self, high=1000.0):
        super().__init__()
        self.observation_space = Box(-1000.0, high, (4,))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "my_carts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda *words: CliRunner().invoke(app, ["check-env", *words])
    sys.modules.pop("my_carts", None)


def test_the_command(run):
    result = run("CartPole-v1", "--steps", "9")
    assert result.exit_code == 0 and result.stdout.startswith("CartPole-v1: no errors, no warnings; 9 steps, ")
    cart = ("my_carts:Cart", "--allow-imports", "--steps", "9", "--seed", "3")
    assert run(*cart).exit_code == 0
    result = run(*cart, "--env-config", "high=-500.0", "--json")
    assert result.exit_code == 1
    assert {(row["level"], row["path"], row["step"]) for row in json.loads(result.stdout)} == {
        ("error", "observation", 0)
    }
    for words, text in (
        (("my_carts:Cart",), "--allow-imports"),
        (("CartPole-v99",), "CartPole-v1"),
        (("no_such_module:Cart", "--allow-imports"), "No module named 'no_such_module'"),
        (("CartPole-v1", "--env-config", "high"), "key=value"),
        ((*cart, "--env-config", "low=1"), "high"),
    ):
        result = run(*words)
        assert result.exit_code == 2 and text in result.stderr and "Traceback" not in result.stderr, result.stderr
