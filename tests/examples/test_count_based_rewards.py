"""Count-based rewards: the piece's values, its state, and one iteration."""

from __future__ import annotations

import numpy as np

from epibatch.episodes import SingleAgentEpisode


def test_rewards_and_state(load_example):
    example = load_example("count_based_rewards")
    piece = example.CountBasedRewards(num_states=4, scale=0.5)
    episode = SingleAgentEpisode(
        observations=[2, 3, 2, 2, 0], actions=[0] * 4, rewards=[0, 0, 0, 1], len_lookback_buffer=0
    )
    batch = piece(rl_module=None, batch={}, episodes=[episode])
    assert batch == {}
    np.testing.assert_allclose(episode.get_rewards(), [0.5, 0.5, 0.25, 1 + 0.5 / 3])
    assert piece.counts.tolist() == [0, 0, 3, 1]

    restored = example.CountBasedRewards(num_states=4, scale=0.5)
    restored.set_state(piece.get_state())
    assert restored.counts.tolist() == [0, 0, 3, 1]
    piece.reset_state()
    assert piece.counts.tolist() == [0, 0, 0, 0]
    assert restored.counts.tolist() == [0, 0, 3, 1]


def test_state_travels_with_the_pipeline(load_example):
    example = load_example("count_based_rewards")
    config = example.config_for(example.Options(), shaped=True)
    algorithm = config.build_algo()
    algorithm.train()
    counts = algorithm.learner.connector["count_based_rewards"].counts
    assert counts.sum() >= 2048
    np.testing.assert_array_equal(example.show_state(algorithm, config), counts)
    algorithm.stop()
