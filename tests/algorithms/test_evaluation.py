from __future__ import annotations

import json
import random
import types

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch import Policy
from epibatch.algorithms import PPOConfig
from epibatch.algorithms.evaluation import EvaluatedEpisodes
from epibatch.algorithms.results import flat_metrics
from epibatch.algorithms.training_run import TrainingRun
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ConfigError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode


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


def without_times(results):
    times = ("timers", "time_", "sample", "_s", "timer")
    return {
        key: value
        for key, value in flat_metrics(results).items()
        if not key.startswith(times) and not key.endswith(times)
    }


@pytest.mark.parametrize("explore", [False, True])
def test_training_is_the_same_with_and_without(noisy, explore):
    runs = []
    for interval in (None, 1):
        config = noisy(evaluation_interval=interval, evaluation_config={"explore": explore})
        algo, rows = config.build_algo(), []
        for _ in range(4):
            results = algo.train()
            measured = results.pop("evaluation", None)
            assert (measured is None) == (interval is None)
            rows.append(without_times(results))
        runs.append((rows, algo.get_state()))
        algo.stop()
    (plain, state), (evaluated, other) = runs
    assert plain == evaluated
    assert len(plain[0]) > 15
    del state["evaluation"], other["evaluation"]
    assert_same(state, other)


def assert_same(one, other, path="state"):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            if key not in ("time_total_s", "sample"):
                assert_same(one[key], other[key], f"{path}/{key}")
    else:
        np.testing.assert_array_equal(one, other, err_msg=path)


def test_seeds_go_on_after_a_restore(noisy, tmp_path):
    config = noisy(evaluation_config={"explore": True})
    algo = config.build_algo()
    algo.train()
    first = algo.evaluate()
    algo.save_to_path(tmp_path / "checkpoint")
    restored = config.build_algo()
    restored.restore_from_path(tmp_path / "checkpoint")
    rounds = [first]
    for _ in range(3):
        rounds.append(algo.evaluate())
        assert without_times(restored.evaluate()) == without_times(rounds[-1])
        algo.train()
        restored.train()
    assert len({one["env_runners"]["episode_return_mean"] for one in rounds}) == 4
    assert rounds[-1]["env_runners"]["num_episodes_lifetime"] == 16
    algo.stop()
    restored.stop()


def test_the_same_round_whatever_was_sampled_before(noisy):
    found = []
    for samples in (0, 50):
        algo = noisy().build_algo()
        if samples:
            algo.env_runner.sample(num_timesteps=samples)
            algo.env_runner.pipelines["env_to_module"]["noise"].seen = 0
        found.append(without_times(algo.evaluate()))
        algo.stop()
    assert found[0] == found[1]


