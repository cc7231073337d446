"""Statistics that forget, begin with a prior, or are given: against sums over all rows with their weights."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import ConfigError, StateError
from epibatch.episodes import SingleAgentEpisode

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
DECAY = 0.9


def seen(piece: MeanStdFilter, rows: Any) -> Any:
    """What a filter makes of a call's observations."""
    episodes = [SingleAgentEpisode(observations=[row]) for row in rows]
    piece(batch={}, episodes=episodes)
    return np.stack([episode.get_observations(-1) for episode in episodes])


def by_weights(calls: list[Any], weights: list[Any]) -> tuple[Any, Any]:
    """Mean and deviation of all rows, each with its weight."""
    rows, of_rows = np.concatenate(calls), np.concatenate(weights)[:, None]
    mean = (of_rows * rows).sum(0) / of_rows.sum()
    freedom = of_rows.sum() - (of_rows**2).sum() / of_rows.sum()
    return mean, np.sqrt((of_rows * (rows - mean) ** 2).sum(0) / freedom)


def decayed(calls: list[Any], decay: float = DECAY) -> list[Any]:
    """The weight of each row of each call."""
    return [np.full(len(call), decay ** sum(map(len, calls[i + 1 :]))) for i, call in enumerate(calls)]


def drifting(sizes: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(3 * i, 1 + i, (size, 2)) for i, size in enumerate(sizes)]


