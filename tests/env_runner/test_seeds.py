"""Random streams of runs, runners and environments: none is another's, and a failure changes only its own."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, SingleAgentEnvRunner, environment_seeds

UNIT = gym.spaces.Box(0.0, 1.0, (1,), np.float64)


class Draws(gym.Env):
    """Observations are drawn from the environment's generator; the length of an episode is, too."""

    observation_space, action_space = UNIT, gym.spaces.Discrete(2)

    def __init__(self, config):
        self.fails_at, self.steps = config.get("fails_at"), 0
        self.number = config["made"].append(self) or len(config["made"]) - 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(2, 6)), 0
        return self.np_random.random(1), {}

    def step(self, action):
        self.steps, self.t = self.steps + 1, self.t + 1
        if (self.number, self.steps) == self.fails_at:
            raise ValueError("planted")
        return self.np_random.random(1), 1.0, self.t == self.length, False, {}


class DrawsOfAgent(MultiAgentEnv):
    def __init__(self, config):
        super().__init__()
        self.env, self.possible_agents = Draws(config), ["a"]
        self.agents = self.possible_agents
        self.observation_spaces, self.action_spaces = {"a": UNIT}, {"a": Draws.action_space}

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed)
        return {"a": obs}, {"a": info}

    def step(self, action_dict):
        obs, reward, terminated, _, info = self.env.step(action_dict["a"])
        return {"a": obs}, {"a": reward}, {"__all__": terminated}, {"__all__": False}, {"a": info}


def runner_of(env, num_envs=4, seed=5, worker=0, mode="sync", **env_config):
    config = PPOConfig().environment(env, env_config={"made": [], **env_config}).debugging(seed=seed)
    config.env_runners(num_envs_per_env_runner=num_envs, gym_env_vectorize_mode=mode)
    config.fault_tolerance(restart_failed_sub_environments=True)
    if env is DrawsOfAgent:
        config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    runner = MultiAgentEnvRunner if env is DrawsOfAgent else SingleAgentEnvRunner
    return runner(config=config.rl_module(model_config={"fcnet_hiddens": [2]}), worker_index=worker)


def first_observations(runner):
    """The observations that the environments' first episodes begin with: [N]."""
    episodes = [episode for episode in runner.sample(num_timesteps=runner.num_envs) if not is_later(episode)]
    runner.stop()
    return [first_of(episode) for episode in episodes]


def is_later(episode):
    return bool(getattr(episode, "t_started", getattr(episode, "env_t_started", 0)))


def first_of(episode):
    first = episode.get_observations(0)
    return float((first["a"] if isinstance(first, dict) else first)[0])


@given(seed=st.integers(0, 2**32 - 2))
def test_no_seed_is_one_of_another_run_or_runner(seed):
    seeds = [environment_seeds(seed + run, 8, worker) for run in (0, 1) for worker in range(4)]
    assert len({*np.ravel(seeds)}) == 2 * 4 * 8
    assert all(0 <= drawn < 2**31 for drawn in np.ravel(seeds))
    assert environment_seeds(seed, 3, 2) == seeds[2][:3]


@pytest.mark.parametrize("env", [Draws, DrawsOfAgent])
def test_runs_and_runners_begin_differently_and_the_same_one_alike(env):
    first, again = ([first_observations(runner_of(env, 8, s, w)) for s in (3, 4) for w in (0, 1)] for _ in range(2))
    assert first == again and len({*np.ravel(first)}) == 4 * 8
    assert [first_observations(runner_of(env, 1, 4, worker=1))] == [first[3][:1]]  # whatever their number is
    expected = [np.random.default_rng(seed) for seed in environment_seeds(4, 8, worker_index=1)]
    assert first[3] == [rng.random() for rng in expected if rng.integers(2, 6)]


def played(env, **env_config):
    """Returns, for each environment, the first observations of its episodes, with saves and resets in between."""
    runner, begun = runner_of(env, **env_config), {number: [] for number in range(4)}
    for call in range(6):
        episodes = runner.sample(num_timesteps=40)
        if call == 3:
            runner.checkpoint_reset()
        envs = [chunk.env for chunk in episodes.chunks] if env is Draws else map(runner.env_of, episodes)
        for number, episode in zip(envs, episodes):
            if not is_later(episode):
                begun[number].append(first_of(episode))
    restarts = runner.get_metrics()["num_env_restarts_lifetime"]
    runner.stop()
    return begun, restarts


@pytest.mark.parametrize("env", [Draws, DrawsOfAgent])
def test_an_environment_that_is_made_again_changes_no_other(env):
    plain, restarts = played(env)
    assert restarts == 0
    failing, restarts = played(env, fails_at=(1, 17))
    assert restarts == 1
    assert {**failing, 1: None} == {**plain, 1: None}
    assert failing[1] != plain[1] and failing[1][:2] == plain[1][:2]
    assert len({*failing[1]}) == len(failing[1]) > 10


def test_a_state_for_more_or_fewer_environments():
    saved = runner_of(Draws, 3)
    saved.sample(num_timesteps=20)
    saved.checkpoint_reset()
    expected = first_observations(runner_like(saved, 3))
    for count in (2, 5):
        found = first_observations(runner_like(saved, count))
        assert found[:3] == expected[:count] and len({*found}) == count


def runner_like(saved, num_envs):
    runner = runner_of(Draws, num_envs, seed=99)
    runner.set_state(saved.get_state())
    return runner


class OneNumber(gym.vector.VectorEnv):
    """A vector environment that takes a single seed, as Gymnasium's base class does."""

    def __init__(self, num_envs, made):
        self.num_envs, self.single_observation_space, self.single_action_space = num_envs, UNIT, Draws.action_space
        self.observation_space = gym.vector.utils.batch_space(UNIT, num_envs)
        self.action_space = gym.vector.utils.batch_space(Draws.action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random((self.num_envs, 1)), {}

    def step(self, actions):
        no = np.zeros(self.num_envs, bool)
        return self.np_random.random((self.num_envs, 1)), np.ones(self.num_envs), no, no, {}


class OwnReset(gym.vector.SyncVectorEnv):
    """Counts with its seed, so it takes no list."""

    def __init__(self, num_envs, made):
        super().__init__([lambda: Draws({"made": []})] * num_envs)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None if seed is None else seed + 1, options=options)


@pytest.mark.parametrize("arguments", [(-1, 2), (1.5, 2), ("one", 2), (1, 2, -1)])
def test_wrong_seeds_are_named(arguments):
    with pytest.raises(ConfigError, match=r"seed\n.*whole numbers of at least 0"):
        environment_seeds(*arguments)


@pytest.mark.parametrize("env", [OneNumber, OwnReset])
def test_vector_environments_that_take_a_single_seed(env):
    first, again, other = (first_observations(runner_of(env, 3, seed, mode="vector_entry_point")) for seed in (3, 3, 4))
    assert first == again and len({*first, *other}) == 6
