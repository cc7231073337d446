"""Evaluations in several sets of environments, in processes of their own, and beside training."""

from __future__ import annotations

import copy
import random
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from fake_actors import FakeActors

from epibatch.algorithms import BCConfig, PPOConfig
from epibatch.core.errors import ConfigError
from epibatch.env_runner import EnvRunnerGroup
from epibatch.env_runner.multi_agent_env import make_multi_agent
from epibatch.episodes import SingleAgentEpisode
from fixture_configs import cart_pole
from fixture_envs import CountingEnv, FailingEnv

SPACES = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Box(-1, 1, (1,))


class Line(gym.Env):
    """Observations count the steps; the reward is the action, times `scale`."""

    observation_space, action_space = SPACES

    def __init__(self, config):
        self._scale, self._length = config.get("scale", 1), config["length"]

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._t += 1
        obs = np.array([self._t, -self._t], np.float32)
        return obs, self._scale * float(action[0]), self._t == self._length, False, {}


class Fickle(gym.Env):
    """Episodes of 2 or of 60 steps, both equally likely."""

    observation_space, action_space = SPACES

    def __init__(self, config=None):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.choice([2, 60]))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.zeros(2, np.float32), float(action[0]), self._left == 0, False, {}


def return_of(policy, **env_config):
    """The return of an episode, by a plain loop."""
    env, total, done = Line(env_config), 0.0, False
    obs, _ = env.reset()
    while not done:
        action, _ = policy.act(obs, None, explore=False)
        obs, reward, done, _, _ = env.step(action)
        total += reward
    return total


def mean_of(results):
    return results["env_runners"]["episode_return_mean"]


def without_times(results):
    """Results without the seconds that sampling took, by set."""
    sets = {"": results} if "env_runners" in results else results
    return {name: {**part["env_runners"], "sample": None} for name, part in sets.items()}


def line(**evaluation):
    config = cart_pole(Line).environment(env_config={"length": 7})
    config.env_runners(env_to_module_connector=["mean_std_filter"])
    return config.evaluation(**{"evaluation_duration": 3, **evaluation})


def fickle(duration=5, num_env_runners=2, num_envs=2, **evaluation):
    config = cart_pole(Fickle).env_runners(num_envs_per_env_runner=num_envs)
    return config.evaluation(evaluation_duration=duration, evaluation_num_env_runners=num_env_runners, **evaluation)


@pytest.fixture
def actors(monkeypatch):
    """A list that gets the actors of every evaluation, which run in this process; `actors.settings` are theirs."""

    class Made(list):
        def make(self, *args, **keywords):
            self.append(FakeActors(*args, **keywords, **self.settings))
            return self[-1]

    made = Made()
    made.settings = {}
    group = partial(EnvRunnerGroup, make_actors=made.make)
    monkeypatch.setattr("epibatch.algorithms.evaluation.EnvRunnerGroup", group)
    return made


# ------------------------------------------------------------------------------------------------ sets


SETS = {"plain": {}, "double": {"env_config": {"scale": 2}}, "short": {"env_config": {"length": 2, "scale": 5}}}


@pytest.mark.parametrize("num_env_runners", [0, 2])
def test_each_set_is_measured_in_its_environments(built, actors, num_env_runners):
    """Against a plain loop with the same policy."""
    algo = built(line(evaluation_sets=SETS, evaluation_num_env_runners=num_env_runners, evaluation_interval=2))
    algo.train()
    results = algo.train()["evaluation"]
    policy, scaled = algo.get_policy(), {"plain": (1, 7), "double": (2, 7), "short": (5, 2)}
    assert list(results) == list(scaled)
    for name, (scale, length) in scaled.items():
        found = results[name]["env_runners"]
        assert mean_of(results[name]) == pytest.approx(return_of(policy, scale=scale, length=length), rel=1e-5)
        assert (found["num_episodes"], found["num_env_steps_sampled"]) == (3, 3 * length)
    assert len(actors) == (3 if num_env_runners else 0)