def test_an_observation_counts_less_with_each_later_one():
    calls, piece = drifting([3, 1, 4, 3, 2]), MeanStdFilter(SPACE, decay=DECAY, clip_by_value=None)
    for i in range(len(calls)):
        out = seen(piece, calls[i])
        mean, std = by_weights(calls[: i + 1], decayed(calls[: i + 1]))
        np.testing.assert_allclose(out, (calls[i] - mean) / (std + 1e-6), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(piece.inverse(out), calls[i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", [0.3, 0.8])
def test_the_variance_is_unbiased(decay):
    """The mean over many columns of noise is 1, also after the first few rows, a merge and loading."""
    space, rng = gym.spaces.Box(-np.inf, np.inf, (40_000,), np.float64), np.random.default_rng(0)
    copies = [MeanStdFilter(space, decay=decay, clip_by_value=None) for _ in range(2)]

    def variance(piece: MeanStdFilter) -> Any:
        piece.freeze()
        far = seen(piece, [np.full(40_000, 1e6)]) - seen(piece, [np.zeros(40_000)])
        piece.unfreeze()
        return np.mean((1e6 / far) ** 2)

    for size in (2, 1, 3):
        for piece in copies:
            seen(piece, rng.normal(5.0, 1.0, (size, 40_000)))
            assert variance(piece) == pytest.approx(1.0, abs=0.03)
        merged = copies[0].merge_states([piece.get_state() for piece in copies])
        for piece in copies:
            piece.set_state(merged)
            assert variance(piece) == pytest.approx(1.0, abs=0.03)


def test_a_state_that_was_saved_before_weights_were_squared():
    piece, before = (MeanStdFilter(SPACE, decay=DECAY, clip_by_value=None) for _ in range(2))
    calls = drifting([3, 2, 1])
    for rows in calls:
        seen(piece, rows)
    state = piece.get_state()
    del state["since"]["lost"]
    before.set_state(state)
    before.freeze()
    of_rows = np.concatenate(decayed(calls))
    mean, std = by_weights(calls, decayed(calls))
    std *= np.sqrt((of_rows.sum() - (of_rows**2).sum() / of_rows.sum()) / (of_rows.sum() - 1))
    np.testing.assert_allclose(seen(before, calls[0]), (calls[0] - mean) / (std + 1e-6), rtol=1e-9)
    before.unfreeze()
    for rows in drifting([40] * 8, seed=1):  # the rows before are forgotten
        np.testing.assert_allclose(seen(before, rows), seen(piece, rows), rtol=0.05, atol=0.05)
    np.testing.assert_allclose(seen(before, rows), seen(piece, rows), rtol=1e-9)


def test_it_follows_a_drift():
    plain, forgets = MeanStdFilter(SPACE), MeanStdFilter(SPACE, decay=0.99)
    rng = np.random.default_rng(0)
    for level in np.repeat([0.0, 100.0], 300):
        rows = rng.normal(level, 1.0, (4, 2))
        before, after = seen(plain, rows), seen(forgets, rows)
    assert np.abs(before).max() < 1.2 and before.std() < 0.1  # one deviation of 50
    assert np.abs(after.mean()) < 1.5 and after.std() > 0.4


def test_copies_that_are_merged():
    """What was known decays by all rows since, and each copy's rows by that copy's alone."""
    copies = [MeanStdFilter(SPACE, decay=DECAY) for _ in range(3)]
    known: list[tuple[Any, Any]] = []  # calls and weights
    for round_ in range(3):
        new: list[tuple[Any, Any]] = []
        for i, piece in enumerate(copies):
            calls = drifting([2, 3, 1][: i + 1], seed=10 * round_ + i)
            for call in calls:
                seen(piece, call)
            new += zip(calls, decayed(calls))
        count = sum(len(call) for call, _ in new)
        known = [(call, weight * DECAY**count) for call, weight in known] + new
        merged = copies[0].merge_states([piece.get_state() for piece in copies])
        for piece in copies:
            piece.set_state(merged)
        mean, std = by_weights(*map(list, zip(*known)))
        copies[1].freeze()
        probe = np.array([[1.0, -2.0]])
        np.testing.assert_allclose(seen(copies[1], probe), np.clip((probe - mean) / (std + 1e-6), -10, 10), rtol=1e-9)
        copies[1].unfreeze()


@pytest.mark.parametrize("decay", [1.0, DECAY])
def test_a_prior_counts_as_observations_before(decay):
    first, *later = drifting([20, 3, 4])
    saw = MeanStdFilter(SPACE, decay=decay)
    seen(saw, first)
    piece = MeanStdFilter(SPACE, decay=decay, prior=(20, first.mean(0), first.std(0, ddof=1).tolist()))
    for rows in later:
        np.testing.assert_allclose(seen(piece, rows), seen(saw, rows), rtol=1e-9, atol=1e-12)
    copy = piece.clone()
    np.testing.assert_array_equal(seen(copy, later[0]), seen(piece, later[0]))


def test_a_prior_counts_once_for_all_copies():
    first, *later = drifting([20, 3, 4])
    prior = (20, first.mean(0), first.std(0, ddof=1))
    copies = [MeanStdFilter(SPACE, prior=prior) for _ in later]
    for piece, rows in zip(copies, later):
        seen(piece, rows)
    fresh = MeanStdFilter(SPACE, prior=prior)  # one that was made later
    merged = copies[0].merge_states([piece.get_state() for piece in (*copies, fresh)])
    fresh.set_state(merged)
    fresh.freeze()
    mean, std = by_weights([first, *later], decayed([first, *later], 1.0))
    np.testing.assert_allclose(seen(fresh, later[1]), (later[1] - mean) / (std + 1e-6), rtol=1e-9)


def test_statistics_that_are_given():
    piece = MeanStdFilter(SPACE, prior=(1, [1.0, -2.0], 4.0), update_stats=False, clip_by_value=None)
    rows = drifting([5])[0]
    np.testing.assert_allclose(seen(piece, rows), (rows - [1.0, -2.0]) / (4.0 + 1e-6), rtol=1e-12)
    assert piece.get_state()["since"]["count"] == 0
    np.testing.assert_allclose(piece.inverse(seen(piece, rows)), rows, rtol=1e-9)


def test_parts():
    space = gym.spaces.Dict(speed=gym.spaces.Box(-1, 1, (3,)), arm=gym.spaces.Dict(pose=SPACE))
    prior = (10, {"speed": 0.5, "arm": {"pose": [1.0, 2.0]}}, 2.0)
    piece = MeanStdFilter(space, prior=prior, update_stats=False)
    obs = {"speed": np.ones(3, np.float32), "arm": {"pose": np.array([3.0, 8.0])}}
    episode = SingleAgentEpisode(observations=[obs])
    piece(batch={}, episodes=[episode])
    out = episode.get_observations(-1)
    np.testing.assert_allclose(out["speed"], 0.25, rtol=1e-5)
    np.testing.assert_allclose(out["arm"]["pose"], [1.0, 3.0], rtol=1e-5)
    only = MeanStdFilter(space, columns="obs/speed", to="obs/standard", prior=(10, {"speed": 0.5}, 2.0))
    assert only.observation_space["standard"].shape == (3,)
    with pytest.raises(ConfigError, match="a part 'speed'"):
        MeanStdFilter(space, prior=(10, {"arm": {"pose": 0.0}}, 2.0)).observation_space  # noqa: B018


def test_tensors_are_filtered_alike():
    from epibatch.env_runner import SingleAgentEnvRunner, TensorEnvRunner

    outputs = []
    for kind in (SingleAgentEnvRunner, TensorEnvRunner):
        piece = MeanStdFilter(decay=0.95, prior=(5, 0.1, 0.5))
        mode = {"gym_env_autoreset_mode": "disabled"}
        torch.manual_seed(0)
        runner = kind(env="CartPole-v1", num_envs=3, seed=1, env_to_module=[piece], explore=False, **mode)
        episodes = runner.sample(num_timesteps=30)
        outputs.append(episodes[0].get_observations(0))
        runner.stop()
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)


def test_states_are_saved(tmp_path):
    piece, calls = MeanStdFilter(SPACE, decay=DECAY), drifting([3, 1, 4, 3])
    for rows in calls[:3]:
        seen(piece, rows)
    save_state(tmp_path / "state", piece.get_state())
    other = MeanStdFilter(SPACE, decay=DECAY)
    other.set_state(load_state(tmp_path / "state"))
    np.testing.assert_array_equal(seen(other, calls[3]), seen(piece, calls[3]))
    for name, value in (("kept", 2.0), ("lost", -1.0)):
        state = piece.get_state()
        state["since"][name] = value
        with pytest.raises(StateError, match=name):
            other.set_state(state)


def scaled(pipeline: Any, rewards: Any) -> Any:
    rows = {"observations": np.zeros(len(rewards) + 1), "actions": np.zeros(len(rewards), int)}
    return pipeline(episodes=[SingleAgentEpisode(**rows, rewards=rewards, len_lookback_buffer=0)])["rewards"]


def test_rewards():
    piece = NormalizeReward(gamma=None, center=True, clip=None, epsilon=0.0, decay=DECAY)
    calls = [rows[:, 0] for rows in drifting([5, 3, 4])]
    pipeline = LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])
    for i, rewards in enumerate(calls):
        out = scaled(pipeline, rewards)
        weights = decayed(calls[: i + 1])
        mean, std = by_weights([call[:, None] for call in calls[: i + 1]], weights)
        np.testing.assert_allclose(out, (rewards - mean) / std, rtol=1e-9)


def test_rewards_with_a_prior():
    given = NormalizeReward(gamma=None, center=True, clip=None, epsilon=0.0, prior=(9, 2.0, 4.0), update_stats=False)
    pipeline = LearnerConnectorPipeline(connectors=[given, BatchIndividualItems()])
    np.testing.assert_allclose(scaled(pipeline, np.array([2.0, 10.0])), [0.0, 2.0])


@pytest.mark.parametrize(
    "prior", [3, (1, 0.0), (0, 0.0, 1.0), (5, 0.0, -1.0), (5, [1, 2, 3], 1.0), (5, "x", 1.0), (np.nan, 0.0, 1.0)]
)
def test_what_is_no_prior(prior):
    with pytest.raises(ConfigError, match=r"MeanStdFilter\.prior[\s\S]*\(count, mean, std\)"):
        MeanStdFilter(SPACE, prior=prior).observation_space  # noqa: B018
    with pytest.raises(ConfigError, match=r"NormalizeReward\.prior"):
        NormalizeReward(prior=prior)
    for decay in (0.0, 1.5):
        with pytest.raises(ConfigError, match="decay"):
            MeanStdFilter(decay=decay)
