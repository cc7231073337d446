"""Steps of vector environments: one result for every autoreset mode, and errors that name the environment."""

from __future__ import annotations

import os
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.core.errors import EnvironmentContractError, RunnerError
from epibatch.env_runner import MultiAgentEnv, VectorMultiAgentEnv
from epibatch.env_runner.env_stepper import EnvStepper
from epibatch.env_runner.multi_agent_env_runner import MultiAgentStepper
from epibatch.env_runner.vector_envs import SyncEnvs


class TwoSteps(gym.Env):
    """Ends after two steps; observes 10 * episode + step, in one array that it reuses."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.episode, self.seen = -1, np.zeros(1, np.float32)

    def _now(self):
        self.seen[0] = 10 * self.episode + self.t
        return self.seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._now(), {"start": self.episode}

    def step(self, action):
        self.t += 1
        return self._now(), 1.0, self.t == 2, False, {"t": self.t}


def stepper(mode):
    envs = SyncVectorEnv([TwoSteps, TwoSteps], autoreset_mode=mode, copy=False)
    return EnvStepper(envs, "two-steps")


@pytest.mark.parametrize(
    ("mode", "observation", "final"),
    [
        (AutoresetMode.NEXT_STEP, 2.0, None),
        (AutoresetMode.SAME_STEP, 10.0, 2.0),
        (AutoresetMode.DISABLED, 10.0, 2.0),
    ],
)
def test_where_the_terminal_observation_is(mode, observation, final):
    envs = stepper(mode)
    envs.reset(seed=3)
    first, second = envs.step(np.zeros(2, int)), None
    assert first.final_observations is None and not first.terminateds.any()
    second = envs.step(np.zeros(2, int))
    assert second.terminateds.all() and second.rewards.tolist() == [1.0, 1.0]
    assert second.observations[:, 0].tolist() == [observation] * 2
    if final is None:
        assert second.final_observations is None
    elif mode is AutoresetMode.DISABLED:
        assert second.final_observations[:, 0].tolist() == [final] * 2
        assert second.reset_infos["start"].tolist() == [1, 1] and second.infos["t"].tolist() == [2, 2]
    else:
        assert len(second.final_observations) == 2 and second.reset_infos is None


def test_a_seed_makes_the_random_actions_repeatable():
    envs = stepper(AutoresetMode.NEXT_STEP)
    draws = []
    for _ in range(2):
        envs.reset(seed=11)
        draws.append([envs.env.action_space.sample().tolist() for _ in range(5)])
    assert draws[0] == draws[1]


def test_a_reset_that_cannot_be_done_alone_leaves_the_step_good():
    envs = stepper(AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))

    def refuse(**kwargs):
        raise KeyError("reset_mask")

    envs.env.reset = refuse
    step = envs.step(np.zeros(2, int))
    assert step.terminateds.all() and "reset_mask" in str(step.failure)
    assert step.final_observations[:, 0].tolist() == [2.0, 2.0]


def test_time_is_counted():
    envs = stepper(AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    assert envs.seconds > 0


@pytest.mark.parametrize(
    ("call", "result", "words"),
    [
        ("reset", np.zeros((2, 1)), "2 values: observations, infos, the last a dict\n  found:    ndarray"),
        ("step", (np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), {}), "found:    4 values: ndarray, ndarray"),
        ("step", (*[np.zeros(2)] * 5, {}), "found:    6 values"),
        ("step", (*[np.zeros(2)] * 4, [{}, {}]), "found:    5 values: ndarray, ndarray, ndarray, ndarray, list"),
    ],
)
def test_a_vector_environment_that_returns_something_else(call, result, words):
    envs = stepper(AutoresetMode.NEXT_STEP)
    setattr(envs.env, call, lambda *args, **kwargs: result)
    with pytest.raises(EnvironmentContractError) as caught:
        envs.reset(seed=0) if call == "reset" else envs.step(np.zeros(2, int))
    assert "environment 'two-steps'" in str(caught.value) and words in str(caught.value)


def test_one_that_resets_at_once_and_says_otherwise():
    envs = stepper(AutoresetMode.SAME_STEP)
    envs.env.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
    envs = EnvStepper(envs.env, "two-steps")
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(EnvironmentContractError, match=r"'final_obs' in its infos[\s\S]*AutoresetMode\.SAME_STEP"):
        envs.step(np.zeros(2, int))


def test_a_masked_reset_that_resets_all_leaves_the_step_good():
    envs = stepper(AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    envs.env.envs[1].t = -5  # goes on
    masked = envs.env.reset
    envs.env.reset = lambda options: masked()
    step = envs.step(np.zeros(2, int))
    assert step.terminateds.tolist() == [True, False] and "they were reset as well" in str(step.failure)


class Dies(TwoSteps):
    """Its process ends in its first step."""

    def step(self, action):
        os._exit(3)


def test_a_worker_process_that_ends_is_named():
    envs = EnvStepper(gym.vector.AsyncVectorEnv([Dies, TwoSteps]), "dies")
    envs.reset(seed=0)
    with pytest.raises(RunnerError, match=r"'dies' failed in step\(\)[\s\S]*a worker process has ended[\s\S]*'sync'"):
        envs.step(np.zeros(2, int))
    envs.interrupted()
    assert envs.broken
    envs.close()


def test_an_environment_that_somebody_closed_is_made_anew():
    envs = stepper(AutoresetMode.NEXT_STEP)
    envs.interrupted()
    assert not envs.broken
    envs.env.close()
    envs.interrupted()
    assert envs.broken


def test_infos_of_an_environment_that_writes_them_into_the_same_arrays():
    class Clocked(gym.vector.VectorWrapper):
        """Not one of Gymnasium's, as far as can be told."""

        unwrapped = property(lambda self: self)
        clock = np.zeros(2)

        def step(self, actions):
            self.clock += 1
            return (*self.env.step(actions)[:4], {"clock": self.clock})

    envs = EnvStepper(Clocked(stepper(AutoresetMode.NEXT_STEP).env), "clocked")
    envs.reset(seed=0)
    first = envs.step(np.zeros(2, int)).infos["clock"]
    assert envs.step(np.zeros(2, int)).infos["clock"].tolist() == [2.0, 2.0] and first.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("key", ["terminal_observation", "final_observation"])
