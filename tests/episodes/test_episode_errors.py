"""What an episode refuses, with which error, and that a refusal changes nothing."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpibatchError, EpisodeError, EpisodeStateError
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)
DICT = gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(9)})


def make(n: int = 4, **options: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=list(range(n + 1)),
        actions=[10 + i for i in range(n)],
        rewards=[0.5 * i for i in range(n)],
        extra_model_outputs={"e": [np.full(2, i, np.float32) for i in range(n)]},
        len_lookback_buffer=0,
        **options,
    )


def test_state_errors_are_named_and_are_assertion_errors() -> None:
    empty, running = SingleAgentEpisode(), SingleAgentEpisode()
    running.add_env_reset(0)
    done = make(terminated=True)
    options = {"terminated": False, "truncated": False}
    for call, words in (
        (lambda: empty.add_env_step(0, 0, 0.0, **options), "reset"),
        (lambda: running.add_env_reset(0), "reset"),
        (lambda: make().add_env_reset(0), "reset"),
        (lambda: done.add_env_step(0, 0, 0.0, **options), "ended|done"),
        (done.cut, "ended|done"),
    ):
        with pytest.raises(EpisodeStateError, match=words) as caught:
            call()
        assert isinstance(caught.value, AssertionError) and "found:" in str(caught.value)
    assert len(empty) == 0 and not empty.is_reset
    assert len(done) == 4 and len(done.get_observations()) == 5


@pytest.mark.parametrize(
    ("space", "good", "bad", "words"),
    [
        (BOX, np.zeros(2, np.float32), np.zeros(3, np.float32), r"\(2,\)[\s\S]*\(3,\)"),
        (BOX, np.zeros(2, np.float32), 1.0, r"\(2,\)[\s\S]*found: +(\(\)|float)"),
        (gym.spaces.Discrete(3), 1, np.zeros(2), r"\(\)[\s\S]*\(2,\)"),
        (DICT, {"x": np.zeros(2, np.float32), "n": 0}, {"x": np.zeros((1, 2), np.float32), "n": 0}, r"\(1, 2\)"),
        (DICT, {"x": np.zeros(2, np.float32), "n": 0}, {"x": np.zeros(2, np.float32)}, "n"),
        (gym.spaces.Tuple((BOX, BOX)), (np.zeros(2), np.zeros(2)), (np.zeros(2),), "found"),
    ],
)
@pytest.mark.parametrize("steps_before", [0, 1, 99, 100])
def test_an_observation_of_another_shape_than_its_space(
    space: Any, good: Any, bad: Any, words: str, steps_before: int
) -> None:
    options = {"terminated": False, "truncated": False}
    episode = SingleAgentEpisode(observation_space=space)
    with pytest.raises(EpibatchError, match=words):
        episode.add_env_reset(bad)
    episode.add_env_reset(good)
    for _ in range(steps_before):
        episode.add_env_step(good, 0, 0.0, **options)
    with pytest.raises(EpibatchError, match=words):
        episode.add_env_step(bad, 0, 0.0, **options)
    episode.validate()  # the refused step left nothing behind
    assert len(episode) == steps_before
    episode.add_env_step(good, 0, 0.0, **options)
    assert len(episode) == steps_before + 1


def test_values_out_of_bounds_and_other_float_types_are_accepted() -> None:
    episode = SingleAgentEpisode(observation_space=BOX)
    episode.add_env_reset(np.full(2, 1e6, np.float64))
    episode.add_env_step(np.full(2, -1e6, np.float64), 0, 0.0, terminated=False, truncated=False)
    np.testing.assert_array_equal(episode.get_observations(), [[1e6, 1e6], [-1e6, -1e6]])


@pytest.mark.parametrize("extras", [{"e": np.ones(2), "late_key": 1}, {"late_key": 1}, {}, None])
def test_extra_keys_must_stay_the_same(extras: Any) -> None:
    episode = make(2)
    word = "late_key" if extras else "e"
    with pytest.raises(EpisodeError, match=rf"{word}[\s\S]*found:|found:[\s\S]*{word}"):
        episode.add_env_step(9, 9, 9.0, terminated=False, truncated=False, extra_model_outputs=extras)
    episode.validate()
    assert len(episode) == 2 and list(episode.extra_model_outputs) == ["e"]


@pytest.mark.parametrize(
    "columns",
    [
        {"observations": [0, 1], "actions": [0, 1], "rewards": [0.0]},
        {"observations": [0, 1], "actions": [0], "rewards": [0.0], "infos": [{}]},
        {"observations": [0, 1], "actions": [0], "rewards": [0.0], "extra_model_outputs": {"e": [1, 2, 3]}},
        {"observations": [0], "actions": [0], "rewards": [0.0]},
    ],
)
def test_columns_of_unequal_length(columns: dict[str, Any]) -> None:
    with pytest.raises(EpisodeError, match=r"expected:[\s\S]*found:"):
        SingleAgentEpisode(**columns)
