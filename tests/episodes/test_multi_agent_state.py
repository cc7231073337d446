"""States of multi-agent episodes: plain data, and the same episode again."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, EpisodeStateError
from epibatch.episodes import MultiAgentEpisode


def mapping(agent: Any, episode: Any) -> str:
    return f"m_{agent}"


def an_episode(**keywords: Any) -> MultiAgentEpisode:
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    episode = MultiAgentEpisode(id_="game", observation_space={("pair", 1): box}, **keywords)
    episode.add_env_reset(observations={("pair", 1): np.zeros(2, np.float32)})
    episode.add_env_step({"b": 0.0}, {("pair", 1): {"x": np.ones(2)}}, {"b": 0.5, "never": 0.25})
    episode.custom_data["k"] = [1]
    return episode


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(one) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return value is None or isinstance(value, (str, bool, int, float, np.ndarray, np.generic))


def test_a_state_is_plain_data_and_gives_the_episode_again() -> None:
    episode = an_episode()
    state = episode.get_state()
    assert plain(state)
    other = MultiAgentEpisode.from_state(state)
    assert other.equals(episode)
    assert other.get_state().keys() == state.keys()
    assert other.observation_space == episode.observation_space
    other.custom_data["k"].append(2)
    other.add_env_step({("pair", 1): np.ones(2, np.float32)}, {"b": 1}, {"b": 1.0})
    assert episode.custom_data == state["custom_data"] == {"k": [1]}
    assert MultiAgentEpisode.from_state(state).equals(episode)


def test_the_mapping_function_is_asked_for_when_it_is_needed() -> None:
    state = an_episode(agent_to_module_mapping_fn=mapping).get_state()
    other = MultiAgentEpisode.from_state(state)
    assert other.module_for("b") == other.cut().module_for("b") == "m_b"
    with pytest.raises(EpisodeStateError, match="agent_to_module_mapping_fn= to from_state"):
        other.module_for("new")
    with pytest.raises(EpisodeStateError, match="mapping function"):
        other.cut().module_for("new")
    assert MultiAgentEpisode.from_state(state, agent_to_module_mapping_fn=mapping).module_for("new") == "m_new"
    assert MultiAgentEpisode.from_state(an_episode().get_state()).module_for("new") == "default_policy"


@pytest.mark.parametrize(("state", "found"), [({}, "no id_, env_t_started"), (3, "int 3")])
def test_something_else_is_refused(state: Any, found: str) -> None:
    with pytest.raises(CheckpointError, match=found):
        MultiAgentEpisode.from_state(state)
