"""Blackjack: Tuple observations reach the network, games are counted right, and the policy learns."""

from __future__ import annotations

import numpy as np
import torch


def test_the_network_sees_all_three_parts(load_example):
    example = load_example("blackjack")
    algorithm = example.config_for(example.Options()).build_algo()
    episodes = algorithm.env_runner.sample(num_timesteps=200)
    (batch,) = algorithm.learner.connector(rl_module=algorithm.learner.module, batch={}, episodes=episodes).values()
    assert isinstance(batch["obs"], tuple) and len(batch["obs"]) == 3
    for part, index in zip(batch["obs"], range(3)):
        recorded = np.concatenate([episode.get_observations()[index] for episode in episodes])
        np.testing.assert_array_equal(part, recorded)
    module = algorithm.get_module()
    hand = [np.array([18]), np.array([5]), np.array([0])]
    first = module.forward_inference({"obs": tensors(hand)})
    for index, other in ((0, 12), (1, 9), (2, 1)):
        changed = [np.array([other]) if index == i else value for i, value in enumerate(hand)]
        second = module.forward_inference({"obs": tensors(changed)})
        assert not np.array_equal(first["action_dist_inputs"], second["action_dist_inputs"])
    algorithm.stop()


def tensors(parts):
    return tuple(torch.from_numpy(part) for part in parts)
