"""Evaluations: what they measure, and that they leave the training alone."""

from __future__ import annotations

import random

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch import Policy
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ConfigError, EpibatchWarning
from fixture_configs import cart_pole
from fixture_envs import CountingEnv, FailingEnv


class Noise(ConnectorV2):
    """Adds noise from all three global generators, and counts what it has seen unless frozen."""

    seen, frozen = 0, False

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.seen += not self.frozen
            noise = np.random.normal() + float(torch.rand(())) + random.random() + 0.001 * self.seen
            self.add_batch_item(batch, "obs", np.float32(episode.get_observations(-1) + noise), episode)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]

    def freeze(self):
        self.frozen = True


def noise(env, spaces, device):
    return [Noise()]


@pytest.fixture
def noisy(case_config):
    def make(case="lstm", **evaluation):
        config = case_config(case, num_envs=3).env_runners(env_to_module_connector=noise)
        config.debugging(check_first_update="off")  # the noise is meant
        return config.evaluation(**{"evaluation_duration": 4, **evaluation})

    return make


def without_times(results, path=""):
    """The numbers of nested results by path, but for what is measured in seconds."""
    found = {}
    for key, value in results.items():
        name = f"{path}/{key}"
        if isinstance(value, dict):
            found.update(without_times(value, name))
        elif not name.endswith(("_s", "/sample", "timer")) and not name.startswith(("/timers", "/time_")):
            found[name] = value
    return found


@pytest.mark.parametrize("explore", [False, True])
def test_training_is_the_same_with_and_without(noisy, built, explore):
    runs = []
    for interval in (None, 1):
        algo, rows = built(noisy(evaluation_interval=interval, evaluation_config={"explore": explore})), []
        for _ in range(3):
            results = algo.train()
            assert (results.pop("evaluation", None) is None) == (interval is None)
            rows.append(without_times(results))
        state = algo.get_state()
        del state["evaluation"]
        runs.append((rows, without_times(state)))
    (plain, state), (evaluated, other) = runs
    assert len(plain[0]) > 15
    np.testing.assert_equal(plain, evaluated)
    np.testing.assert_equal(state, other)


@pytest.mark.slow
def test_training_and_evaluation_go_on_alike_after_a_restore(noisy, built, tmp_path):
    """The noise is drawn from all global generators, whose states are restored."""
    config = noisy(evaluation_config={"explore": True})
    algo = built(config)
    algo.train()
    first = algo.evaluate()
    algo.save_to_path(tmp_path / "checkpoint", end_episodes=True)
    expected = [without_times(call()) for _ in range(3) for call in (algo.train, algo.evaluate)]
    restored = built(config)
    restored.restore_from_path(tmp_path / "checkpoint")
    found = [without_times(call()) for _ in range(3) for call in (restored.train, restored.evaluate)]
    np.testing.assert_equal(found, expected)
    means = {round_["/env_runners/episode_return_mean"] for round_ in expected[1::2]}
    assert len(means | {first["env_runners"]["episode_return_mean"]}) == 4
    assert expected[-1]["/env_runners/num_episodes_lifetime"] == 16


def test_the_same_round_whatever_was_sampled_before(noisy, built):
    found = []
    for samples in (0, 50):
        algo = built(noisy())
        if samples:
            algo.env_runner.sample(num_timesteps=samples)
            algo.env_runner.pipelines["env_to_module"]["noise"].seen = 0
        found.append(without_times(algo.evaluate()))
    assert found[0] == found[1]


