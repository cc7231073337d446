"""`gym_env_batch_size`: the runner acts for the environments that have answered, and each episode stays in order."""

from __future__ import annotations

import time
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from fixture_cases import slow_but

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2, FrameStacking
from epibatch.core.errors import ConfigError, RunnerError
from epibatch.env_runner import AsyncEnvs, SingleAgentEnvRunner, environment_seeds

SEEDS = environment_seeds(5, 16)


class Told(gym.Env):
    """Its number is the place of its first seed; it waits as `env_config` says, and fails where it says so."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.config, self.number, self.episode = config, None, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.number is None:
            self.number = SEEDS.index(seed) if seed in SEEDS else 99
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.number, self.episode, self.t + self.np_random.random()], np.float32)

    def step(self, action):
        slow = self.number == self.config.get("slow")
        path = self.config.get("until")
        while slow and path is not None and not path.exists():
            time.sleep(0.005)
        time.sleep(self.config.get("seconds", 0) * (20 if slow else 1))
        if (self.number, self.episode, self.t) == self.config.get("fails"):
            raise ArithmeticError("as told")
        self.t += 1
        ends = [self.t == 2 + (self.number + self.episode) % 3 and self.number % 2 == odd for odd in (0, 1)]
        return self.observe(), float(action) + self.t, *ends, {}


@pytest.fixture
def made():
    runners = []

    def make(num_envs=4, batch_size=None, env_config=None, model=None, restarts=False, **settings):
        config = PPOConfig().environment(Told, env_config=env_config or {}).debugging(seed=5)
        config.fault_tolerance(restart_failed_sub_environments=restarts)
        settings = {"keep_running_episodes": True, "gym_env_vectorize_mode": "async", "explore": False, **settings}
        config.env_runners(num_envs_per_env_runner=num_envs, gym_env_batch_size=batch_size, **settings)
        config.rl_module(model_config={"fcnet_hiddens": [8], **(model or {})})
        runners.append(SingleAgentEnvRunner(config=config))
        runners[-1].module.set_state(runners[0].module.get_state())
        return runners[-1]

    yield make
    for runner in runners:
        runner.stop()


def by_env(samples):
    """Episodes of each environment in order, their chunks joined."""
    episodes = {}
    for chunk in (chunk for chunks in samples for chunk in chunks):
        if chunk.id_ in episodes:
            episodes[chunk.id_].concat_episode(chunk)
        else:
            episodes[chunk.id_] = chunk.slice(slice(None))
    ordered = {}
    for episode in episodes.values():
        number, count, _ = map(int, episode.get_observations(0))
        ordered.setdefault(number, []).append(episode)
        assert count == len(ordered[number]) - 1  # none is missing, none comes too early
    return ordered


def same_beginnings(pool, stepped):
    """Assert that the shorter of two runners' records of an environment is the beginning of the longer one."""
    assert pool.keys() <= stepped.keys()
    for number, episodes in pool.items():
        for left, right in zip(episodes, stepped[number]):
            count = min(len(left), len(right))
            np.testing.assert_array_equal(left.get_actions()[:count], right.get_actions()[:count])
            np.testing.assert_array_equal(left.get_rewards()[:count], right.get_rewards()[:count])
            np.testing.assert_array_equal(left.get_observations()[: count + 1], right.get_observations()[: count + 1])
            logits = (e.get_extra_model_outputs("action_dist_inputs")[:count] for e in (left, right))
            np.testing.assert_allclose(*logits, atol=1e-5)
            if len(left) == len(right) and left.is_done and right.is_done:
                assert (left.is_terminated, left.is_truncated) == (right.is_terminated, right.is_truncated)


MODELS = {"plain": {}, "recurrent": {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}}
SOME = [("next_step", 1), ("same_step", 3)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("mode", "batch_size"),
    slow_but(SOME, product(["next_step", "same_step"], [1, 3])),
)
def test_episodes_equal_those_of_the_synchronous_runner(made, model, mode, batch_size):
    settings = {"model": MODELS[model], "gym_env_autoreset_mode": mode}
    if model == "plain":
        settings["env_to_module_connector"] = lambda env, spaces, device: FrameStacking(num_frames=2, new_axis=True)
    stepped, pool = made(**settings), made(batch_size=batch_size, **settings)
    left = by_env([pool.sample(num_timesteps=amount) for amount in (30, 7, 50)])
    right = by_env([stepped.sample(num_timesteps=amount) for amount in (90, 90)])
    same_beginnings(left, right)
    assert pool.get_metrics()["num_env_steps_sampled"] >= 87
    whole = pool.sample(num_episodes=5)
    assert len(whole) == 5 and all(episode.is_done for episode in whole)


