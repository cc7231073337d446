"""Vector environments that do not keep to Gymnasium's contract, are interrupted, or reuse what they return."""

from __future__ import annotations

import os
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import EnvironmentContractError, RunnerError
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner
from fixture_envs import CountingEnv


def runner_on(vector_env):
    """A runner on a vector environment that exists."""
    config = PPOConfig().environment(lambda num_envs: vector_env).debugging(seed=0)
    settings = {"num_envs_per_env_runner": vector_env.num_envs, "gym_env_vectorize_mode": "vector_entry_point"}
    return SingleAgentEnvRunner(config=config.env_runners(**settings))


def counting(mode="NextStep", count=2, length=2):
    return SyncVectorEnv([lambda: CountingEnv(length)] * count, autoreset_mode=mode)


@pytest.mark.parametrize(
    ("call", "result", "words"),
    [
        ("reset", np.zeros((2, 1)), r"2 values: observations, infos, the last a dict\n  found:    ndarray"),
        ("step", (np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), {}), "found:    4 values: ndarray, ndarray"),
        ("step", (*[np.zeros(2)] * 5, {}), "found:    6 values"),
        ("step", (*[np.zeros(2)] * 4, [{}, {}]), "found:    5 values: ndarray, ndarray, ndarray, ndarray, list"),
    ],
)
def test_a_vector_environment_that_returns_something_else(call, result, words):
    runner = runner_on(counting())
    setattr(runner.env, call, lambda *args, **kwargs: result)
    with pytest.raises(EnvironmentContractError, match=rf"environment .*{call}\(\) of the vector env[\s\S]*{words}"):
        runner.sample(num_timesteps=2)


def test_one_that_resets_at_once_and_says_otherwise():
    envs = counting("SameStep")
    envs.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
    with pytest.raises(EnvironmentContractError, match=r"'final_obs' in its infos[\s\S]*AutoresetMode\.SAME_STEP"):
        runner_on(envs).sample(num_timesteps=20)


@pytest.mark.parametrize("resets", ["none", "all", "the ended"])
def test_only_ended_environments_may_be_reset(resets):
    """With NaN among the observations of the other one; the step itself is good."""

    class Half(gym.vector.VectorEnv):
        """Two observations that count steps; the first environment ends in its second step."""

        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
        num_envs = 2
        single_action_space = gym.spaces.Discrete(2)
        action_space = gym.spaces.MultiDiscrete([2, 2])
        single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2, 2))
        rows = np.array([[0.0, 0.0], [0.0, np.nan]], np.float32)

        def reset(self, *, seed=None, options=None):
            if options is not None and resets == "none":
                raise TypeError("no options here")
            self.rows[slice(None) if options is None or resets == "all" else 0, 0] = 0.0
            return self.rows, {}

        def step(self, actions):
            self.rows[:, 0] += 1
            return self.rows, np.ones(2), self.rows[:, 0] == [2, 9], np.zeros(2, np.bool_), {}

    runner = runner_on(Half())
    if resets == "the ended":
        first, second = runner.sample(num_timesteps=4, random_actions=True)
        assert first.get_observations()[:, 0].tolist() == second.get_observations()[:, 0].tolist() == [0, 1, 2]
        assert runner.sample(num_timesteps=2, random_actions=True)[0].get_observations()[:, 0].tolist() == [0, 1]
        return
    expected = RunnerError if resets == "none" else EnvironmentContractError
    message = "reset_mask[\\s\\S]*no options here" if resets == "none" else "they were reset as well"
    with pytest.raises(expected, match=message):
        runner.sample(num_timesteps=10, random_actions=True)
    (kept,) = runner.sample(num_timesteps=1, random_actions=True)
    assert kept.is_terminated and kept.get_observations()[:, 0].tolist() == [0, 1, 2]


