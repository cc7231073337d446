from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.settings import (
    EnvironmentSettings,
    EnvRunnerSettings,
    PPOTrainingSettings,
    Problems,
    RLModuleSettings,
    StopSettings,
    check_section,
    fitting_part,
    resolve_aliases,
    setting_names,
)
from epibatch.core.errors import ConfigError

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
    found = PPOTrainingSettings().model_dump()
    assert found.pop("standardize_advantages") is True  # RLlib has no such setting, and does it
    assert found == RLLIB_PPO


def problem_of(model, **values):
    problems = Problems()
    settings = check_section("part", model, values, problems, {"env": "environment", "lr": "training"})
    assert settings is None
    ((path, text),) = problems.found
    return f"{path}: {text}"


@pytest.mark.parametrize(
    ("model", "values", "message"),
    [
        (PPOTrainingSettings, {"lr": 0}, "part.lr: input should be greater than 0, found int 0"),
        (PPOTrainingSettings, {"lr": float("nan")}, "part.lr: input should be"),
        (PPOTrainingSettings, {"lr": "3e-4"}, "part.lr: input should be a valid number, found str '3e-4'"),
        (PPOTrainingSettings, {"lr": True}, "part.lr: input should be a valid number"),
        (PPOTrainingSettings, {"lr": [[0, 0.1]]}, "part.lr: input should be a valid number"),
        (PPOTrainingSettings, {"gamma": 1.5}, "less than or equal to 1"),
        (PPOTrainingSettings, {"num_epochs": 2.0}, "part.num_epochs: input should be a valid integer"),
        (PPOTrainingSettings, {"num_epochs": True}, "valid integer, found bool"),
        (PPOTrainingSettings, {"minibatch_size": 0}, "greater than or equal to 1"),
        (PPOTrainingSettings, {"grad_clip_by": "norms"}, "'global_norm', 'norm' or 'value'"),
        (PPOTrainingSettings, {"gama": 1}, "did you mean 'gamma'"),
        (PPOTrainingSettings, {"env": 1}, "unknown setting here; it belongs to environment"),
        (PPOTrainingSettings, {"num_sgd_iter": 1}, "use num_epochs"),
        (EnvRunnerSettings, {"horizon": 9}, "use max_episode_steps: env_config={'max_episode_steps': ...}"),
        (EnvRunnerSettings, {"num_envs_per_env_runner": 0}, "greater than or equal to 1"),
        (EnvRunnerSettings, {"rollout_fragment_length": 0}, "a positive integer or 'auto', found int 0"),
        (EnvRunnerSettings, {"rollout_fragment_length": "all"}, "a positive integer or 'auto', found str 'all'"),
        (EnvRunnerSettings, {"gym_env_vectorize_mode": "fast"}, "'sync', 'async' or 'vector_entry_point'"),
        (EnvRunnerSettings, {"explore": 1}, "part.explore: input should be a valid boolean"),
        (EnvironmentSettings, {"env": 3}, "an environment's name, its class"),
        (EnvironmentSettings, {"env": ""}, "an environment's name, its class"),
        (EnvironmentSettings, {"observation_space": (4,)}, "a gymnasium Space"),
        (RLModuleSettings, {"rl_module_spec": "mlp"}, "an RLModuleSpec"),
        (RLModuleSettings, {"model_config": 3}, "part.model_config: input should be a valid dictionary"),
        (RLModuleSettings, {"module_config": {}}, "did you mean 'model_config'"),
        (StopSettings, {"training_iteration": -1}, "greater than or equal to 1"),
    ],
)
def test_wrong_settings(model, values, message):
    assert message in problem_of(model, **values)


def test_environment_object_is_refused():
    env = gym.make("CartPole-v1")
    assert "so that several can be made" in problem_of(EnvironmentSettings, env=env)
    env.close()


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        (PPOTrainingSettings, {"num_epochs": np.int32(3)}, {"num_epochs": 3}),
        (PPOTrainingSettings, {"lr": np.float32(0.5), "vf_clip_param": float("inf")}, {"lr": 0.5}),
        (PPOTrainingSettings, {"vf_loss_coeff": 1, "minibatch_size": None}, {"vf_loss_coeff": 1.0}),
        (EnvRunnerSettings, {"gym_env_vectorize_mode": gym.VectorizeMode.ASYNC}, {"gym_env_vectorize_mode": "async"}),
        (EnvRunnerSettings, {"rollout_fragment_length": np.int64(8)}, {"rollout_fragment_length": 8}),
        (EnvironmentSettings, {"env": gym.Env}, {"env": gym.Env}),
        (StopSettings, {"episode_return_mean": -150}, {"episode_return_mean": -150.0}),
    ],
)
def test_fitting_settings(model, values, expected):
    problems = Problems()
    settings = check_section("part", model, values, problems, {})
    assert not problems
    assert {name: getattr(settings, name) for name in expected} == expected


def test_default_model_config_becomes_a_dict():
    from epibatch.core.rl_module import DefaultModelConfig

    problems = Problems()
    values = {"model_config": DefaultModelConfig(fcnet_hiddens=[8])}
    settings = check_section("rl_module", RLModuleSettings, values, problems, {})
    assert settings.module_config["fcnet_hiddens"] == [8]


def test_the_fitting_part_leaves_out_what_is_wrong():
    part = fitting_part(PPOTrainingSettings, {"lr": 0, "gama": 1, "gamma": 0.5, "num_epochs": "1"})
    assert (part.lr, part.gamma, part.num_epochs) == (5e-5, 0.5, 30)


def test_all_problems_come_in_one_error():
    problems = Problems()
    check_section("training", PPOTrainingSettings, {"lr": -1, "gama": 1}, problems, {})
    problems.add("learner[0]", "wrong")
    with pytest.raises(
        ConfigError, match=r"(?s)PPOConfig\n.*training\.lr.*training\.gama.*learner\[0\]: wrong.*3 settings"
    ):
        problems.raise_if_any("PPOConfig")


def test_no_problems_no_error():
    Problems().raise_if_any("PPOConfig")


def test_aliases():
    problems = Problems()
    assert resolve_aliases("training", {"lambda": 0.9, "lr": 1}, problems) == {"lambda_": 0.9, "lr": 1}
    assert not problems
    resolve_aliases("training", {"train_batch_size": 1, "train_batch_size_per_learner": 2}, problems)
    assert "another spelling of 'train_batch_size'" in problems.found[0][1]


def test_setting_names_are_what_users_write():
    assert setting_names(RLModuleSettings) == ["model_config", "rl_module_spec", "view_requirements"]
