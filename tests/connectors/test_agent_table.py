"""Rows of agents by env step, in one episode of a few steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.connectors._engine.agent_table import AgentTable
from epibatch.connectors._engine.call import PipelineCall
from epibatch.connectors.env_to_module import AgentIndicator
from epibatch.episodes import MultiAgentEpisode


def game(name: str) -> MultiAgentEpisode:
    """a observes at 0 and 2, b at 0 and 1, c at 2."""
    episode = MultiAgentEpisode(id_=name)
    episode.add_env_reset(observations={"a": 10.0, "b": 20.0})
    episode.add_env_step({"b": 21.0}, {"a": 1, "b": 2}, {"b": 0.0})
    episode.add_env_step({"a": 12.0, "c": 32.0}, {"b": 3}, {"a": 0.0})
    return episode


def table_of(episodes: Any, agents: str, **options: Any) -> tuple[AgentTable, PipelineCall]:
    call = PipelineCall(rl_module=None, episodes=episodes, training=not options["newest"])
    return AgentTable(call, list(agents), AgentIndicator(), **options), call


def test_all_env_steps() -> None:
    table, call = table_of([game("e"), game("f")], "cab", newest=False)
    assert table.rows.tolist() == [
        *[[-1, 0, 2], [-1, -1, 3], [4, 1, -1]],
        *[[-1, 5, 7], [-1, -1, 8], [9, 6, -1]],
    ]
    values = table.observations()
    assert values.tolist() == [10.0, 12.0, 20.0, 21.0, 32.0] * 2 + [0.0]
    assert table.observations(np.array([9, 3, 3])).tolist() == [32.0, 21.0, 21.0]
    assert {own.keys[0][1]: table.env_rows(own).tolist() for own in call.groups.values()} == {"a": [0, 3], "b": [0, 3]}
    actions, taken, _ = table.steps("actions")
    assert taken[actions[table.env_rows(next(iter(call.groups.values())))]].tolist() == [[0, 1, 2]] * 2
    assert taken[actions[1]].tolist() == [0, 0, 3]  # b's action waits for its next observation


def test_the_newest_env_step_and_only_some_agents() -> None:
    table, call = table_of([game("e"), game("f")], "ca", newest=True, only=True)
    assert table.rows.tolist() == [[1, 0], [3, 2]]
    assert table.observations().tolist() == [12.0, 32.0, 12.0, 32.0, 0.0]
    assert table.observations(np.array([3, 0])).tolist() == [32.0, 12.0]
    assert [table.env_rows(own).tolist() for own in call.groups.values()] == [[0, 1], [0, 1]]


def test_steps_before_a_cut_that_rows_reach_back_to() -> None:
    chunk = game("e").cut()
    chunk.add_env_step({"b": 23.0}, {"a": 4, "c": 5}, {"b": 0.0})
    table, call = table_of([chunk], "abc", newest=False)
    (own,) = call.groups.values()  # b's step from 1 to 3 is the only one that ended
    values = table.observations()
    assert values[table.rows[table.env_rows(own)]].tolist() == [[0.0, 21.0, 0.0]]
    assert values[table.rows].tolist() == [[0.0, 21.0, 0.0], [12.0, 0.0, 32.0], [0.0, 23.0, 0.0]]
