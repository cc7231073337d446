"""A policy is what was saved: a pipeline that was edited after its config built it is not forgotten."""

from __future__ import annotations

import pytest

from epibatch import Policy
from epibatch.algorithms import Algorithm, PPOConfig
from epibatch.connectors.observations import Clip
from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, ConfigError


def config(*limits: float) -> PPOConfig:
    pieces = [{"piece": "clip", "low": -limit, "high": limit} for limit in limits]
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .env_runners(env_to_module_connector=pieces)
    )


def saved(path, edit):
    algo = config(1.0).build_algo()
    edit(algo.env_runner.pipelines["env_to_module"])
    algo.save_to_path(path)
    algo.stop()
    return path


def replace_by_another(pipeline):
    pipeline.remove("clip")
    pipeline.prepend(Clip(low=-0.01, high=0.01))


def add_one(pipeline):
    pipeline.prepend(Clip(low=-0.5, high=0.5))


@pytest.mark.parametrize("edit", [replace_by_another, add_one])
def test_an_edited_pipeline_needs_the_config(tmp_path, edit):
    with pytest.raises(CheckpointError, match="edited after the config built it"):
        Policy.from_checkpoint(saved(tmp_path / "one", edit))


def test_a_config_without_the_edit_is_refused_and_one_with_it_is_taken(tmp_path):
    path = saved(tmp_path / "one", add_one)
    with pytest.raises(CheckpointError, match="pieces of the pipeline that was saved"):
        Policy.from_checkpoint(path, config=config(1.0))
    Policy.from_checkpoint(path, config=config(0.5, 1.0))


def test_an_edit_nobody_made_needs_nothing(tmp_path):
    assert Policy.from_checkpoint(saved(tmp_path / "one", lambda pipeline: None))


class Longer(PPOConfig):
    """A config with a model and a method of its own."""

    model = PPOConfig.model

    def training(self, *, half_lr=None, **settings):
        return super().training(lr=2 * half_lr, **settings)


def test_a_method_that_a_config_class_writes_stays():
    assert Longer().training(half_lr=0.1).lr == 0.2


def test_a_setting_given_twice_is_a_type_error():
    with pytest.raises(TypeError, match="multiple values for env"):
        PPOConfig().environment("CartPole-v1", env="Pendulum-v1")


def test_a_mapping_after_a_function_is_the_new_value_or_a_named_error():
    made = PPOConfig().training(learner_connector=lambda observations, actions: [])
    with pytest.raises(ConfigError, match="learner_connector"):
        made.training(learner_connector={"piece": "clip"})


def test_a_description_from_before_policies_restores_an_algorithm_and_names_what_a_policy_lacks(tmp_path):
    content = load_state(saved(tmp_path / "new", lambda pipeline: None))
    today = content["description"]
    content["description"] = {"algorithm": "ppo", "config": today["config"], "not_data": None}
    path = save_state(tmp_path / "old", content)
    algo = Algorithm.from_checkpoint(path)
    assert algo.config.to_dict() == config(1.0).to_dict()
    with pytest.raises(CheckpointError) as caught:
        Policy.from_checkpoint(path)
    assert caught.value.expected == "the spaces of the environment"
    env = algo.env_runner.env
    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}
    Policy.from_checkpoint(path, config=config(1.0).environment(**spaces)).act([0.0, 0.0, 0.0, 0.0])
    algo.stop()
    content["description"].update(config=None, not_data="- environment.env: a lambda")
    with pytest.raises(CheckpointError, match=r"environment\.env: a lambda"):
        Policy.from_checkpoint(save_state(tmp_path / "code", content))