class Dies(CountingEnv):
    """Its process ends in a call, if it is the first that gets there."""

    def __init__(self, marker, call):
        super().__init__()
        self.marker, self.call = marker, call

    def _die(self, call):
        if call == self.call and not self.marker.exists():
            self.marker.touch()
            os._exit(3)

    def reset(self, **settings):
        self._die("reset")
        return super().reset(**settings)

    def step(self, action):
        self._die("step")
        return super().step(action)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_worker_process_that_ends_is_named_and_replaced(tmp_path, call):
    config = PPOConfig().environment(lambda config: Dies(tmp_path / "died", call))
    config.env_runners(gym_env_vectorize_mode="async", num_envs_per_env_runner=2)
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(RunnerError, match=rf"failed in {call}\(\)[\s\S]*exit code[\s\S]*'sync'"):
        runner.sample(num_timesteps=2)
    assert sum(map(len, runner.sample(num_timesteps=4))) == 4
    runner.stop()


def test_environments_that_somebody_closed_are_made_anew_after_an_interruption(toys):
    runner = toys.runner(2)
    runner.sample(num_timesteps=2)
    before = runner.env

    def interrupt(actions):
        raise KeyboardInterrupt

    before.step = interrupt
    for closed in (False, True):
        if closed:
            before.close()
        with pytest.raises(KeyboardInterrupt):
            runner.sample(num_timesteps=2)
        assert runner.env is before
    assert sum(map(len, runner.sample(num_timesteps=2))) == 2 and runner.env is not before


def test_infos_of_an_environment_that_writes_them_into_the_same_arrays():
    class Clocked(gym.vector.VectorWrapper):
        """Not one of Gymnasium's, as far as can be told."""

        unwrapped = property(lambda self: self)
        clock = np.zeros(2)

        def step(self, actions):
            self.clock += 1
            return (*self.env.step(actions)[:4], {"clock": self.clock, "_clock": np.ones(2, np.bool_)})

    for episode in runner_on(Clocked(counting(length=9))).sample(num_timesteps=6):
        assert [info.get("clock") for info in episode.get_infos()] == [None, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("key", ["terminal_observation", "final_observation"])
def test_an_environment_that_seems_to_reset_inside_its_step_is_warned_of_once(key):
    class Resets(CountingEnv):
        def step(self, action):
            *rest, info = super().step(action)
            if rest[2]:
                info[key], (rest[0], _) = rest[0].copy(), self.reset()
            return (*rest, info)

    runner = SingleAgentEnvRunner(config=PPOConfig().environment(Resets))
    with pytest.warns(UserWarning, match=rf"Resets'> has '{key}'[\s\S]*wait for reset\(\)"):
        runner.sample(num_timesteps=6)
    runner.sample(num_timesteps=20)  # warnings are errors here


class Pair(MultiAgentEnv):
    """Two agents that share the object of their spaces; a step takes 2 ms and draws from the action space."""

    def __init__(self):
        super().__init__()
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(1000))
        self.drawn = []

    def reset(self, *, seed=None, options=None):
        self.action_spaces["a"].seed(0)
        return dict.fromkeys(self.agents, 0), {}

    def step(self, action_dict):
        time.sleep(0.002)
        self.drawn.append(int(self.action_spaces["a"].sample()))
        return dict.fromkeys(self.agents, 1), {"a": 1.0, "b": 0.0}, {"__all__": False}, {}, {}


def test_random_actions_of_agents_leave_the_environments_spaces_alone_and_steps_take_time():
    config = PPOConfig().environment(Pair).multi_agent(policies=["p"], policy_mapping_fn={"*": "p"}).debugging(seed=4)
    runner = MultiAgentEnvRunner(config=config)
    (episode,) = runner.sample(num_timesteps=5, random_actions=True)
    expected = gym.spaces.Discrete(1000, seed=0)
    assert runner.env.envs[0].drawn == [int(expected.sample()) for _ in range(5)]
    actions = [own.get_actions().tolist() for own in episode.agent_episodes.values()]
    assert len({*actions[0], *actions[1]}) > 6
    assert runner.get_metrics()["env_step_timer"] >= 5 * 0.002
