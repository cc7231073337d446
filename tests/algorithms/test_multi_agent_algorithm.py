"""Algorithms of several agents: an environment whose every observation says whose it is."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPO
from epibatch.core.errors import CheckpointError, ConfigError
from epibatch.core.registry import register_env
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnv
from fixture_configs import cart_pole, learned, same_weights, weights

LENGTHS = (3, 5, 2)


class Herd(MultiAgentEnv):
    """Red and blue cattle that stay for 3, 5 or 2 steps by turns; who has the number 1 comes one step later.

    The reward of each step is the agent's number + 1, and that of the first step is 10 more for blue ones.
    """

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["red_0", "red_1", "blue_0"]
        wide = (config or {}).get("wide", 3)
        box, more = (gym.spaces.Box(-1000.0, 1000.0, (n,), np.float32) for n in (3, wide))
        self.observation_spaces = {a: more if a.startswith("blue") else box for a in self.agents}
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        self.count = 0

    def _observed(self):
        here = [a for a in self.possible_agents if self.t >= int(a[-1])]
        return {a: np.full(self.observation_spaces[a].shape, self.t + int(a[-1]), np.float32) for a in here}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, LENGTHS[self.count % 3]
        self.count += 1
        return self._observed(), {}

    def step(self, action_dict):
        self.t += 1
        rewards = {a: int(a[-1]) + 1.0 + (10.0 if a[0] == "b" and self.t == 1 else 0.0) for a in action_dict}
        return self._observed(), rewards, {"__all__": self.t == self.length}, {}, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    register_env("herd", Herd)


def small(**multi_agent):
    settings = {"policies": ["red", "blue"], "policy_mapping_fn": {"red_*": "red", "*": "blue"}, **multi_agent}
    config = cart_pole("herd", train_batch_size=40, minibatch_size=16, num_epochs=2, lr=1e-2)
    return config.env_runners(num_envs_per_env_runner=2).multi_agent(**settings)


# ----------------------------------------------------------------------------------------- training


def test_train_reports_modules_and_agents(built):
    algo = built(small())
    before = {each: weights(algo, each) for each in ("red", "blue")}
    results = algo.train()
    assert 40 <= results["num_env_steps_sampled_lifetime"] < 42
    assert list(learned(results)) == ["red", "blue"]
    for each in before:
        assert not same_weights(before[each], weights(algo, each))
        assert np.isfinite(learned(results)[each]["policy_loss"])
    runner = results["env_runners"]
    # Of episodes of 3, 5 and 2 steps: red_0 1 each, red_1 2 for each but the first step, blue_0 1 and 10 once.
    returns = {n: {"red_0": n, "red_1": 2 * (n - 1), "blue_0": n + 10} for n in LENGTHS}
    assert runner["episode_return_min"] == sum(returns[2].values()) == 16
    assert runner["episode_return_max"] == sum(returns[5].values()) == 28
    means = runner["agent_episode_returns_mean"]
    assert means["blue_0"] == pytest.approx(means["red_0"] + 10)
    assert means["red_1"] == pytest.approx(2 * (means["red_0"] - 1))
    assert runner["module_episode_returns_mean"]["red"] == pytest.approx(means["red_0"] + means["red_1"])


def test_batches_are_counted_in_agent_steps(built):
    algo = built(small(count_steps_by="agent_steps"))
    results = algo.train()
    assert 40 <= sum(own["num_rows"] for own in learned(results).values()) < 40 + 2 * 3
    assert results["num_env_steps_sampled_lifetime"] < 40
    fragments = built(small(count_steps_by="agent_steps").env_runners(rollout_fragment_length=2))
    assert 40 <= sum(own["num_rows"] for own in learned(fragments.train()).values()) < 40 + 2 * 3


def test_only_some_modules_learn(built):
    algo = built(small(policies_to_train=["blue"]))
    before = weights(algo, "red")
    assert list(learned(algo.train())) == ["blue"]
    assert same_weights(before, weights(algo, "red"))
    by_function = built(small(policies_to_train=lambda module_id, batch: module_id == "red"))
    assert list(learned(by_function.train())) == ["red"]


def test_settings_of_single_modules_reach_the_learner(built):
    overrides = {"red": {"lr": 0.5, "clip_param": 0.1, "shuffle_batch_per_epoch": False, "gamma": 0.5}}
    algo = built(small(algorithm_config_overrides_per_module=overrides))
    red, blue = (algo.learner.settings_of(each) for each in ("red", "blue"))
    assert (red.lr, red.shuffle, blue.lr, blue.shuffle) == (0.5, "once", 1e-2, "epoch")
    assert [algo.learner.loss_of(each).settings.clip_param for each in ("red", "blue")] == [0.1, 0.3]
    assert algo.pipelines["learner"][-1].per_module == {"red": {"gamma": 0.5}}
    assert learned(algo.train())["red"]["lr"] == 0.5


def test_advantages_have_each_modules_discount(built):
    algo = built(small(algorithm_config_overrides_per_module={"red": {"gamma": 0.5, "lambda_": 0.25}}))
    (episode,) = algo.env_runner.sample(num_episodes=1)  # of 3 steps; rewards of red_0 are 1, 1, 1, of blue_0 11, 1, 1
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=[episode], shared_data={})
    discounts = {"red": (0.5, 0.25, [1, 1, 1]), "blue": (0.99, 1.0, [11, 1, 1])}
    for module_id, (gamma, lambda_, rewards) in discounts.items():
        own = batch[module_id]
        values = [*algo.get_module(module_id).compute_values(own).tolist()[:3], 0.0]  # it ends by itself
        errors = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(3)]
        weights = [[(gamma * lambda_) ** (k - t) if k >= t else 0 for k in range(3)] for t in range(3)]
        targets = np.dot(weights, errors) + values[:3]
        np.testing.assert_allclose(own["value_targets"][:3], targets, rtol=1e-4)


def test_modules_have_the_spaces_of_their_agents(built):
    algo = built(small().environment(env_config={"wide": 7}))
    shapes = [algo.get_module(each).observation_space.shape for each in ("red", "blue")]
    assert shapes == [(3,), (7,)]
    algo.train()


def test_a_config_of_one_agent_says_what_several_need():
    with pytest.raises(ConfigError, match=r"(?s)one of several, Herd.*\.multi_agent\(policies="):
        cart_pole("herd").build_algo()


class NoValues(TorchRLModule):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": batch["obs"][..., :2]}


def test_only_modules_that_learn_need_a_value_function(built):
    own = {"red": RLModuleSpec(module_class=NoValues), "blue": None}
    with pytest.raises(ConfigError, match=r"(?s)module 'red':.*no method compute_values"):
        small(policies=own).build_algo()
    algo = built(small(policies=own, policies_to_train=["blue"]))
    assert list(learned(algo.train())) == ["blue"]


# ------------------------------------------------------------------------------- measuring and acting


def test_evaluation(built):
    algo = built(small().evaluation(evaluation_duration=7, evaluation_interval=1))
    state = algo.learner.get_state()["generators"]
    measured = algo.evaluate()["env_runners"]
    # Three episodes of the first environment and four of the second.
    lengths = [3, 5, 2, 3, 5, 2, 3]
    assert (measured["num_episodes"], measured["num_env_steps_sampled"]) == (7, sum(lengths))
    assert measured["episode_len_mean"] == pytest.approx(np.mean(lengths))
    assert measured["episode_return_mean"] == pytest.approx(np.mean([4 * n + 8 for n in lengths]))
    assert measured["agent_episode_returns_mean"] == pytest.approx(
        {"red_0": np.mean(lengths), "red_1": 2 * np.mean(lengths) - 2, "blue_0": np.mean(lengths) + 10}
    )
    assert measured["module_episode_returns_mean"]["blue"] == pytest.approx(np.mean(lengths) + 10)
    assert same_weights(state, algo.learner.get_state()["generators"])
    assert algo.train()["evaluation"]["env_runners"]["num_episodes_lifetime"] == 14


def test_evaluation_by_timesteps(built):
    algo = built(small().evaluation(evaluation_duration=20, evaluation_duration_unit="timesteps"))
    measured = algo.evaluate()["env_runners"]
    assert measured["num_env_steps_sampled"] == 20
    assert measured["num_episodes"] == 6  # 3, 5 and 2 steps in each environment
    assert measured["episode_len_mean"] == pytest.approx(10 / 3)


class Payer(MultiAgentEnv):
    """Agent a acts for 200 steps; b is paid too, and never sees anything."""

    possible_agents = ("a", "b")

    def __init__(self, config=None):
        super().__init__()
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, (1,)))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, action_dict):
        self.t += 1
        return {"a": np.zeros(1, np.float32)}, {"a": 1.0, "b": 0.5}, {"__all__": self.t == 200}, {}, {}


def test_episodes_that_are_sampled_in_parts_count_whole_with_all_rewards(built):
    config = small(policy_mapping_fn={"a": "red", "*": "blue"}).environment(lambda env_config: Payer())
    measured = built(config.evaluation(evaluation_duration=3)).evaluate()["env_runners"]
    assert (measured["num_episodes"], measured["num_env_steps_sampled"]) == (3, 600)
    assert measured["episode_return_min"] == measured["episode_return_max"] == 300.0
    assert measured["agent_episode_returns_mean"] == {"a": 200.0, "b": 100.0}


# ----------------------------------------------------------------------------------- saving, restoring


@pytest.mark.parametrize("network", [{}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 3}])
def test_a_restored_run_goes_on_like_the_one_that_saved(built, tmp_path, network):
    config = small(algorithm_config_overrides_per_module={"red": {"lr": 0.1}}).rl_module(model_config=network)
    config.evaluation(evaluation_duration=3)
    algo = built(config)
    algo.train()
    algo.save_to_path(tmp_path / "saved", end_episodes=True)
    other = PPO.from_checkpoint(tmp_path / "saved")
    for _ in range(2):
        assert learned(algo.train()) == learned(other.train())
    one, two = (each.evaluate()["env_runners"] for each in (algo, other))
    assert one.pop("sample") and two.pop("sample")
    assert one == two
    for module_id in ("red", "blue"):
        assert same_weights(weights(algo, module_id), weights(other, module_id))
    other.stop()


def test_a_checkpoint_of_other_modules_is_refused(built, tmp_path):
    algo = built(small())
    algo.save_to_path(tmp_path / "saved")
    other = built(small(policies=["red", "green"], policy_mapping_fn={"red_*": "red", "*": "green"}))
    with pytest.raises(CheckpointError, match="blue"):
        other.restore_from_path(tmp_path / "saved")


def test_a_mapping_function_is_asked_for(built, tmp_path):
    config = small(policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id.split("_")[0])
    algo = built(config)
    algo.train()
    algo.save_to_path(tmp_path / "saved", end_episodes=True)
    with pytest.raises(CheckpointError, match=r"multi_agent\.policy_mapping_fn: function is code"):
        PPO.from_checkpoint(tmp_path / "saved")
    other = PPO.from_checkpoint(tmp_path / "saved", config=config)
    assert learned(algo.train()) == learned(other.train())
    other.stop()