def test_an_environment_that_seems_to_reset_inside_its_step_is_warned_of_once(key):
    class Resets(TwoSteps):
        def step(self, action):
            *rest, _ = super().step(action)
            info = {}
            if rest[2]:
                info[key], (rest[0], _) = rest[0].copy(), self.reset()
            return (*rest, info)

    envs = EnvStepper(SyncEnvs([Resets]), "resets")
    envs.reset(seed=3)
    envs.step(np.zeros(1, int))
    with pytest.warns(UserWarning, match=rf"'resets' has '{key}'[\s\S]*wait for reset\(\)"):
        envs.step(np.zeros(1, int))
    for _ in range(4):  # warnings are errors here
        envs.step(np.zeros(1, int))


class Counting(gym.vector.VectorEnv):
    """Two observations that count resets; `resets` are the environments that a reset with a mask resets."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, resets):
        self.num_envs, self.resets, self.counts = 2, resets, np.array([[5.0], [np.nan]])
        self.single_action_space = gym.spaces.Discrete(2)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))

    def reset(self, *, seed=None, options=None):
        if self.resets is None:
            raise TypeError("no options here")
        self.counts[self.resets] = -1.0
        return self.counts, {}

    def step(self, actions):
        return self.counts, np.zeros(2), np.array([True, False]), np.zeros(2, np.bool_), {}


def test_only_ended_environments_may_be_reset():
    step = EnvStepper(Counting([0]), "counting").step(np.zeros(2))
    np.testing.assert_array_equal(step.observations[:, 0], [-1.0, np.nan])
    assert step.final_observations[0] == 5.0
    failure = EnvStepper(Counting([0, 1]), "counting").step(np.zeros(2)).failure
    assert isinstance(failure, EnvironmentContractError) and "they were reset as well" in failure.found
    failure = EnvStepper(Counting(None), "counting").step(np.zeros(2)).failure
    assert "reset_mask" in failure.expected and "no options here" in failure.found


class Pair(MultiAgentEnv):
    """Two agents that share the object of their spaces."""

    def __init__(self):
        super().__init__()
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(1000))
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return dict.fromkeys(self.agents, 0), {}

    def step(self, action_dict):
        time.sleep(0.002)
        return dict.fromkeys(self.agents, 1), {"a": 1.0, "b": 0.0}, {"__all__": False}, {}, {}


@pytest.fixture
def agent_stepper():
    made = MultiAgentStepper(VectorMultiAgentEnv([Pair] * 2), seconds=5.0)
    yield made
    made.close()


def drawn(agent_stepper, times=3):
    return [agent_stepper.random_actions([["a", "b"], ["b"]]) for _ in range(times)]


def test_random_actions_are_of_those_asked_for_and_follow_the_seed(agent_stepper):
    agent_stepper.reset(4)
    first = drawn(agent_stepper)
    assert [[list(own) for own in one] for one in first] == [[["a", "b"], ["b"]]] * 3
    assert len({action for one in first for own in one for action in own.values()}) > 6
    agent_stepper.reset(None)
    assert drawn(agent_stepper) != first
    agent_stepper.reset(4)
    assert drawn(agent_stepper) == first
    assert [env.seeds for env in agent_stepper.env.envs] == [[4, None, 4], [5, None, 5]]


def test_environments_draw_from_spaces_of_their_own(agent_stepper):
    agent_stepper.reset(4)
    own = agent_stepper.env.envs[0].action_spaces["a"]
    own.seed(0)
    expected = gym.spaces.Discrete(1000, seed=0)
    drawn(agent_stepper)
    assert [own.sample() for _ in range(5)] == [expected.sample() for _ in range(5)]


def test_time_in_steps_is_added_up(agent_stepper):
    agent_stepper.reset(0)
    for _ in range(3):
        agent_stepper.step([{"a": 0, "b": 0}] * 2)
    assert agent_stepper.seconds >= 5.0 + 3 * 2 * 0.002


def test_closed_environments_have_to_be_made_anew(agent_stepper):
    agent_stepper.interrupted()
    assert not agent_stepper.broken
    agent_stepper.close()
    assert agent_stepper.broken
