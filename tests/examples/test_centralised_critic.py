"""A centralised critic: it sees what the other hunter saw at the same step, the actor does not, and they learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("pettingzoo")


@pytest.fixture
def algorithm(load_example):
    example = load_example("centralised_critic")
    built = example.config_for(example.Options(games=5)).build_algo()
    yield built
    built.stop()


def test_the_critic_is_given_what_the_other_saw(algorithm):
    """Column `other_obs` against the episodes, row by row, bootstrap rows included."""
    episodes = algorithm.env_runner.sample(num_timesteps=200)
    batch = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes)["hunter"]
    own, others = [], []
    for episode in episodes:
        seen = {agent: each.get_observations() for agent, each in episode.agent_episodes.items()}
        assert len(seen["pursuer_0"]) == len(seen["pursuer_1"])  # they act together, so rows are env steps
        for agent, other in (("pursuer_0", "pursuer_1"), ("pursuer_1", "pursuer_0")):
            own.append(seen[agent])
            others.append(seen[other])
    np.testing.assert_array_equal(batch["obs"], np.concatenate(own))
    assert batch["other_obs"].shape[1:] == (1, 5, 5, 3)
    np.testing.assert_array_equal(batch["other_obs"][:, 0], np.concatenate(others))
    assert (batch["obs"] != batch["other_obs"][:, 0]).any()


def test_only_the_critic_looks_at_it(algorithm):
    module = algorithm.get_module("hunter")
    view, other = torch.rand(4, 5, 5, 3), torch.rand(4, 1, 5, 5, 3)
    logits, values = [], []
    for each in (other, torch.zeros_like(other)):
        batch = {"obs": view, "other_obs": each}
        logits.append(module.forward_train(batch)["action_dist_inputs"])
        values.append(module.compute_values(batch))
    assert torch.equal(*logits) and values[0].shape == (4,)
    assert not torch.isclose(*values).any()
    assert torch.equal(module.forward_inference({"obs": view})["action_dist_inputs"], logits[0])


def test_a_catch_is_an_end_before_the_limit(algorithm):
    episodes = algorithm.env_runner.sample(num_episodes=48)
    caught = [episode.is_terminated for episode in episodes]
    assert 0 < sum(caught) < 20 and all(len(each) < 50 for each in episodes if each.is_terminated)
    assert all(len(each) == 50 for each in episodes if each.is_truncated)
    metrics = algorithm.env_runner.get_metrics()
    assert metrics["num_episodes"] == len(episodes) == 48
    assert metrics["caught"] == pytest.approx(np.mean(caught))