def test_a_round_draws_the_same_whether_its_runner_is_new_or_not(built):
    class Draws(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            reward = np.random.normal() + float(torch.rand(())) + random.random()
            return np.zeros(1, np.float32), reward, True, False, {}

    config = cart_pole(lambda env_config: Draws()).evaluation(evaluation_duration=4)
    found = []
    for anew in (False, True):
        algo = built(config)
        first = without_times(algo.evaluate())
        if anew:
            algo._evaluation.stop()
        found.append(without_times(algo.evaluate()))
    assert found[0] == found[1] != first


def test_states_are_taken_over_and_frozen(noisy, built):
    runners = []
    algo = built(noisy().callbacks(on_sample_end=lambda env_runner, **kwargs: runners.append(env_runner)))
    for _ in range(2):
        algo.train()
        seen = algo.env_runner.pipelines["env_to_module"]["noise"].seen
        algo.evaluate()
        own = runners[-1]
        assert seen > 60
        assert own.pipelines["env_to_module"]["noise"].seen == seen
        assert algo.env_runner.pipelines["env_to_module"]["noise"].seen == seen
        weights, expected = own.module.get_state(), algo.get_module().get_state()
        assert own.module is not algo.get_module()
        for name in expected:
            np.testing.assert_array_equal(weights[name], expected[name])


class Fixed(gym.Env):
    """Always the same observations; the reward is the action, doubled when `scale` is 2."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, config):
        self._scale, self._length = config.get("scale", 1), config["length"]

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._t += 1
        obs = np.array([self._t, -self._t], np.float32)
        return obs, self._scale * float(action[0]), self._t == self._length, False, {}


@pytest.fixture
def fixed(built, case_config):
    return lambda env=Fixed, **settings: built(
        case_config("mlp").environment(env, env_config={"length": 7}).evaluation(**settings)
    )


def test_what_is_measured(fixed, tmp_path):
    """Against a loop of one's own with the policy that was saved."""
    algo = fixed(evaluation_duration=3, evaluation_config={"env_config": {"scale": 2}})
    algo.train()
    found = algo.evaluate()["env_runners"]
    algo.save_to_path(tmp_path / "checkpoint")
    policy = Policy.from_checkpoint(tmp_path / "checkpoint")
    env, state, done, total = Fixed({"scale": 2, "length": 7}), None, False, 0.0
    obs, _ = env.reset()
    while not done:
        action, state = policy.act(obs, state)
        obs, reward, done, _, _ = env.step(action)
        total += reward
    for name in ("mean", "min", "max"):
        assert found[f"episode_return_{name}"] == pytest.approx(total, rel=1e-6)
        assert found[f"episode_len_{name}"] == 7
    assert (found["num_episodes"], found["num_env_steps_sampled"]) == (3, 21)


def test_steps_instead_of_episodes(fixed):
    found = fixed(evaluation_duration=30, evaluation_duration_unit="timesteps").evaluate()["env_runners"]
    # one environment that resets in a step of its own: four episodes of 7 and a rest of 2
    assert (found["num_episodes"], found["num_env_steps_sampled"], found["episode_len_mean"]) == (4, 30, 7)
    found = fixed(evaluation_duration=5, evaluation_duration_unit="timesteps").evaluate()["env_runners"]
    assert found["num_episodes"] == 0 and np.isnan(found["episode_return_mean"])


class ShortOrLong(gym.Env):
    """Episodes of 2 or of 60 steps, both equally likely."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.choice([2, 60]))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, self._left == 0, False, {}


@pytest.mark.parametrize(("num_envs", "duration"), [(64, 64), (20, 50)])
def test_short_episodes_are_not_favoured(case_config, num_envs, duration):
    config = case_config("mlp", num_envs=num_envs).environment(ShortOrLong, env_config={})
    algo = config.evaluation(evaluation_duration=duration).build_algo()
    found = algo.evaluate()["env_runners"]
    algo.stop()
    assert found["num_episodes"] == duration
    long = (found["episode_len_mean"] - 2) / 58
    assert abs(long - 0.5) < 4 * 0.5 / duration**0.5  # four standard deviations


class Fails(Fixed):
    broken = False

    def step(self, action):
        if Fails.broken:
            raise OSError("cable")
        return super().step(action)


def test_a_failure_does_not_stay(fixed, monkeypatch):
    algo = fixed(Fails, evaluation_duration=2)
    expected = algo.evaluate()["env_runners"]["episode_return_mean"]
    generators = torch.get_rng_state()
    monkeypatch.setattr(Fails, "broken", True)
    with pytest.raises(OSError, match="cable"):
        algo.evaluate()
    monkeypatch.undo()
    assert torch.equal(torch.get_rng_state(), generators)
    assert algo.evaluate()["env_runners"]["episode_return_mean"] == expected


def evaluated(**settings):
    config = cart_pole(lambda env_config: CountingEnv(**env_config))
    return config.evaluation(evaluation_interval=1, evaluation_duration=1, **settings)


def test_an_environment_that_fails_in_evaluation_does_not_lose_the_results_of_training(built):
    failing = {"env": lambda env_config: FailingEnv(step=3)}
    algo = built(evaluated(evaluation_config=failing))
    for iteration in (1, 2):
        with pytest.warns(UserWarning, match=rf"evaluation after iteration {iteration} failed[\s\S]*simulator lost"):
            results = algo.train()
        assert results["training_iteration"] == iteration and "evaluation" not in results
        assert results["env_runners"]["num_env_steps_sampled"] == 32
    with pytest.raises(ConnectionError, match="simulator lost"):
        algo.evaluate()


def test_a_callback_that_raises_in_evaluation_ends_the_run(built):
    def guard(**kwargs):
        raise RuntimeError("stop now")

    with pytest.raises(RuntimeError, match="stop now"):
        built(evaluated().callbacks(on_evaluate_start=guard)).train()


def test_other_spaces(fixed):
    algo = fixed(evaluation_config={"env": lambda env_config: CountingEnv()})
    with pytest.raises(ConfigError, match=r"(?s)evaluation_config.*shape \(2,\).*shape \(1,\)"):
        algo.evaluate()


@pytest.mark.slow
def test_an_evaluation_without_ends_warns_and_a_horizon_ends_it():
    config = cart_pole(CountingEnv).environment(env_config={"length": 5_300})
    config.env_runners(num_envs_per_env_runner=20).evaluation(evaluation_duration=20)
    algo = config.build_algo()
    with pytest.warns(
        EpibatchWarning, match=r"episodes that end[\s\S]*100,\d\d\d steps of 20 environments[\s\S]*horizon"
    ):
        assert algo.evaluate()["env_runners"]["episode_len_mean"] == 5_300
    algo.stop()
    algo = config.env_runners(horizon=50, soft_horizon=True).build_algo()
    assert algo.evaluate()["env_runners"]["episode_len_mean"] == 50
    algo.stop()
