"""Observation filters and histories of steps, side by side with RLlib's, where those are right."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="RLlib is the oracle of these tests", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")

FLAT = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def _rllib(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.rllib.connectors import env_to_module
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    return getattr(env_to_module, name), SingleAgentEpisode


def _epibatch(name: str) -> Any:
    from epibatch.connectors import env_to_module
    from epibatch.episodes import SingleAgentEpisode

    return getattr(env_to_module, name), SingleAgentEpisode


LIBRARIES = [_rllib, _epibatch]


def _piece(cls: Any, obs: Any, act: Any, **settings: Any) -> Any:
    piece = cls(**settings)
    piece.input_action_space = act
    piece.input_observation_space = obs
    return piece


def _run(find: Any, name: str, act: Any, seed: int, **settings: Any) -> Any:
    """The newest observations of one environment that plays a few episodes, and the piece."""
    cls, episode_class = find(name)
    rng, piece = np.random.default_rng(seed), _piece(cls, FLAT, act, **settings)
    act.seed(seed)
    shown = []
    for _ in range(4):
        episode = episode_class(observation_space=FLAT, action_space=act)
        episode.add_env_reset(rng.normal(3, 5, 3).astype(np.float32))
        for step in range(int(rng.integers(0, 12)) + 1):
            if step:
                row = rng.normal(3, 5, 3).astype(np.float32)
                episode.add_env_step(row, act.sample(), float(rng.normal()))
            piece(rl_module=None, batch={}, episodes=[episode])
            shown.append(episode.get_observations(-1))
    return shown, piece


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "settings",
    [{}, {"clip_by_value": 0.7}, {"de_mean_to_zero": False}, {"de_std_to_one": False}],
    ids=str,
)
def test_filtered_observations_of_one_environment(settings: Any, seed: int) -> None:
    act = gym.spaces.Discrete(2)
    (theirs, their_piece), (ours, our_piece) = (
        _run(find, "MeanStdFilter", act, seed, **settings) for find in LIBRARIES
    )
    assert len(ours) == len(theirs) > 4
    first = int(not settings.get("de_mean_to_zero", True))  # RLlib divides the very first observation by 1e-6
    np.testing.assert_allclose(np.array(ours[first:]), np.array(theirs[first:]), rtol=1e-5, atol=1e-5)
    assert ours[0].dtype == theirs[0].dtype and our_piece.observation_space == their_piece.observation_space
    stats = their_piece._filters[None].running_stats
    state = our_piece.get_state()["since"]
    assert state["count"] == stats.num_pushes
    np.testing.assert_allclose(state["mean"], stats.mean_array, rtol=1e-12)
    np.testing.assert_allclose(state["squares"], stats.sum_sq_diff_array, rtol=1e-12)


def test_the_first_merge() -> None:
    """RLlib's first merge is exact; its later ones are not (register of differences, O1)."""
    for find in LIBRARIES:
        cls, episode_class = find("MeanStdFilter")
        space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        runners = [_piece(cls, space, gym.spaces.Discrete(2)) for _ in range(2)]
        for piece, rows in zip(runners, [[1.0, 2.0, 3.0], [10.0, 20.0]]):
            for row in rows:
                episode = episode_class(observation_space=space)
                episode.add_env_reset(np.array([row]))
                piece(rl_module=None, batch={}, episodes=[episode])
        merger = _piece(cls, space, gym.spaces.Discrete(2))
        merger.set_state(merger.merge_states([piece.get_state() for piece in runners]))
        frozen = _piece(cls, space, gym.spaces.Discrete(2), update_stats=False)
        frozen.set_state(merger.get_state())
        episode = episode_class(observation_space=space)
        episode.add_env_reset(np.array([9.0]))
        frozen(rl_module=None, batch={}, episodes=[episode])
        deviation = np.std([1, 2, 3, 10, 20], ddof=1)
        assert episode.get_observations(-1)[0] == pytest.approx((9.0 - 7.2) / deviation, rel=1e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("counts", [(1, 1), (3, 2), (1, 4)], ids=str)
def test_previous_actions_and_rewards_of_discrete_actions(counts: Any, seed: int) -> None:
    """RLlib's actions have one axis too many (register of differences, O26); the values are the same."""
    act = gym.spaces.Discrete(3)
    settings = {"n_prev_actions": counts[0], "n_prev_rewards": counts[1]}
    (theirs, their_piece), (ours, our_piece) = (
        _run(find, "PrevActionsPrevRewards", act, seed, **settings) for find in LIBRARIES
    )
    assert our_piece.observation_space == their_piece.observation_space and len(ours) == len(theirs)
    for own, other in zip(ours, theirs):
        assert own.keys() == other.keys() and own in our_piece.observation_space
        for key in own:
            np.testing.assert_array_equal(own[key], np.ravel(other[key]).astype(np.float32))
