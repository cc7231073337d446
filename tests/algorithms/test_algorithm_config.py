from __future__ import annotations

import gymnasium as gym
import numpy as np

from epibatch.algorithms import PPOConfig

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACT = gym.spaces.Discrete(2)
SINGLE = {"__env__": (BOX, ACT), "__env_single__": (BOX, ACT)}


def test_pipelines_get_one_environments_spaces():
    config = PPOConfig()
    for pipeline in (
        config.build_env_to_module_connector(spaces=SINGLE),
        config.build_module_to_env_connector(spaces=SINGLE),
        config.build_learner_connector(BOX, ACT),
    ):
        assert (pipeline.input_observation_space, pipeline.input_action_space) == (BOX, ACT)


def test_spaces_of_the_config_serve_where_there_is_no_environment():
    config = PPOConfig().environment(observation_space=BOX, action_space=ACT)
    assert config.build_env_to_module_connector().observation_space == BOX
    assert config.get_rl_module_spec().action_space == ACT


def test_device_reaches_the_tensors():
    pipeline = PPOConfig().build_env_to_module_connector(spaces=SINGLE, device="cpu")
    assert pipeline[-1].get_ctor_args_and_kwargs()[1]["device"] == "cpu"
