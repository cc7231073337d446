from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.module_specs import check_model_config, module_spec_for
from epibatch.algorithms.settings import Problems
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import DefaultActorCritic, RLModuleSpec, TorchRLModule

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
WIDE = gym.spaces.Box(-1.0, 1.0, (12,), np.float32)
ACT = gym.spaces.Discrete(2)


class Own(TorchRLModule):
    def _forward(self, batch, **kwargs):
        return {}


def test_default_network_for_the_spaces():
    spec = module_spec_for(None, BOX, ACT, {"fcnet_hiddens": [8]})
    assert spec.module_class is DefaultActorCritic
    assert (spec.observation_space, spec.action_space) == (BOX, ACT)
    assert spec.model_config["fcnet_hiddens"] == [8]


def test_own_spec_gets_what_it_leaves_open():
    own = RLModuleSpec(module_class=Own)
    spec = module_spec_for(own, BOX, ACT, {"anything": 1})
    assert (spec.module_class, spec.observation_space, spec.action_space) == (Own, BOX, ACT)
    assert spec.model_config == {"anything": 1}
    assert own.observation_space is None


def test_own_spec_keeps_what_it_says():
    own = RLModuleSpec(module_class=Own, observation_space=WIDE, action_space=ACT, model_config={"a": 1})
    spec = module_spec_for(own, BOX, ACT, {"b": 2})
    assert (spec.observation_space, spec.model_config) == (WIDE, {"a": 1})


def test_config_gives_the_module_what_the_pipeline_puts_out():
    single = {"__env__": (BOX, ACT), "__env_single__": (BOX, ACT)}
    config = PPOConfig()
    assert config.get_rl_module_spec(spaces=single).observation_space == BOX
    assert config.get_rl_module_spec(spaces={**single, "default_policy": (WIDE, ACT)}).observation_space == WIDE
    env = gym.make_vec("CartPole-v1", num_envs=2)
    assert config.get_rl_module_spec(env=env).observation_space == env.single_observation_space
    env.close()


@pytest.mark.parametrize(
    ("model_config", "paths"),
    [
        ({}, []),
        ({"fcnet_hiddens": [8], "use_lstm": True}, []),
        ({"fcnet_hidden": [8]}, ["rl_module.model_config.fcnet_hidden"]),
        ({"a": 1, "max_seq_len": 0}, ["rl_module.model_config.a", "rl_module.model_config"]),
    ],
)
def test_check_model_config(model_config, paths):
    problems = Problems()
    check_model_config(model_config, problems)
    assert [path for path, _ in problems.found] == paths


def test_squashed_actions_need_somebody_who_stretches_them():
    config = PPOConfig().environment("Pendulum-v1", normalize_actions=False)
    with pytest.raises(ConfigError, match=r"squash_actions[\s\S]*normalize_actions: true"):
        config.rl_module(model_config={"squash_actions": True}).build_algo()
    config.environment(normalize_actions=True).build_algo().stop()
