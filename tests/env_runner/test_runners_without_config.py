"""Runners for loops of one's own: made of an environment and a module, they sample what a config's runner samples."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import env_to_module, learner
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core.errors import RunnerArgumentError
from epibatch.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModuleSpec
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, TensorEnvRunner, make_multi_agent
from epibatch.learner import Learner, LearnerSettings, PPOLoss, RolloutStorage

SMALL = {"fcnet_hiddens": [8]}
MEMORY = {**SMALL, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}


def config(model_config=SMALL):
    out = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=3)
    return out.debugging(seed=5).rl_module(model_config=model_config)


def columns(episodes):
    return [
        (len(e), e.t_started, e.is_terminated, e.get_observations().tolist(), e.get_actions().tolist(),
         sorted(e.extra_model_outputs))
        for e in episodes
    ]  # fmt: skip


@pytest.mark.parametrize("model_config", [SMALL, MEMORY], ids=["mlp", "lstm"])
def test_it_samples_what_a_configs_runner_samples(model_config):
    torch.manual_seed(0)
    expected = SingleAgentEnvRunner(config=config(model_config))
    torch.manual_seed(0)
    runner = SingleAgentEnvRunner(env="CartPole-v1", num_envs=3, seed=5, model_config=model_config)
    for _ in range(2):
        assert columns(runner.sample(num_timesteps=90)) == columns(expected.sample(num_timesteps=90))


def test_pieces_and_the_module_are_those_that_were_given():
    observation_space, action_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2)
    module = RLModuleSpec(None, observation_space, action_space, model_config=SMALL).build()
    runner = SingleAgentEnvRunner(env="CartPole-v1", module=module, env_to_module=[MeanStdFilter()], seed=1)
    assert runner.module is module
    raw = SingleAgentEnvRunner(env="CartPole-v1", module=module, seed=1)
    seen, unseen = (next(iter(r.sample(num_timesteps=5))).get_observations() for r in (runner, raw))
    assert not np.allclose(seen, unseen)  # normalised
    pipeline = env_to_module.default_pipeline(connectors=[MeanStdFilter()])
    again = SingleAgentEnvRunner(env="CartPole-v1", module=module, env_to_module=pipeline, seed=1)
    assert again.pipelines["env_to_module"] is pipeline
    np.testing.assert_array_equal(next(iter(again.sample(num_timesteps=5))).get_observations(), seen)


def test_a_loop_trains_the_module_that_acts():
    runner = SingleAgentEnvRunner(env="CartPole-v1", num_envs=4, model_config=MEMORY, seed=0)
    trainer = Learner(
        module=runner.module,
        connector=learner.default_pipeline(gamma=0.99),
        settings=LearnerSettings(minibatch_size=32, num_epochs=1, seed=0),
        loss=PPOLoss(),
    )
    before = [parameter.clone() for parameter in runner.module.parameters()]
    episodes = runner.sample(num_timesteps=64)
    results = trainer.update(episodes=episodes)
    assert results["default_policy"]["num_rows"] == sum(map(len, episodes)) >= 64
    assert any(not torch.equal(*pair) for pair in zip(before, runner.module.parameters()))


PREVIOUS = {**MEMORY, "use_prev_action": True, "use_prev_reward": True}


@pytest.mark.parametrize("given", ["options", "spec", "module"])
def test_columns_of_other_steps_that_the_network_reads(given):
    options = {"options": {"model_config": PREVIOUS}, "spec": {"module": RLModuleSpec(model_config=PREVIOUS)}}
    spaces = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2)
    options["module"] = {"module": RLModuleSpec(None, *spaces, model_config=PREVIOUS).build()}
    runner = SingleAgentEnvRunner(env="CartPole-v1", seed=0, **options[given])
    assert "trajectory_views" in runner.pipelines["env_to_module"].names
    assert sum(map(len, runner.sample(num_timesteps=10))) >= 10


def side(agent_id, episode, **kwargs):
    return ("left", "right")[agent_id]


@pytest.mark.parametrize("given", [None, "spec", "specs", "modules"])
def test_several_agents(given):
    options = {"env": make_multi_agent("CartPole-v1"), "env_config": {"num_agents": 2}, "num_envs": 2, "seed": 0}
    spec = RLModuleSpec(model_config=SMALL)
    specs = {"left": spec, "right": RLModuleSpec(model_config={"fcnet_hiddens": [4]})}
    modules = {
        None: None,
        "spec": spec,
        "specs": MultiRLModuleSpec(rl_module_specs=specs),
        "modules": MultiAgentEnvRunner(**options, policy_mapping_fn=side).module,
    }
    runner = MultiAgentEnvRunner(**options, policy_mapping_fn=side, module=modules[given])
    assert isinstance(runner.module, MultiRLModule) and set(runner.module.keys()) == {"left", "right"}
    assert (runner.module is modules["modules"]) == (given == "modules")
    pipeline = learner.default_pipeline(agent_to_module_mapping_fn=side, advantages=False)
    episodes = list(runner.sample(num_timesteps=40))
    batch = pipeline(rl_module=runner.module, batch={}, episodes=episodes)
    steps = {
        name: sum(len(e.agent_episodes[i]) for e in episodes if i in e.agent_episodes) for i, name in enumerate(specs)
    }
    assert {name: len(columns["obs"]) for name, columns in batch.items()} == steps
    assert list(MultiAgentEnvRunner(**options).module.keys()) == ["default_policy"]


def test_tensors():
    runner, storage = TensorEnvRunner(env="CartPole-v1", num_envs=3, seed=0), RolloutStorage(num_steps=4, num_envs=3)
    runner.sample(storage)
    assert storage["obs"].shape == (4, 3, 4)


def test_settings_are_those_of_a_config_without_changes():
    """What a setting is without a config is what a config has; the length of a fragment follows from its batch."""
    runner, settings = SingleAgentEnvRunner(env="CartPole-v1"), PPOConfig().environment("CartPole-v1")
    names = [name for name in dir(runner.config) if not name.startswith("_") and hasattr(settings, name)]
    values = {name: getattr(runner.config, name) for name in names if not callable(getattr(runner.config, name))}
    different = {name for name, value in values.items() if value not in (getattr(settings, name), (), {})}
    assert len(values) > 30 and different == {"rollout_fragment_length"}
    empty = {name for name, value in values.items() if value in ((), {})}
    assert all(not getattr(settings, name) for name in empty)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "env=..."),
        ({"env": "CartPole-v1", "num_env": 2}, "did you mean 'num_envs'"),
        ({"env": "CartPole-v1", "modle": None}, "did you mean 'module'"),
        ({"env": "CartPole-v1", "num_envs_per_env_runner": 4}, "num_envs"),
        ({"env": "CartPole-v1", "num_envs": 0}, "at least 1"),
        ({"env": "CartPole-v1", "rollout_fragment_length": "auto"}, "at least 1"),
        ({"env": "CartPole-v1", "count_steps_by": "agent_steps"}, "a setting of runners"),
        ({"env": "CartPole-v1", "module": torch.nn.Linear(4, 2)}, "subclass TorchRLModule"),
        ({"env": "CartPole-v1", "module": MultiRLModule}, "the class MultiRLModule"),
        ({"config": config(), "num_envs": 4}, "config and num_envs"),
    ],
)
def test_wrong_settings_are_named(options, text):
    with pytest.raises(RunnerArgumentError, match=text):
        SingleAgentEnvRunner(**options)
