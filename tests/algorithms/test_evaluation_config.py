from __future__ import annotations

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError


def cart_pole():
    return PPOConfig().environment("CartPole-v1", env_config={"a": 1, "b": 2}).env_runners(num_envs_per_env_runner=8)


def test_defaults():
    own = cart_pole().get_evaluation_config_object()
    assert (own.explore, own.num_envs_per_env_runner, own.env_config) == (False, 8, {"a": 1, "b": 2})


def test_overrides():
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


def test_as_many_environments_as_their_maker_makes():
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
        ({"evaluation_interval": 0}, r"evaluation\.evaluation_interval"),
        ({"evaluation_intervall": 1}, r"did you mean 'evaluation_interval'"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(ConfigError, match=message):
        PPOConfig().evaluation(**settings)


def test_overrides_are_checked():
    assert PPOConfig.overrides(explore=True, env_config={"a": 1}) == {"explore": True, "env_config": {"a": 1}}
    with pytest.raises(ConfigError, match=r"(?s)PPOConfig\.overrides.*- explore: .*- gama: "):
        PPOConfig.overrides(gama=0.9, explore=3)


def test_a_goal_that_nothing_measures():
    with pytest.raises(ConfigError, match=r"stop\.evaluation_return_mean: .*evaluation_interval"):
        cart_pole().stopping(evaluation_return_mean=100).build_algo()
    with pytest.raises(ConfigError, match=r"stop\.evaluation_return_mean \(line 1, column 32\): .*evaluation_interval"):
        PPOConfig.from_yaml("stop: {evaluation_return_mean: 100}")


def test_overrides_name_an_environment_by_its_module():
    assert PPOConfig.overrides(env="my_package:MyEnv-v0") == {"env": "my_package:MyEnv-v0"}
