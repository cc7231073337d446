"""Action masks: the environment refuses, the module never tries, and it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def test_a_short_run(load_example, capsys):
    example = load_example("action_mask")
    greedy, steps = example.main(example.parse(["--steps", "4000"]))
    assert steps >= 4_000 and greedy > example.random_return() + 0.2
    assert "greedy steps, none illegal" in capsys.readouterr().out


def test_the_environment_refuses_illegal_actions(load_example):
    example = load_example("action_mask")
    env = example.Knapsack()
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    assert observation["action_mask"].tolist() == [1] * example.THINGS
    total, done = 0.0, False
    while not done:
        action = int(np.flatnonzero(observation["action_mask"])[0])
        observation, reward, done, truncated, _ = env.step(action)
        total += reward
        assert env.observation_space.contains(observation) and not truncated
        with pytest.raises(ValueError, match="cannot be packed"):
            env.step(action)
    assert not observation["action_mask"].any()
    assert env.weights[env.packed].sum() <= example.CAPACITY
    assert total == pytest.approx(env.values[env.packed].sum())
    assert (env.weights[~env.packed] > env.room).all()


def test_masked_actions_have_no_probability_and_no_gradient(load_example):
    example = load_example("action_mask")
    algorithm = example.config_for(example.Options()).build_algo()
    module = algorithm.get_module()
    mask = torch.tensor([[1, 0, 0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0, 0, 0]])
    things = torch.rand(2, example.THINGS, 3, requires_grad=True)
    logits = module.forward_train({"obs": {"observations": things, "action_mask": mask}})["action_dist_inputs"]
    probabilities = logits.softmax(-1)
    assert (probabilities[mask == 0] == 0).all() and (probabilities[mask == 1] > 0).all()
    distribution = module.get_exploration_action_dist_cls().from_logits(logits)
    draws = distribution.sample(sample_shape=(500,))
    assert torch.take_along_dim(mask[None].expand(500, -1, -1), draws[..., None], -1).all()
    assert distribution.to_deterministic().sample().tolist()[1] == 2
    distribution.entropy().sum().backward()
    assert torch.isfinite(things.grad).all() and (things.grad[mask == 0] == 0).all()
    algorithm.stop()