def test_sets_in_a_file_come_on_top_of_the_common_settings():
    text = """
    environment: {env: CartPole-v1, env_config: {a: 1, b: 1, c: 1}}
    evaluation:
      evaluation_config: {explore: true, horizon: 5, env_config: {b: 2, c: 2}}
      evaluation_sets: {easy: {}, hard: {horizon: 9, env_config: {c: 3}}}
      evaluation_num_env_runners: 2
    """
    config = PPOConfig.from_yaml(PPOConfig.from_yaml(text).to_yaml())
    easy, hard = map(config.get_evaluation_config_object, ("easy", "hard"))
    assert (easy.horizon, easy.env_config) == (5, {"a": 1, "b": 2, "c": 2})
    assert (hard.horizon, hard.env_config) == (9, {"a": 1, "b": 2, "c": 3})
    assert easy.explore and hard.explore and easy.num_env_runners == hard.num_env_runners == 2


def test_rules_name_the_results_of_a_set(built):
    config = cart_pole(CountingEnv).stopping(results={"evaluation/short/env_runners/episode_len_mean": 3})
    sets = {"long": {"env_config": {"length": 8}}, "short": {"env_config": {"length": 3}}}
    config.evaluation(evaluation_sets=sets, evaluation_interval=2, evaluation_duration=1)
    *_, last = built(config).iterations()
    lengths = {name: part["env_runners"]["episode_len_mean"] for name, part in last["evaluation"].items()}
    assert (last["training_iteration"], lengths) == (2, {"long": 8, "short": 3})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluation_sets": {"hard": {"explor": True}}}, r"evaluation_sets\.hard\.explor: .*did you mean 'explore'"),
        ({"evaluation_sets": {"hard": {"lr": 0.1}}}, r"evaluation_sets\.hard\.lr: belongs to training"),
        ({"evaluation_sets": {"a/b": {}}}, r"evaluation_sets.*a/b"),
        ({"evaluation_sets": {"hard": {"num_env_runners": 2}}}, r"hard\.num_env_runners: .*evaluation_num_env_runners"),
        ({"evaluation_parallel_to_training": True}, r"parallel_to_training: needs processes: set evaluation_num_env"),
        ({"evaluation_force_reset_envs_before_iteration": False}, r"force_reset_envs_before_iteration: .*True"),
    ],
)
def test_mistakes_are_named_when_it_is_built(settings, message):
    with pytest.raises(ConfigError, match=message):
        cart_pole().evaluation(**settings).build_algo()


def test_goals_of_sets_are_named_and_sets_must_have_the_training_spaces(built, actors):
    sets = {"same": {}, "other": {"env": CountingEnv, "env_config": {}}}
    config = line(evaluation_sets=sets, evaluation_interval=1, evaluation_num_env_runners=1)
    with pytest.raises(ConfigError, match=r"evaluation_return_mean: .*results: {evaluation/same/env_runners/episode_"):
        config.copy().stopping(evaluation_return_mean=5).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)evaluation_sets\.other, environment.*shape \(2,\).*shape \(1,\)"):
        built(config).evaluate()
    assert [group.stopped for group in actors] == [True, True]


@pytest.mark.slow
def test_a_checkpoint_has_the_rounds_of_each_set(built, tmp_path):
    def of(sets):
        return built(fickle(30, num_env_runners=0, evaluation_sets={name: {} for name in sets}))

    algo = of(["a", "b"])
    first, second = without_times(algo.evaluate()), without_times(algo.evaluate())
    means = {name: [results[name]["episode_len_mean"] for results in (first, second)] for name in first}
    assert means["a"] != means["b"]  # each has seeds of its own
    algo.save_to_path(tmp_path)
    third = without_times(algo.evaluate())
    restored = of(["b", "c"])
    restored.restore_from_path(tmp_path)
    found = without_times(restored.evaluate())
    assert found["b"] == third["b"] != second["b"] and found["b"]["num_episodes_lifetime"] == 90
    assert found["c"]["num_episodes_lifetime"] == 30