def test_a_round_draws_the_same_whether_its_runner_is_new_or_not():
    class Draws(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            reward = np.random.normal() + float(torch.rand(())) + random.random()
            return np.zeros(1, np.float32), reward, True, False, {}

    config = PPOConfig().environment(lambda env_config: Draws()).debugging(seed=0).evaluation(evaluation_duration=4)
    found = []
    for anew in (False, True):
        algo = config.build_algo()
        first = without_times(algo.evaluate())
        if anew:
            algo._evaluation.stop()
        found.append(without_times(algo.evaluate()))
        algo.stop()
    assert found[0] == found[1] != first


def test_states_are_taken_over_and_frozen(noisy):
    algo = noisy().build_algo()
    for _ in range(2):
        algo.train()
        seen = algo.env_runner.pipelines["env_to_module"]["noise"].seen
        algo.evaluate()
        own = algo._evaluation._runner
        assert seen > 60
        assert own.pipelines["env_to_module"]["noise"].seen == seen
        assert algo.env_runner.pipelines["env_to_module"]["noise"].seen == seen
        weights, expected = own.module.get_state(), algo.get_module().get_state()
        assert own.module is not algo.get_module()
        for name in expected:
            np.testing.assert_array_equal(weights[name], expected[name])
    algo.stop()


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


def fixed(case_config, **evaluation):
    return case_config("mlp").environment(Fixed, env_config={"length": 7}).evaluation(**evaluation)


def test_what_is_measured(case_config, tmp_path):
    """Against a loop of one's own with the policy that was saved."""
    algo = fixed(case_config, evaluation_duration=3, evaluation_config={"env_config": {"scale": 2}}).build_algo()
    algo.train()
    found = algo.evaluate()["env_runners"]
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
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


def test_steps_instead_of_episodes(case_config):
    algo = fixed(case_config, evaluation_duration=30, evaluation_duration_unit="timesteps").build_algo()
    found = algo.evaluate()["env_runners"]
    # one environment that resets in a step of its own: four episodes of 7 and a rest of 2
    assert (found["num_episodes"], found["num_env_steps_sampled"], found["episode_len_mean"]) == (4, 30, 7)
    algo.stop()
    algo = fixed(case_config, evaluation_duration=5, evaluation_duration_unit="timesteps").build_algo()
    found = algo.evaluate()["env_runners"]
    assert found["num_episodes"] == 0
    assert np.isnan(found["episode_return_mean"])
    algo.stop()


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


@pytest.mark.parametrize(("num_envs", "duration"), [(64, 64), (20, 50), (1, 60)])
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


def test_a_failure_does_not_stay(case_config):
    config = case_config("mlp").environment(Fails, env_config={"length": 7}).evaluation(evaluation_duration=2)
    algo = config.build_algo()
    expected = algo.evaluate()["env_runners"]["episode_return_mean"]
    Fails.broken = True
    try:
        with pytest.raises(OSError, match="cable"):
            algo.evaluate()
    finally:
        Fails.broken = False
    assert algo.evaluate()["env_runners"]["episode_return_mean"] == expected
    algo.stop()


class Wider(Fixed):
    observation_space = gym.spaces.Box(-9, 9, (3,))


class LostSimulator(gym.Env):
    """Raises in its third step."""

    observation_space, action_space = gym.spaces.Box(-np.inf, np.inf, (4,)), gym.spaces.Discrete(2)
    t = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 3:
            raise ConnectionError("simulator lost")
        return np.zeros(4, np.float32), 1.0, False, False, {}


def test_an_environment_that_fails_in_evaluation_does_not_lose_the_results_of_training():
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=20, minibatch_size=20, num_epochs=1)
    config.evaluation(evaluation_interval=1, evaluation_config={"env": LostSimulator})
    algo = config.build_algo()
    for iteration in (1, 2):
        with pytest.warns(UserWarning, match=rf"evaluation after iteration {iteration} failed[\s\S]*simulator lost"):
            results = algo.train()
        assert results["training_iteration"] == iteration and "evaluation" not in results
        assert results["env_runners"]["num_env_steps_sampled"] == 20
    with pytest.raises(ConnectionError, match="simulator lost"):
        algo.evaluate()
    algo.stop()


def test_a_callback_that_raises_in_evaluation_ends_the_run():
    def guard(**kwargs):
        raise RuntimeError("stop now")

    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=20, minibatch_size=20, num_epochs=1)
    algo = config.evaluation(evaluation_interval=1).callbacks(on_evaluate_start=guard).build_algo()
    with pytest.raises(RuntimeError, match="stop now"):
        algo.train()
    algo.stop()


def test_other_spaces(case_config):
    algo = fixed(case_config, evaluation_config={"env": Wider}).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)evaluation_config.*shape \(2,\).*shape \(3,\)"):
        algo.evaluate()
    algo.stop()


def test_stop_rule_and_metrics_files(tmp_path):
    (tmp_path / "config.yaml").write_text("""
algorithm: ppo
environment: {env: CartPole-v1}
training: {train_batch_size: 64, minibatch_size: 32, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
evaluation: {evaluation_interval: 2, evaluation_duration: 3, evaluation_config: {explore: true}}
debugging: {seed: 0}
stop: {evaluation/env_runners/episode_return_mean: 9, training_iteration: 9}
""")
    session = TrainingRun.start(tmp_path / "config.yaml", tmp_path / "run")
    assert session.run() == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert "evaluation/env_runners/episode_return_mean" not in rows[0]
    assert rows[1]["evaluation/env_runners/episode_return_mean"] >= 9
    assert rows[1]["evaluation/env_runners/num_episodes"] == 3


