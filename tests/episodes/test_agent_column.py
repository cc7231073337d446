"""An agent's column on the environment's time line."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.episodes import MultiAgentEpisode
from epibatch.episodes._parts.agent_column import AgentColumn
from epibatch.episodes.infinite_lookback_buffer import NOTHING


@pytest.fixture
def episode() -> MultiAgentEpisode:
    """Agent a lives at env steps 0 and 1, and again at 3 and 5, with an action pending; model outputs from then on."""
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    for t in range(1, 6):
        step = {"observations": {"b": 0.0}, "actions": {"b": 0}, "rewards": {"b": 0.0}}
        if t in (1, 3, 5):
            step["observations"]["a"] = float(t)
        if t in (1, 4):
            step["actions"]["a"], step["rewards"]["a"] = t, t
        flags = {"terminateds": {"a": t == 1}}
        episode.add_env_step(**step, **flags, extra_model_outputs={"a": {"v": t}} if t == 4 else {})
    episode.add_env_step({"b": 0.0}, {"a": 6, "b": 0}, {"b": 0.0}, extra_model_outputs={"a": {"v": 6}})
    return episode


@pytest.mark.parametrize(
    ("name", "steps", "rows"),
    [
        ("observations", [0, 1, 3, 5], [0, 1, 3, 5]),
        ("actions", [0, 3, 5], [1, 4, 6]),
        ("rewards", [0, 3, 5], [1, 4, 0]),
        ("extra_model_outputs", [3, 5], [4, 6]),
    ],
)
def test_rows_of_all_lives_and_of_the_open_step(
    episode: MultiAgentEpisode, name: str, steps: list[int], rows: list[int]
) -> None:
    key = "v" if name == "extra_model_outputs" else None
    column = AgentColumn(episode.records["a"], name, key)
    assert (column.count, list(column.steps[: column.count])) == (len(steps), steps)
    assert np.asarray(column.between(-9, 99)).tolist() == rows
    for low in range(7):
        for high in range(low, 8):
            expected = [row for step, row in zip(steps, rows) if low <= step < high]
            found = column.between(low, high)
            assert (found is NOTHING) if not expected else found.tolist() == expected
    for env_t in range(-1, 8):
        found = column.at(env_t)
        assert found is NOTHING if env_t not in steps else found == rows[steps.index(env_t)]
    assert column.find([5, 2, 3]).tolist() == [len(steps) - 1, -1, len(steps) - 2]
    assert column.at_each([5, 2, 3], fill=-9).tolist() == [rows[-1], -9, rows[-2]]
    assert column.at_each([2, 4]) is NOTHING


def test_the_latest_life_alone(episode: MultiAgentEpisode) -> None:
    column = AgentColumn(episode.records["a"], "actions", latest=True)
    assert column.get(None, False, None, False).tolist() == [4, 6]


def test_an_output_that_there_is_none_of_has_no_rows(episode: MultiAgentEpisode) -> None:
    column = AgentColumn(episode.records["b"], "extra_model_outputs", "v")
    assert (column.count, column.find([0, 1]).tolist(), column.at(0)) == (0, [-1, -1], NOTHING)