# ------------------------------------------------------------------------------------------- processes


def test_results_do_not_depend_on_which_process_is_fast(built, actors):
    """Nor on how often it was measured before."""
    rounds = []
    for seed in range(3):
        actors.settings = {"order": random.Random(seed)}
        algo = built(fickle())
        rounds.append([without_times(algo.evaluate()) for _ in range(2 + seed)][:2])
    assert rounds[0] == rounds[1] == rounds[2] and rounds[0][0] != rounds[0][1]
    assert rounds[0][0][""]["num_episodes"] == 5


@pytest.mark.parametrize("event", ["die", "hang"])
def test_the_share_of_a_process_that_is_lost_is_sampled_again(built, actors, event):
    expected = [without_times(algo.evaluate()) for algo in [built(fickle())] for _ in range(2)]
    actors.settings = {"scenario": lambda actors, index, ran: None if actors.restarts[index] else event}
    algo = built(fickle(evaluation_sample_timeout_s=0.1))
    with pytest.warns(UserWarning, match="env runner 1[\\s\\S]*replaced"):
        assert [without_times(algo.evaluate()) for _ in range(2)] == expected
    assert actors[-1].num_restarts >= 2


def two_agents():
    config = cart_pole(make_multi_agent("CartPole-v1")).environment(env_config={"num_agents": 2})
    return config.multi_agent(policies=["a", "b"], policy_mapping_fn={"0": "a", "*": "b"})


@pytest.mark.parametrize("config", [fickle, two_agents])
def test_a_single_process_measures_the_same_as_this_one(built, actors, config):
    found = []
    for num_env_runners in (0, 1):
        settings = {"evaluation_num_env_runners": num_env_runners, "evaluation_config": {"explore": True}}
        algo = built(config().evaluation(evaluation_duration=5, **settings))
        found.append([without_times(call()) for call in (algo.evaluate, algo.evaluate)])
    assert found[0] == found[1] and len(actors) == 1
    assert ("module_episode_returns_mean" in found[0][0][""]) == (config is two_agents)


@pytest.mark.parametrize(("num_env_runners", "num_envs", "duration"), [(2, 32, 64), (3, 7, 50), (4, 3, 2)])
def test_short_episodes_are_not_favoured(built, actors, num_env_runners, num_envs, duration):
    found = built(fickle(duration, num_env_runners, num_envs)).evaluate()["env_runners"]
    assert found["num_episodes"] == duration
    long = (found["episode_len_mean"] - 2) / 58
    assert abs(long - 0.5) < 4 * 0.5 / duration**0.5  # four standard deviations


def test_timesteps_are_shared(built, actors):
    config = line(evaluation_duration=41, evaluation_duration_unit="timesteps", evaluation_num_env_runners=2)
    found = built(config).evaluate()["env_runners"]
    # 21 and 20 steps: a reset takes one of its own after each 7 steps, which no episode has
    assert (found["num_episodes"], found["num_env_steps_sampled"]) == (5, 41)


def test_callbacks_log_in_all_processes(built, actors):
    def end(*, episode, metrics_logger, env_runner, **kwargs):
        metrics_logger.log_value("ended", 1, reduce="sum")
        metrics_logger.log_value("longest", len(episode), reduce="max")

    algo = built(line(evaluation_num_env_runners=2).callbacks(on_episode_end=end))
    first, second = (algo.evaluate()["env_runners"] for _ in range(2))
    # 2 and 1 episodes of 7 steps in looks of 16 steps of 2 and of 1 environments
    assert first["longest"] == second["longest"] == 7
    assert first["num_episodes"] <= first["ended"] and second["ended"] == 2 * first["ended"]


