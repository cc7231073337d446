"""The CleanRL-style script: it records what happened, and it learns."""

from __future__ import annotations

import numpy as np
import torch


def test_the_agent_is_all_that_the_pipeline_needs(load_example):
    example = load_example("cleanrl_style")
    torch.manual_seed(0)
    envs = example.gym.make_vec("CartPole-v1", num_envs=2)
    agent = example.Agent(envs)
    x = torch.rand(5, 4)
    action, logprob, entropy, value = agent.get_action_and_value(x)
    np.testing.assert_array_equal(agent.compute_values({"obs": x}).detach(), value.detach())
    again = agent.get_action_and_value(x, action)[1]
    np.testing.assert_array_equal(again.detach(), logprob.detach())
    assert value.shape == entropy.shape == (5,)
    envs.close()
