"""Gymnasium's wrappers by name, with their keywords, in their order."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.core.errors import ConfigError
from epibatch.env_runner import make_vector_env
from epibatch.env_runner.make_env import wrapper_problem


def test_the_first_is_the_innermost():
    specs = [
        "RecordEpisodeStatistics",
        {"wrapper": "TimeLimit", "max_episode_steps": 7},
        gym.wrappers.TimeAwareObservation,
    ]
    env = make_vector_env("CartPole-v1", 1, wrappers=specs).envs[0]
    names = []
    while isinstance(env, gym.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    assert names[1:4] == ["TimeAwareObservation", "TimeLimit", "RecordEpisodeStatistics"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("RecordEpisodeStatistic", "did you mean 'RecordEpisodeStatistics'"),
        ("vector", "no wrapper 'vector'"),
        ({"wrapper": "FrameSkip", "frames": 3}, "FrameSkip has no argument 'frames'"),
        ({"wrapper": "TimeLimit"}, "TimeLimit needs the argument 'max_episode_steps'"),
        ({"wrapper": "TimeLimit", "max_episode_steps": 3, "steps": 1}, "TimeLimit has no argument 'steps'"),
        ({"piece": "TimeLimit"}, "expected a wrapper's name, {wrapper: name, ...} or a function, found dict"),
        (3, "found int 3"),
    ],
)
def test_wrong_wrappers(spec, words):
    assert words in str(wrapper_problem(spec))
    with pytest.raises(ConfigError, match=r"environment\.wrappers\[1\]") as caught:
        make_vector_env("CartPole-v1", 1, wrappers=["RecordEpisodeStatistics", spec])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "ClipAction",
        {"wrapper": "ActionChunks", "size": 3},
        {"wrapper": "RecordVideo", "video_folder": "v"},
        lambda env: env,
    ],
)
def test_right_wrappers(spec):
    assert wrapper_problem(spec) is None