# ---------------------------------------------------------------------------------- evaluated episodes


class OfAgents:
    """A runner that knows its episodes' environments by their names: "3:x" is one of environment 3."""

    num_envs = 4

    @staticmethod
    def env_of(episode):
        return int(episode.id_.partition(":")[0])


def played(name, steps, *, cut=None):
    """An episode of `steps` steps that pays a 1 and b 10 for each, and b 5 more when it never acts: whole, or cut."""
    episode = MultiAgentEpisode(name, agent_to_module_mapping_fn=lambda agent, _: {"a": "x"}.get(agent, "y"))
    episode.add_env_reset(observations={"a": 0, "b": 0})
    parts = [episode]
    for t in range(1, steps + 1):
        both = {"a": t, "b": t}
        parts[-1].add_env_step(both, dict.fromkeys("ab", 0), {"a": 1.0, "b": 10.0}, terminateds={"__all__": t == steps})
        if t == cut:
            parts.append(parts[-1].cut())
    return parts


def test_chunks_of_one_episode_are_put_together():
    first, second = played("0:p", 5, cut=2)
    (other,) = played("1:q", 3)
    episodes, left = EvaluatedEpisodes(OfAgents), [1, 1, 0, 0]
    episodes.add([other, first], left)
    assert (episodes.returns, left) == ([33.0], [1, 0, 0, 0])
    episodes.add([second], left)
    assert (episodes.returns, episodes.lengths, episodes.steps) == ([33.0, 55.0], [3, 5], 8)
    assert left == [0, 0, 0, 0]
    assert episodes.by_agent() == {
        "agent_episode_returns_mean": {"a": 4.0, "b": 40.0},
        "module_episode_returns_mean": {"x": 4.0, "y": 40.0},
        "agent_steps": {"a": 4.0, "b": 4.0},
    }


def test_episodes_beyond_those_that_count():
    episodes, left = EvaluatedEpisodes(OfAgents), [1, 0, 0, 0]
    episodes.add([*played("1:p", 2), *played("0:q", 1), *played("0:r", 7)], left)
    assert (episodes.returns, episodes.steps) == ([11.0], 1)
    assert episodes.by_agent()["agent_steps"] == {"a": 1.0, "b": 1.0}


def test_rewards_that_no_step_got_count_at_the_end():
    episode = MultiAgentEpisode("0:p")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 1.0, "b": 0.5})
    rest = episode.cut()
    rest.add_env_step({"a": 2}, {"a": 0}, {"a": 1.0, "b": 0.25}, terminateds={"__all__": True})
    episodes = EvaluatedEpisodes(OfAgents)
    episodes.add([episode, rest], [1, 0, 0, 0])
    assert episodes.returns == [2.75]
    assert episodes.by_agent()["agent_episode_returns_mean"] == {"a": 2.0, "b": 0.75}


def test_episodes_of_one_agent():
    def chunk(rewards, **flags):
        count = len(rewards)
        columns = {"observations": [0] * (count + 1), "actions": [0] * count, "rewards": rewards}
        return SingleAgentEpisode(**columns, len_lookback_buffer=0, **flags)

    class Block(list):
        chunks = tuple(types.SimpleNamespace(env=env) for env in (1, 0, 1))

    episodes, left = EvaluatedEpisodes(types.SimpleNamespace(num_envs=2)), [1, 1]
    episodes.add(Block([chunk([1.0, 2.0]), chunk([0.5], terminated=True), chunk([4.0], truncated=True)]), left)
    assert (episodes.returns, episodes.lengths, left) == ([0.5, 7.0], [1, 3], [0, 0])
    assert episodes.by_agent() == {}


@pytest.mark.parametrize("count", [0, 2])
def test_no_episode_ended(count):
    episodes = EvaluatedEpisodes(OfAgents)
    episodes.add([played(f"{env}:p", 3, cut=1)[0] for env in range(count)], [1] * 4)
    assert (episodes.returns, episodes.steps, episodes.by_agent()) == ([], 0, {})