def test_an_environment_that_fails_in_a_process_does_not_lose_the_results_of_training(built, actors):
    failing = {"env": lambda env_config: FailingEnv(step=3), "env_config": {}}
    config = cart_pole(lambda env_config: CountingEnv(**env_config)).evaluation(evaluation_config=failing)
    config.evaluation(evaluation_num_env_runners=1, evaluation_interval=1, evaluation_parallel_to_training=True)
    algo = built(config)
    for iteration in (1, 2):
        with pytest.warns(UserWarning, match=rf"evaluation after iteration {iteration} failed[\s\S]*simulator lost"):
            assert "evaluation" not in algo.train()


def test_recorded_episodes_are_not_sent_to_the_processes_that_evaluate_what_was_cloned(built, actors):
    recorded = SingleAgentEpisode(
        observations=np.array([[t, -t] for t in range(8)], np.float32),
        actions=np.full((7, 1), 0.5, np.float32),
        rewards=np.zeros(7),
        observation_space=SPACES[0],
        action_space=SPACES[1],
        len_lookback_buffer=0,
    )
    config = BCConfig().offline_data(input_=[recorded]).training(train_batch_size=70, lr=0.01).debugging(seed=0)
    config.evaluation(evaluation_config={"env": Line, "env_config": {"length": 7}}, evaluation_num_env_runners=2)
    algo = built(config)
    algo.train()
    assert mean_of(algo.evaluate()) == pytest.approx(return_of(algo.get_policy(), length=7), rel=1e-5)
    assert actors[0].arguments["config"].input_ is None and algo.config.input_ == [recorded]


# --------------------------------------------------------------------------------------- beside training


def beside(**evaluation):
    return line(
        evaluation_num_env_runners=2, evaluation_interval=2, evaluation_parallel_to_training=True, **evaluation
    ).training(lr=0.1)


def test_a_round_beside_an_iteration_has_the_weights_and_statistics_from_before_it(built, actors):
    algo = built(beside(evaluation_sets={"one": {}, "two": {"env_config": {"scale": 2}}}))
    assert "evaluation" not in algo.train()
    before = copy.deepcopy(algo.get_policy())
    results = algo.train()["evaluation"]
    for name, scale in (("one", 1), ("two", 2)):
        expected, after = (return_of(policy, length=7, scale=scale) for policy in (before, algo.get_policy()))
        assert mean_of(results[name]) == pytest.approx(expected, rel=1e-5)
        assert abs(expected - after) > 1e-3 * abs(expected)


def test_training_is_the_same_with_an_evaluation_beside_it(built, actors):
    """And what is asked for between iterations is another round."""
    plain, evaluated = built(line().training(lr=0.1)), built(beside())
    rows = [[algo.train()["learners"]["default_policy"]["total_loss"] for _ in range(4)] for algo in (plain, evaluated)]
    assert rows[0] == rows[1]
    assert mean_of(evaluated.evaluate()) == pytest.approx(return_of(evaluated.get_policy(), length=7), rel=1e-5)
    assert evaluated.evaluate()["env_runners"]["num_episodes_lifetime"] == 12


def test_a_round_beside_an_iteration_that_fails_is_dropped(built, actors, monkeypatch):
    events = []
    callbacks = {
        event: lambda event=event, **kwargs: events.append(event) for event in ("on_evaluate_start", "on_evaluate_end")
    }
    algo = built(beside().callbacks(**callbacks))
    algo.train()
    with monkeypatch.context() as patch:
        patch.setattr(algo, "training_step", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            algo.train()
    assert actors[0].stopped and events == ["on_evaluate_start"]
    assert algo.evaluate()["env_runners"]["num_episodes_lifetime"] == 3
    assert algo.train()["evaluation"]["env_runners"]["num_episodes_lifetime"] == 6
    assert events == ["on_evaluate_start", *["on_evaluate_start", "on_evaluate_end"] * 2]
