"""Getters and setters of several agents: which arguments each has, and that they come back from where they were put."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.episodes import MultiAgentEpisode

COLUMNS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")


def meeting() -> MultiAgentEpisode:
    """Agent a observes at env steps 0, 1 and 3, b at 1 and 2; the chunk starts at 1, and b's second step is open."""
    spaces = {"a": gym.spaces.Discrete(9), "b": gym.spaces.Discrete(9)}
    episode = MultiAgentEpisode(id_="game", action_space=spaces)
    episode.add_env_reset(observations={"a": 0.0}, infos={"a": {"t": 0}})
    steps: tuple[Any, ...] = (
        ({"a": 1.0, "b": 1.5}, {"a": 3}, {"a": 0.5}),
        ({"b": 2.5}, {"a": 4, "b": 5}, {"a": 0.25, "b": -1.0}),
        ({"a": 3.0}, {"b": 6}, {"a": 0.25, "b": 2.0}),
    )
    for i, (observations, actions, rewards) in enumerate(steps):
        outputs = {agent: {"v": 10 * action} for agent, action in actions.items()}
        infos = {agent: {"t": i + 1} for agent in observations}
        episode.add_env_step(observations, actions, rewards, infos, extra_model_outputs=outputs)
        if not i:
            episode = episode.cut(1)
    return episode


def as_lists(found: Any) -> Any:
    if isinstance(found, list):
        return [as_lists(one) for one in found]
    return {
        agent: rows if isinstance(rows, (list, dict)) else np.asarray(rows).tolist() for agent, rows in found.items()
    }


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("observations", {}, {"a": [1, 3], "b": [1.5, 2.5]}),
        ("observations", {"indices": -2}, {"b": 2.5}),
        ("observations", {"indices": [-1, 0], "neg_index_as_lookback": True}, {"a": [0, 1], "b": [1.5]}),
        ("observations", {"indices": slice(0, 3), "fill": -1}, {"a": [1, -1, 3], "b": [1.5, 2.5, -1]}),
        ("observations", {"env_steps": False, "indices": -1, "agent_ids": "b"}, {"b": 2.5}),
        ("infos", {"agent_ids": ["b", "c"]}, {"b": [{"t": 1}, {"t": 2}]}),
        ("infos", {"return_list": True, "indices": slice(1, 3)}, [{"b": {"t": 2}}, {"a": {"t": 3}}]),
        ("actions", {}, {"a": [4], "b": [5, 6]}),
        ("actions", {"indices": -1}, {"b": 6}),
        ("actions", {"indices": 1, "one_hot_discrete": True}, {"b": [0, 0, 0, 0, 0, 0, 1, 0, 0]}),
        ("rewards", {}, {"a": [0.5], "b": [-1, 2]}),
        ("rewards", {"indices": slice(-1, 1), "neg_index_as_lookback": True}, {"a": [0.5, 0.5], "b": [-1]}),
        ("extra_model_outputs", {"key": "v", "indices": [0, 1], "fill": 0}, {"a": [40, 0], "b": [50, 60]}),
        ("extra_model_outputs", {"indices": 1}, {"b": {"v": 60}}),
    ],
)
def test_getters(name: str, arguments: dict[str, Any], found: Any) -> None:
    assert as_lists(getattr(meeting(), f"get_{name}")(**arguments)) == found


@pytest.mark.parametrize("name", COLUMNS)
def test_a_setter_writes_where_the_getter_reads(name: str) -> None:
    episode = meeting()
    keys = {"key": "v"} if name == "extra_model_outputs" else {}
    new: Any = {"new": 1} if name == "infos" else 7
    for arguments in ({"at_indices": 0}, {"at_indices": 0, "env_steps": False}):
        getattr(episode, f"set_{name}")(new_data={"b": new}, **keys, **arguments)
        at = {**arguments, "indices": arguments["at_indices"]}
        del at["at_indices"]
        assert getattr(episode, f"get_{name}")(agent_ids="b", **keys, **at) == {"b": new}
    before = getattr(meeting(), f"get_{name}")(agent_ids="a", **keys)
    assert as_lists(getattr(episode, f"get_{name}")(agent_ids="a", **keys)) == as_lists(before)


def test_every_column_has_both_and_all_take_the_same_arguments() -> None:
    own: dict[str, set[str]] = {"get": {"fill", "return_list"}, "set": {"new_data"}}
    for name in COLUMNS:
        for kind, more in own.items():
            names = set(inspect.signature(getattr(MultiAgentEpisode, f"{kind}_{name}")).parameters) - {"self"}
            expected = {"env_steps", "neg_index_as_lookback"} | more
            expected |= {"indices", "agent_ids"} if kind == "get" else {"at_indices"}
            expected |= {"one_hot_discrete"} if kind == "get" and name in ("observations", "actions") else set()
            expected |= {"key"} if name == "extra_model_outputs" else set()
            assert names == expected, (kind, name)
