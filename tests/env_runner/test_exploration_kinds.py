"""How actions are chosen: drawn, most likely, mean or at random, in runners, configs and policies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import MultiAgentPolicy, Policy, PPOConfig
from epibatch.core.distributions import DiagGaussian, SquashedGaussian
from epibatch.core.errors import EpibatchWarning, NotAvailableError, RunnerArgumentError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent

LOGITS = [0.5, 0.7]
"""Mean and log deviation of every action; squashed to [-1, 1], mean and median are far apart."""


class Plain(gym.Env[Any, Any]):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-1, 1, (1,))

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 5, False, {}


class Old(Plain):
    def step(self, action: Any) -> Any:
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


class Fixed(TorchRLModule):
    def setup(self) -> None:
        self.logits = torch.nn.Parameter(torch.tensor(LOGITS))

    def get_inference_action_dist_cls(self) -> Any:
        return SquashedGaussian

    get_exploration_action_dist_cls = get_inference_action_dist_cls

    def _forward(self, batch: Any, **_: Any) -> Any:
        return {"action_dist_inputs": self.logits.expand(len(batch["obs"]), 2)}


def config_of(env: Any = Plain, **settings: Any) -> Any:
    config = PPOConfig().environment(env).rl_module(rl_module_spec=RLModuleSpec(module_class=Fixed))
    return config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=10, **settings).debugging(seed=0)


def test_a_runner_a_config_and_a_policy_know_all_kinds():
    draws = np.tanh(LOGITS[0] + np.exp(LOGITS[1]) * np.random.default_rng(0).standard_normal(400_000))
    median, mean = np.tanh(LOGITS[0]), draws.mean()
    runner = SingleAgentEnvRunner(config=config_of())

    def actions(**keywords: Any) -> Any:
        return np.concatenate([part.get_actions() for part in runner.sample(num_timesteps=60, **keywords)])

    assert actions(explore="mode") == pytest.approx(median, abs=1e-6) == actions(explore=False)
    assert actions(explore="mean") == pytest.approx(mean, abs=3e-3) and abs(mean - median) > 0.1
    assert np.unique(actions(explore="sample")).size > 50 and np.unique(actions(explore="random")).size > 50
    assert "action_logp" not in runner.sample(num_timesteps=2, explore="random")[0].extra_model_outputs
    assert runner.rollout(3, explore="mean")["actions"] == pytest.approx(mean, abs=3e-3)
    with pytest.raises(RunnerArgumentError, match=r"'sample', 'mode', 'mean', 'random'[\s\S]*'greedy'"):
        runner.sample(num_timesteps=2, explore="greedy")
    policy = Policy(runner.module, *(pipeline.clone() for pipeline in runner.pipelines.values()))
    rows = np.zeros((200, 1), np.float32)
    assert policy.act(rows, explore="mean")[0] == pytest.approx(mean, abs=3e-3)
    drawn, state = policy.act(rows, explore="random")
    assert (
        drawn.std() == pytest.approx(1 / 3**0.5, abs=0.1) and policy.act(rows, state, explore="random")[0].size == 200
    )
    assert (policy.act(rows, explore="random")[0] != policy.act(rows, explore="random")[0]).any()
    by_config = SingleAgentEnvRunner(config=config_of(explore="mean"))
    assert by_config.sample()[0].get_actions() == pytest.approx(mean, abs=3e-3)
    for each in (runner, by_config):
        each.stop()

    inputs = torch.tensor([[0.3, -0.4]])
    assert DiagGaussian.from_logits(inputs).to_mean().sample() == pytest.approx(0.3)
    discrete = SingleAgentEnvRunner(config=PPOConfig().environment("CartPole-v1"))
    with pytest.raises(NotAvailableError, match='explore="mode"'):
        discrete.sample(num_timesteps=1, explore="mean")
    discrete.stop()


def test_policies_of_several_agents_draw_from_the_action_space():
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode, **_: "p")
    runner = MultiAgentEnvRunner(config=config)
    assert len(runner.sample(num_timesteps=20, explore="random")) >= 1
    pipelines = (pipeline.clone() for pipeline in runner.pipelines.values())
    policy = MultiAgentPolicy(runner.module, *pipelines, mapping=lambda agent_id, episode, **_: "p")
    seen = {
        tuple(policy.act({0: np.zeros(4, np.float32), 1: np.zeros(4, np.float32)}, explore="random")[0].values())
        for _ in range(60)
    }
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}
    runner.stop()


def test_one_done_flag_counts_as_terminated_with_one_warning():
    runner = SingleAgentEnvRunner(config=config_of(Old))
    with pytest.warns(EpibatchWarning, match="4 values, as environments of the old gym return") as warned:
        episodes = runner.sample(num_episodes=4)
    assert len(warned) == 1
    assert all(episode.is_terminated and not episode.is_truncated and len(episode) == 5 for episode in episodes)
    runner.stop()
