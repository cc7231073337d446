"""Discounted rewards still to come, per step of each chunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.connectors.learner import (
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import RewardScaling
from epibatch.core.errors import ConfigError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder


def double_sum(rewards, gamma):
    return [sum(gamma ** (later - t) * rewards[later] for later in range(t, len(rewards))) for t in range(len(rewards))]


def test_chunks_do_not_see_each_other_and_lookback_does_not_count(lab):
    chunk = lab.episode("b", 2, t_started=4, lookback=2)
    columns = lab.columns("learner", [ComputeReturnsToGo(gamma=0.5)], [lab.episode("a", 3), chunk])
    # rewards 0.5, 1.5, 2.5 and 4.5, 5.5
    assert columns["returns_to_go"]["a",].tolist() == [1.875, 2.75, 2.5]
    assert columns["returns_to_go"]["b",].tolist() == [7.25, 5.5]
    assert columns["returns_to_go"]["a",].dtype == np.float64


@pytest.mark.parametrize("gamma", [0, 0.9, 0.99, 1])
def test_equals_the_double_sum(lab, gamma):
    rng = np.random.default_rng(5)
    episodes = [lab.episode(str(i), n, rewards=rng.normal(size=n).tolist()) for i, n in enumerate((1, 70, 33, 32))]
    columns = lab.columns("learner", [ComputeReturnsToGo(gamma=gamma)], episodes)
    for episode in episodes:
        expected = double_sum(episode.get_rewards(), gamma)
        np.testing.assert_allclose(columns["returns_to_go"][episode.id_,], expected, rtol=1e-12)


def test_rewards_that_a_piece_in_front_writes_count(lab):
    def shape(batch, episodes):
        for episode in episodes:
            episode.set_rewards(new_data=episode.get_rewards() + 1.0)

    columns = lab.columns("learner", [lab.user(shape), ComputeReturnsToGo(gamma=1.0)], [lab.episode("a", 2)])
    assert columns["returns_to_go"]["a",].tolist() == [4.0, 2.5]


@pytest.mark.parametrize("behind", [False, True])
def test_the_bootstrap_rows_add_nothing(lab, behind):
    first, *rest = lab.defaults("learner", ppo=True)[:-1]
    own = [first, ComputeReturnsToGo(gamma=1.0)]
    episodes = [lab.episode("a", 3, end="truncated"), lab.episode("b", 1)]
    batch = lab.run("learner", [*(own if behind else own[::-1]), *rest], episodes, rl_module=lab.module())
    assert batch["returns_to_go"].dtype == torch.float32
    assert batch["returns_to_go"][batch["loss_mask"]].tolist() == [4.5, 4.0, 2.5, 0.5]


def test_padded_like_every_other_column(lab):
    episodes = [lab.episode("a", 3, state=2)]
    pieces = [ComputeReturnsToGo(gamma=0.0), *lab.defaults("learner")]
    batch = lab.run("learner", pieces, episodes, rl_module=lab.module(2, max_seq_len=2))
    assert batch["returns_to_go"].tolist() == batch["rewards"].tolist() == [[0.5, 1.5], [2.5, 0.0]]


def test_a_vector_block_gives_what_its_episodes_give(lab):
    recorder, rng = VectorRecorder(3, lab.obs_space, lab.act_space), np.random.default_rng(1)
    recorder.reset(rng.normal(size=(3, 2)).astype(np.float32))
    recorder.commit()
    for _ in range(9):
        ends = rng.random(3) < 0.3
        ends[recorder.waiting] = False
        observations = rng.normal(size=(3, 2)).astype(np.float32)
        recorder.step(rng.integers(0, 2, 3), rng.normal(size=3), ends, np.zeros(3, bool), observations)
        recorder.commit()
    episodes = recorder.harvest(0)
    assert len(episodes) > 3
    columns = lab.columns("learner", [ComputeReturnsToGo(gamma=0.9)], episodes)
    for episode in episodes:
        expected = double_sum(episode.get_rewards(), 0.9)
        np.testing.assert_allclose(columns["returns_to_go"][episode.id_,], expected, rtol=1e-12)


@pytest.mark.parametrize("gamma", [-0.1, 1.5, "0.9"])
def test_a_wrong_discount_is_named(gamma):
    with pytest.raises(ConfigError, match=r"ComputeReturnsToGo\.gamma"):
        ComputeReturnsToGo(gamma=gamma)


@pytest.mark.parametrize("bootstraps", [False, True])
def test_rewards_that_a_piece_in_front_made_are_summed(bootstraps):
    made = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[1.0, 3.0], len_lookback_buffer=0)
    front = [AddOneTsToEpisodesAndTruncate()] if bootstraps else []
    pieces = [*front, RewardScaling(scale=10.0, loc=1.0), ComputeReturnsToGo(gamma=0.5), BatchIndividualItems()]
    batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=[made])
    assert batch["returns_to_go"].tolist() == [11 + 0.5 * 31, 31.0, 0.0][: 2 + bootstraps]
