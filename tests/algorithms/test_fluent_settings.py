from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError


def test_methods_return_the_config_and_settings_read_flat():
    config = PPOConfig()
    assert config.environment("CartPole-v1", env_config={"a": 1}) is config
    assert config.env_runners(num_envs_per_env_runner=4, explore=False) is config
    assert config.learners(num_learners=0) is config
    assert config.training(lr=0.01, train_batch_size_per_learner=64) is config
    assert config.rl_module(model_config={"fcnet_hiddens": [8]}) is config
    assert config.debugging(seed=3) is config
    assert config.stopping(training_iteration=2) is config
    assert (config.env, config.env_config, config.num_envs_per_env_runner, config.explore) == (
        "CartPole-v1",
        {"a": 1},
        4,
        False,
    )
    assert (config.lr, config.train_batch_size, config.train_batch_size_per_learner) == (0.01, 64, 64)
    assert (config.model_config, config.seed, config.stop_rules.training_iteration) == ({"fcnet_hiddens": [8]}, 3, 2)


def test_settings_of_earlier_calls_stay():
    config = PPOConfig().training(lr=0.01).training(gamma=0.5)
    assert (config.lr, config.gamma) == (0.01, 0.5)


def test_model_settings_are_merged():
    config = PPOConfig().training(model={"fcnet_hiddens": [8]}).rl_module(model_config_dict={"max_seq_len": 5})
    assert config.model_config == {"fcnet_hiddens": [8], "max_seq_len": 5}


def test_env_keyword_and_none():
    assert PPOConfig().environment(env="A").env == "A"
    assert PPOConfig().environment("A").environment(observation_space=gym.spaces.Discrete(2)).env == "A"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.training(lr=-1, gama=2), r"(?s)PPOConfig\.training\n.*training\.lr.*training\.gama.*2 settings"),
        (
            lambda c: c.training(model={"a": 1}, learner_connector=3, lr=0),
            r"(?s)learner_connector.*training\.lr.*2 settings",
        ),
        (lambda c: c.environment("A", env_confg={}), "did you mean 'env_config'"),
        (lambda c: c.env_runners(lr=1), "it belongs to training"),
        (lambda c: c.stopping(reward=1), r"PPOConfig\.stopping"),
        (lambda c: setattr(c, "lrr", 1), "did you mean 'lr'"),
        (lambda c: setattr(c, "lr", -1), "greater than 0"),
    ],
)
def test_wrong_calls_change_nothing(call, message):
    config = PPOConfig().training(lr=0.5)
    before = config.copy()
    with pytest.raises(ConfigError, match=message):
        call(config)
    assert config.to_dict() == before.to_dict()


def test_setting_attributes():
    config = PPOConfig()
    config.lr = 0.25
    config.train_batch_size_per_learner = 32
    hook = lambda env: None  # noqa: E731
    config.env_to_module_connector = hook
    assert (config.lr, config.train_batch_size, config.env_to_module_connector) == (0.25, 32, hook)


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no setting or method 'gama'; did you mean 'gamma'"):
        _ = PPOConfig().gama
    assert not hasattr(PPOConfig(), "_nothing")


def test_hooks_may_be_given_in_learners_and_in_training():
    hook = lambda obs_space, act_space: None  # noqa: E731
    assert PPOConfig().training(learner_connector=hook).learner_connector is hook
    assert PPOConfig().learners(learner_connector=hook).learner_connector is hook
    assert PPOConfig().training(add_default_connectors_to_learner_pipeline=False).lr == 5e-5


def test_copy_is_independent_and_configs_pickle():
    config = PPOConfig().training(lr=0.5).env_runners(env_to_module_connector=[{"piece": "frame_stacking"}])
    config.env_runners(module_to_env_connector=[])
    twin = config.copy().training(lr=0.25)
    twin.env_to_module_connector.append("mean_std_filter")
    twin.module_to_env_connector.append("clip_actions")
    assert (len(config.env_to_module_connector), config.module_to_env_connector) == (1, [])
    assert (config.lr, twin.lr) == (0.5, 0.25)
    assert pickle.loads(pickle.dumps(config)).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("settings", "length"),
    [({}, 4000), ({"num_envs_per_env_runner": 16}, 250), ({"num_envs_per_env_runner": 3}, 1334)],
)
def test_auto_fragment_length_covers_the_train_batch(settings, length):
    config = PPOConfig().env_runners(**settings)
    assert config.get_rollout_fragment_length() == length
    assert config.env_runners(rollout_fragment_length=7).get_rollout_fragment_length() == 7


def test_the_minibatch_size_that_nobody_gave_fits():
    config = PPOConfig().training(train_batch_size=100)
    assert config.minibatch_size == 100
    assert config.training(train_batch_size=4000).minibatch_size == 128
    assert config.training(train_batch_size=100).copy().minibatch_size == 100
    assert PPOConfig.from_dict(config.to_dict()).minibatch_size == 100
    assert config.training(minibatch_size=None).minibatch_size is None
    config.validate()


def test_what_is_wrong_and_what_is_not_there_come_together():
    with pytest.raises(ConfigError, match=r"(?s)num_env_runners: not available yet.*runnr: .*these 2 settings"):
        PPOConfig().env_runners(num_env_runners=2, num_envs_per_env_runnr=3, explore=True)


def test_repr_shows_what_was_set():
    assert repr(PPOConfig().training(lr=0.5)) == "PPOConfig(lr=0.5)"


@pytest.mark.parametrize("mode", ["next_step", gym.vector.AutoresetMode.SAME_STEP, "disabled", None])
def test_autoreset_modes_by_name_or_as_gymnasiums(mode):
    config = PPOConfig().environment("CartPole-v1").env_runners(gym_env_autoreset_mode=mode)
    name = mode.name.lower() if isinstance(mode, gym.vector.AutoresetMode) else mode
    assert config.gym_env_autoreset_mode == name
    assert PPOConfig.from_yaml(config.to_yaml()).gym_env_autoreset_mode == name


def test_wrappers_are_data_or_code():
    named = [{"wrapper": "TimeLimit", "max_episode_steps": 3}, "RecordEpisodeStatistics"]
    config = PPOConfig().environment("CartPole-v1", wrappers=named)
    assert PPOConfig.from_yaml(config.to_yaml()).wrappers == named
    config.environment(wrappers=[gym.wrappers.TimeAwareObservation])
    with pytest.raises(ConfigError, match=r"environment\.wrappers: .*is code, not data"):
        config.to_yaml()


# ------------------------------------------------------------------------------------ algorithm config


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
