"""Warnings and errors about environments whose values, modes or constructors break Gymnasium's contract."""

from __future__ import annotations

import os
import threading
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import (
    ConfigError,
    EnvironmentContractError,
    EpibatchWarning,
    RunnerError,
    SpaceError,
    UnknownNameError,
)
from epibatch.env_runner import AsyncEnvs, MultiAgentEnv, SingleAgentEnvRunner, make_multi_agent, make_vector_env

S = gym.spaces
UNIT = S.Box(0, 1, (1,), np.float32)


class Env(gym.Env):
    """Gives zeros, and `later` from a step on."""

    action_space = S.Discrete(2)

    def __init__(self, space=UNIT, later=0.0, since=3, reward=1.0):
        self.observation_space, self.later, self.since, self.reward = space, later, since, reward

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), self.reward, False, False, {}

    def observe(self):
        value = self.later if self.t >= self.since else 0.0
        space = self.observation_space
        return int(value) if isinstance(space, S.Discrete) else np.full(space.shape, value, np.float64)


OUTSIDE = pytest.mark.parametrize(("space", "later"), [(UNIT, 300.0), (S.Discrete(3), 7), (S.Discrete(3, start=2), 0)])


@OUTSIDE
def test_a_value_outside_of_its_space_in_the_first_steps_warns_once(space, later):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = make_vector_env(lambda: Env(space, later), 1)
        env.reset()
        for _ in range(9):
            env.step(np.array([0]))
    env.close()
    (warning,) = [str(item.message) for item in caught if isinstance(item.message, EpibatchWarning)]
    assert "as its space says" in warning and f"{later:g}" in warning


@OUTSIDE
def test_in_a_worker_process_it_warns_too(space, later):
    env = make_vector_env(lambda: Env(space, later, since=0), 1, "async")
    with pytest.raises(EpibatchWarning, match="as its space says"):  # the tests make errors of warnings, there too
        env.reset()
    env.close()


def test_values_a_little_outside_and_values_of_another_width_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make_vector_env(lambda: Env(UNIT, 1.1), 1)
        env.reset()
        for _ in range(9):
            env.step(np.array([0]))
    env.close()


class Vec(gym.vector.VectorEnv):
    """Episodes of 4 steps with reward 1; it resets in the same step (`at_once`) or in the next one, and has no mode."""

    def __init__(self, num_envs, at_once):
        self.num_envs, self.at_once = num_envs, at_once
        self.single_observation_space, self.single_action_space = S.Box(0, 9, (1,), np.float32), S.Discrete(2)
        spaces = self.single_observation_space, self.single_action_space
        self.observation_space, self.action_space = [gym.vector.utils.batch_space(x, num_envs) for x in spaces]

    def reset(self, *, seed=None, options=None):
        self.t = np.zeros(self.num_envs)
        return self.t[:, None].astype(np.float32), {}

    def step(self, actions):
        waiting = self.t >= 4
        self.t = np.where(waiting, 0, self.t + 1)
        ended = self.t >= 4
        if self.at_once:
            self.t[ended] = 0
        return self.t[:, None].astype(np.float32), (~waiting).astype(float), ended, np.zeros_like(ended), {}


@pytest.mark.parametrize("at_once", [True, False])
def test_rows_that_prove_another_autoreset_mode_than_the_assumed_one_warn_once(at_once):
    config = PPOConfig().environment(Vec, env_config={"at_once": at_once})
    config.env_runners(num_envs_per_env_runner=3, gym_env_vectorize_mode="vector_entry_point")
    runner = SingleAgentEnvRunner(config=config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.sample(num_timesteps=60)
    runner.stop()
    found = [str(item.message) for item in caught if isinstance(item.message, EpibatchWarning)]
    assert len(found) == at_once and all("'autoreset_mode'" in text and "SAME_STEP" in text for text in found)


@pytest.mark.parametrize("space", [S.Sequence(S.Sequence(UNIT)), S.OneOf([UNIT]), S.Dict(a=S.OneOf([UNIT]))], ids=str)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_observations_without_one_shape_are_the_same_error_in_both_modes(space, mode):
    with pytest.raises(SpaceError, match=r"(?s)observation space.*TransformObservation"):
        make_vector_env(lambda: Env(space), 1, mode)


class NeverCloses(Env):
    def close(self):
        time.sleep(60)


class FailsToClose(Env):
    def close(self):
        raise OSError("no display")


@pytest.mark.parametrize(("env", "found"), [(FailsToClose, "OSError: no display"), (NeverCloses, "no return within")])
def test_an_environment_that_cannot_be_closed_does_not_stop_async(env, found):
    started, here = time.monotonic(), os.getpid()
    with pytest.warns(EpibatchWarning, match=f"(?s){env.__name__}.close.*{found}"):
        envs = AsyncEnvs([lambda: env() if os.getpid() == here else Env(), Env], timeout=0.5)
    assert time.monotonic() - started < 20
    assert envs.reset()[0].shape == (2, 1)
    envs.close()


def test_no_environments_and_functions_that_no_process_can_get():
    with pytest.raises(ConfigError, match=r"AsyncEnvs\n.*environments"):
        AsyncEnvs([])
    with pytest.raises(ConfigError, match=r"of several agents[\s\S]*VectorMultiAgentEnv"):
        AsyncEnvs([make_multi_agent("CartPole-v1")])
    lock = threading.Lock()
    with pytest.raises(RunnerError, match=r"(?s)'spawn'.*sent to another process.*lock"):
        AsyncEnvs([lambda: (lock, Env())[1]], context="spawn")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_reward_beyond_the_range_of_floats_is_no_finite_one(mode):
    env = make_vector_env(lambda: Env(reward=1), 1, mode)
    env.reset()
    assert env.step(np.array([0]))[1] == 1.0
    env.set_attr("reward", 10**400)
    for _ in range(2):
        with pytest.raises(EnvironmentContractError, match="a finite reward"):
            env.step(np.array([0]))
    env.close()


def test_an_id_of_another_form_is_an_unknown_name():
    with pytest.raises(UnknownNameError, match=r"(?s)a Gymnasium id.*\.\./\.\./x"):
        make_vector_env("../../x", 1)


class Turns(MultiAgentEnv):
    """Two agents that observe at every fifth step, in episodes of 20."""

    def __init__(self):
        super().__init__()
        self.possible_agents = ["a", "b"]
        self.observation_spaces = {agent: S.Box(-1, 99, (1,), np.float32) for agent in "ab"}
        self.action_spaces = {agent: S.Discrete(2) for agent in "ab"}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: np.zeros(1, np.float32) for agent in "ab"}, {}

    def step(self, actions):
        self.t += 1
        observed = {agent: np.zeros(1, np.float32) for agent in "ab"} if self.t % 5 == 0 else {}
        return observed, {"a": 1.0, "b": 1.0}, {"__all__": self.t == 20}, {}, {}


def test_an_iteration_in_which_no_agents_step_is_complete_samples_on():
    config = PPOConfig().environment(Turns).env_runners(rollout_fragment_length=4)
    config.multi_agent(policies={"p"}, policy_mapping_fn={"*": "p"})
    config.training(train_batch_size=4, minibatch_size=4, num_epochs=1)
    algo = config.build_algo()
    steps = [algo.train()["num_env_steps_sampled_lifetime"] for _ in range(5)]
    algo.stop()
    assert steps == [8, 12, 16, 20, 28]
