"""What settings may be: RLlib's defaults, values that fit or not, and settings of evaluations."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PolicySpec, PPOConfig
from epibatch.core.errors import ConfigError, NotAvailableError
from epibatch.core.rl_module import DefaultModelConfig

# What PPOConfig().to_dict() of ray[rllib] 2.60.0 holds.
RLLIB_PPO = {
    "lr": 5e-5,
    "gamma": 0.99,
    "train_batch_size": 4000,
    "minibatch_size": 128,
    "num_epochs": 30,
    "shuffle_batch_per_epoch": True,
    "grad_clip": None,
    "grad_clip_by": "global_norm",
    "lambda_": 1.0,
    "clip_param": 0.3,
    "vf_clip_param": 10.0,
    "vf_loss_coeff": 1.0,
    "entropy_coeff": 0.0,
    "use_kl_loss": True,
    "kl_coeff": 0.2,
    "kl_target": 0.01,
}


def test_ppo_defaults_are_rllibs():
    found = PPOConfig().to_dict()["training"]
    assert found.pop("standardize_advantages") is True  # RLlib has no such setting, and does it
    assert found.pop("optimizer") == "adam"  # nor this one
    assert found.pop("use_clipped_value_loss") is False  # nor this one, which is PPO2's
    assert found | {"grad_clip": None} == RLLIB_PPO


@pytest.mark.parametrize(
    ("value", "form"),
    [(-1, "be greater than or equal to 0"), ("two", "be a valid integer"), (2.5, "be a valid integer")],
)
def test_an_error_says_what_a_setting_has_to_be(value, form):
    with pytest.raises(ConfigError) as caught:
        PPOConfig().env_runners(num_env_runners=value)
    assert caught.value.do == f"correct this setting: it has to {form}"


def problem_of(section, **values):
    with pytest.raises(ConfigError, match="correct this setting") as caught:
        PPOConfig().change("method", {section: values})
    return str(caught.value).partition("- ")[2]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("training", {"lr": -1}, "training.lr: input should be greater than or equal to 0, found int -1"),
        ("training", {"lr": float("nan")}, "training.lr: input should be"),
        ("training", {"lr": "3e-4"}, "training.lr: input should be a valid number, found str '3e-4'"),
        ("training", {"lr": True}, "training.lr: input should be a valid number"),
        ("training", {"lr": [[1, 0.1]]}, "training.lr: expected [[0, value], [step, value], ...] with whole numbers"),
        ("training", {"gamma": 1.5}, "less than or equal to 1"),
        ("training", {"num_epochs": 2.0}, "training.num_epochs: input should be a valid integer"),
        ("training", {"grad_clip_by": "norms"}, "'global_norm', 'norm' or 'value'"),
        ("training", {"gama": 1}, "did you mean 'gamma'"),
        ("training", {"env": 1}, "unknown setting here; it belongs to environment"),
        ("env_runners", {"horizon": 0}, "greater than or equal to 1"),
        ("env_runners", {"num_envs_per_env_runner": 0}, "greater than or equal to 1"),
        ("env_runners", {"rollout_fragment_length": 0}, "a positive integer or 'auto', found int 0"),
        ("env_runners", {"gym_env_vectorize_mode": "fast"}, "'sync', 'async' or 'vector_entry_point'"),
        (
            "env_runners",
            {"explore": 2},
            "env_runners.explore: input should be True, False, 'sample', 'mode', 'mean' or 'random', found int 2",
        ),
        ("environment", {"env": 3}, "an environment's name, its class"),
        ("environment", {"observation_space": (4,)}, "a gymnasium Space"),
        ("rl_module", {"rl_module_spec": "mlp"}, "an RLModuleSpec"),
        ("rl_module", {"model_config": 3}, "rl_module.model_config: input should be a valid dictionary"),
        ("rl_module", {"module_config": {}}, "did you mean 'model_config'"),
        ("stop", {"training_iteration": -1}, "greater than or equal to 1"),
        ("environment", {"env": gym.Env()}, "so that several can be made"),
    ],
)
def test_wrong_settings(section, values, message):
    assert message in problem_of(section, **values)


@pytest.mark.parametrize(
    ("section", "values", "expected"),
    [
        ("training", {"num_epochs": np.int32(3)}, {"num_epochs": 3}),
        ("training", {"lr": np.float32(0.5), "vf_clip_param": float("inf")}, {"lr": 0.5}),
        ("training", {"vf_loss_coeff": 1, "minibatch_size": None}, {"vf_loss_coeff": 1.0}),
        ("env_runners", {"gym_env_vectorize_mode": gym.VectorizeMode.ASYNC}, {"gym_env_vectorize_mode": "async"}),
        ("env_runners", {"rollout_fragment_length": np.int64(8)}, {"rollout_fragment_length": 8}),
        ("environment", {"env": gym.Env}, {"env": gym.Env}),
        ("stop", {"episode_return_mean": -150}, {"episode_return_mean": -150.0}),
        ("stop", {"results": None}, {"results": {}}),
        ("rl_module", {"model_config": DefaultModelConfig(fcnet_hiddens=[8])}, {}),
    ],
)
def test_fitting_settings(section, values, expected):
    config = PPOConfig().change("method", {section: values})
    assert {name: getattr(config, name) for name in expected} == expected
    assert section != "rl_module" or config.model_config["fcnet_hiddens"] == [8]


def test_second_spellings():
    config = PPOConfig().training(**{"lambda": 0.9}).training(train_batch_size_per_learner=64)
    assert (config.lambda_, config.train_batch_size) == (0.9, 64)
    assert config.training(lambda_=0.8).lambda_ == 0.8
    with pytest.raises(ConfigError, match="given twice: 'train_batch_size_per_learner' and another spelling"):
        config.training(train_batch_size=1, train_batch_size_per_learner=2)


@pytest.mark.parametrize(("section", "name"), [("learners", "num_aggregator_actors_per_learner")])
def test_other_processes_are_not_there_yet(section, name):
    assert getattr(PPOConfig().change("method", {section: {name: 0}}), name) == 0
    with pytest.raises(NotAvailableError, match=rf"{section}\.{name}: not available yet; expected 0, found 2"):
        PPOConfig().change("method", {section: {name: 2}})


def test_a_goal_that_nothing_measures_has_its_place():
    with pytest.raises(ConfigError, match=r"stop\.evaluation_return_mean \(line 1, column 32\): .*evaluation_interval"):
        PPOConfig.from_yaml("stop: {evaluation_return_mean: 100}")


@pytest.mark.parametrize(
    ("minibatch_size", "goal", "interval", "path"),
    [
        (64, None, None, None),
        (65, None, None, r"training\.minibatch_size: expected at most train_batch_size \(64\)"),
        (64, 100.0, 5, None),
        (64, 100.0, None, r"stop\.evaluation_return_mean: needs evaluations"),
    ],
)
def test_contradictions(minibatch_size, goal, interval, path):
    config = PPOConfig().training(train_batch_size=64, minibatch_size=minibatch_size)
    config.stopping(evaluation_return_mean=goal).evaluation(evaluation_interval=interval)
    if path is None:
        config.validate()
    else:
        with pytest.raises(ConfigError, match=rf"{path}(?s:.*)correct this setting"):
            config.validate()


# ---------------------------------------------------------------------------- settings of evaluations


def cart_pole():
    return PPOConfig().environment("CartPole-v1", env_config={"a": 1, "b": 2}).env_runners(num_envs_per_env_runner=8)


def test_evaluations_have_the_config_with_overrides():
    own = cart_pole().get_evaluation_config_object()
    assert (own.explore, own.num_envs_per_env_runner, own.env_config) == (False, 8, {"a": 1, "b": 2})
    config = cart_pole().evaluation(
        evaluation_duration=100,
        evaluation_config={"explore": True, "env_config": {"b": 3}, "num_envs_per_env_runner": 20, "env": "Own-v0"},
    )
    own = config.get_evaluation_config_object()
    assert (own.explore, own.num_envs_per_env_runner, own.env) == (True, 20, "Own-v0")
    assert own.env_config == {"a": 1, "b": 3}
    assert (config.explore, config.num_envs_per_env_runner, config.env) == (True, 8, "CartPole-v1")


def test_no_more_environments_than_episodes():
    assert cart_pole().evaluation(evaluation_duration=3).get_evaluation_config_object().num_envs_per_env_runner == 3
    steps = cart_pole().evaluation(evaluation_duration=3, evaluation_duration_unit="timesteps")
    assert steps.get_evaluation_config_object().num_envs_per_env_runner == 8

    config = cart_pole().env_runners(gym_env_vectorize_mode="vector_entry_point").evaluation(evaluation_duration=3)
    assert config.get_evaluation_config_object().num_envs_per_env_runner == 8
    config.evaluation(evaluation_config={"gym_env_vectorize_mode": "sync"})
    assert config.get_evaluation_config_object().num_envs_per_env_runner == 3


def test_from_yaml_and_back():
    text = "environment: {env: CartPole-v1}\nevaluation: {evaluation_interval: 5, evaluation_config: {explore: true}}"
    config = PPOConfig.from_yaml(text)
    assert (config.evaluation_interval, config.evaluation_duration) == (5, 10)
    assert PPOConfig.from_yaml(config.to_yaml()).evaluation_config == {"explore": True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluation_config": {"lr": 0.1}}, r"evaluation\.evaluation_config\.lr: belongs to training"),
        ({"evaluation_config": {"explor": True}}, r"evaluation_config\.explor: unknown.*did you mean 'explore'"),
        ({"evaluation_config": {"explore": "no"}}, r"evaluation\.evaluation_config\.explore: .*'no'"),
        (
            {"evaluation_config": {"num_envs_per_env_runner": 0}},
            r"num_envs_per_env_runner: .*greater than or equal to 1",
        ),
        ({"evaluation_duration_unit": "minutes"}, r"evaluation\.evaluation_duration_unit: .*'episodes' or 'timesteps'"),
        ({"evaluation_duration": 0}, r"evaluation\.evaluation_duration"),
    ],
)
def test_mistakes_in_the_settings_of_evaluations(settings, message):
    with pytest.raises(ConfigError, match=message):
        PPOConfig().evaluation(**settings)


def test_overrides_are_checked():
    assert PPOConfig.overrides(env="my_package:MyEnv-v0") == {"env": "my_package:MyEnv-v0"}
    assert PPOConfig.overrides(explore=True, env_config={"a": 1}) == {"explore": True, "env_config": {"a": 1}}
    with pytest.raises(ConfigError, match=r"(?s)PPOConfig\.overrides.*- explore: .*- gama: "):
        PPOConfig.overrides(gama=0.9, explore=3)


def test_goals_of_evaluations_need_evaluations_and_settings_have_names_that_are_text():
    with pytest.raises(ConfigError, match=r"episode_len_mean needs evaluations: set evaluation\.evaluation_interval"):
        PPOConfig().stopping(results={"evaluation/env_runners/episode_len_mean": 5}).validate()
    with pytest.raises(ConfigError, match=r"training\[1\]: unknown setting"):
        PPOConfig.from_dict({"training": {1: 2}})
    with pytest.raises(ConfigError) as caught:
        PolicySpec(colour=1)
    assert caught.value.where == "PolicySpec" and caught.value.found == "colour"


def test_changes_are_counted_by_section():
    config = PPOConfig().environment("CartPole-v1").training(lr=0.1)
    config.env_runners(num_envs_per_env_runner=2)
    config.explore = False
    with pytest.raises(ConfigError):
        config.training(lr="fast")
    assert config.num_changes == {"environment": 1, "training": 1, "env_runners": 2}
    config.copy().training(lr=0.2)
    assert config.num_changes["training"] == 1