def test_an_environment_that_does_not_answer_holds_nobody_up(made, tmp_path):
    pool = made(batch_size=2, env_config={"slow": 1, "until": tmp_path / "go on"})
    before = by_env([pool.sample(num_timesteps=60)])
    assert sorted(before) == [0, 2, 3]
    (tmp_path / "go on").touch()
    chunks = []
    while not chunks:
        chunks = [chunk for chunk in pool.sample(num_timesteps=10) if chunk.get_observations(0)[0] == 1]
    assert chunks[0].t_started == 0 and chunks[0].get_observations(0)[1] == 0


def test_a_reset_waits_for_those_at_work(made):
    pool = made(batch_size=1, env_config={"seconds": 0.01, "slow": 0}, keep_running_episodes=False)
    for _ in range(3):
        episodes = pool.sample(num_episodes=2)
        assert [episode.is_done for episode in episodes] == [True, True]
        assert all(episode.t_started == 0 and int(episode.get_observations(0)[2]) == 0 for episode in episodes)


class Skips(ConnectorV2):
    """Asks to skip the next step of some environments."""

    def __call__(self, *, batch, episodes, shared_data, **kwargs):
        shared_data["skip_env_step"] = np.array([episode.t % 3 == 1 for episode in episodes])
        return batch


def test_an_environment_waits_for_the_one_in_its_process(made):
    pieces = {"env_to_module_connector": lambda env, spaces, device: Skips()}
    told = {"env_config": {"seconds": 0.002, "slow": 1}}
    stepped, pool = made(), made(batch_size=1, num_envs_per_worker=2, **pieces, **told)
    left = by_env([pool.sample(num_timesteps=amount) for amount in (30, 50)])
    assert sum(len(episode) for episodes in left.values() for episode in episodes) >= 80
    same_beginnings(left, by_env([stepped.sample(num_timesteps=200)]))


def test_a_failure_in_a_pool(made):
    told = {"fails": (2, 1, 1)}
    pool = made(batch_size=2, env_config=told)
    with pytest.raises(ArithmeticError, match="as told"):
        pool.sample(num_timesteps=200)
    assert sum(map(len, pool.sample(num_timesteps=40))) >= 40
    # Nothing is left to cut where the step before the failure was a sample's last one: one sample holds all of it.
    pool = made(batch_size=2, env_config={**told, "seconds": 0.002}, restarts=True)
    cut = [chunk for chunk in pool.sample(num_timesteps=300) if "env_failure" in chunk.get_infos(-1)]
    assert [chunk.get_observations(0)[:2].tolist() for chunk in cut] == [[2, 1]]
    assert pool.get_metrics()["num_env_restarts"] == 1


def test_what_does_not_fit(made):
    with pytest.raises(ConfigError, match="gym_env_batch_size"):
        made(batch_size=2, gym_env_vectorize_mode="sync")
    with pytest.raises(ConfigError, match="gym_env_batch_size"):
        made(batch_size=2, gym_env_autoreset_mode="disabled")
    pool = made(batch_size=1, env_config={"seconds": 0.05, "slow": 0})
    pool.sample(num_timesteps=1)
    with pytest.raises(RunnerError, match="at work"):
        pool.step(mask=np.array([True, False, False, False]))


def test_recv_waits_for_so_many():
    envs = AsyncEnvs([lambda seconds=seconds: gym.wrappers.TransformReward(Told({"seconds": seconds}), float)
                      for seconds in (0.0, 0.1, 0.2)])  # fmt: skip
    envs.reset(seed=SEEDS[:3])
    for count, expected in ((2, [True, True, False]), (9, [False, False, True])):
        if count == 2:
            envs.send(np.zeros(3, np.int64))
        assert envs.recv(count)[-1].tolist() == expected
    envs.close()


@pytest.mark.slow
def test_one_slow_environment_of_sixteen(made):
    steps = {}
    for batch_size in (None, 8):
        runner = made(16, batch_size, {"seconds": 0.01, "slow": 3})
        runner.sample(num_timesteps=16)
        began, samples = time.perf_counter(), []
        while time.perf_counter() - began < 4:
            samples.append(runner.sample(num_timesteps=100))
        steps[batch_size] = sum(len(chunk) for chunks in samples for chunk in chunks) / (time.perf_counter() - began)
    assert steps[8] > 5 * steps[None], steps
