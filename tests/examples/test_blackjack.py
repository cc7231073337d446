"""Blackjack: Tuple observations reach the network, games are counted right, and the policy learns."""

from __future__ import annotations

import numpy as np
import torch


def test_a_short_run_learns(load_example, capsys):
    example = load_example("blackjack")
    mean, steps = example.main(example.parse(["--steps", "12000", "--games", "2000"]))
    assert 12_000 <= steps < 12_300 + 96
    assert -0.3 < mean < 0.1  # at random -0.39; 2,000 games are exact to 0.02
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    tables = [words for words in lines if len(words) == 11 and words[0].isdigit()]
    assert [row[0] for row in tables] == [str(total) for total in range(12, 22)] * 2
    assert {letter for row in tables for letter in row[1:]} <= {"H", "s"}


def test_the_mean_covers_thousands_of_games(load_example):
    example = load_example("blackjack")
    config = example.config_for(example.Options())
    assert config.metrics_num_episodes_for_smoothing == 5000
    assert config.stop_rules.num_env_steps_sampled_lifetime <= 300_000


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
