"""What getters and setters note and refuse while a plain piece runs in a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import EpisodeStateError, LookbackError
from epibatch.episodes import InfiniteLookbackBuffer
from fixture_episodes import joint_step, meeting, numbered


class Ask(ConnectorV2):
    """Asks the episode something."""

    reads = ()

    def __init__(self, ask: Any) -> None:
        super().__init__()
        self.ask = ask

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self.ask(episodes[0])
        return batch


def needed(episode: Any, ask: Any) -> int:
    """The lookback that an acting pipeline needs after a piece asked."""
    pipeline = EnvToModulePipeline(connectors=[Ask(ask)])
    pipeline(rl_module=None, batch={}, episodes=[episode])
    return pipeline.lookback_needed


def while_learning(episode: Any, ask: Any) -> None:
    LearnerConnectorPipeline(connectors=[Ask(ask)])(rl_module=None, batch={}, episodes=[episode])


@pytest.mark.parametrize("indices", [-2, slice(-2, None), slice(-2, 1, 1), [-2], np.int64(-2)])
def test_a_read_into_the_lookback_is_noted_whatever_asks_for_it(indices: Any) -> None:
    chunk = numbered(6, 3, t_started=7)
    assert needed(chunk, lambda e: e.get_rewards(indices, neg_index_as_lookback=True)) == 2
    assert needed(chunk, lambda e: e.get_rewards([0, -1])) == 0


def test_a_fill_that_would_hide_steps_is_refused() -> None:
    def ask(episode: Any) -> Any:
        return episode.get_rewards(slice(-3, None), neg_index_as_lookback=True, fill=0.0)

    assert needed(numbered(6, 2, t_started=2), ask) == 3  # the episode is not older than its lookback
    with pytest.raises(LookbackError, match=r"3 steps before[\s\S]*at least 3 steps"):
        needed(numbered(6, 2, t_started=7), ask)


def test_reads_before_a_chunk_of_several_agents_are_noted_in_env_steps() -> None:
    episode = meeting("a")
    for _ in range(3):
        episode.add_env_step(**joint_step("a"))
    chunk = episode.cut(1)
    assert needed(chunk, lambda e: e.get_observations(slice(-1, None), neg_index_as_lookback=True)) == 1
    with pytest.raises(LookbackError, match="at least 3 steps"):
        needed(chunk, lambda e: e.get_observations(slice(-3, None), neg_index_as_lookback=True, fill=0.0))


@pytest.mark.parametrize(
    "ask",
    [
        lambda e: e.get_rewards(),
        lambda e: e.get_rewards([0, 1]),
        lambda e: e.get_rewards(slice(-3, 2), fill=0),
        lambda e: e.rewards.data,
        lambda e: e.get_extra_model_outputs("e", -1),
    ],
)
def test_arrays_are_read_only_while_a_piece_runs_that_may_not_write(ask: Any) -> None:
    episode = numbered(4)

    def write(own: Any) -> None:
        ask(own)[0] = 5

    with pytest.raises(ValueError, match="read-only"):
        while_learning(episode, write)
    assert episode.equals(numbered(4, id_=episode.id_))
    write(episode)


def test_nested_arrays_are_read_only_too() -> None:
    episode = numbered(1)
    episode.extra_model_outputs["n"] = InfiniteLookbackBuffer({"a": np.ones(1), "b": (np.ones((1, 2)),)})
    for part in (lambda rows: rows["a"], lambda rows: rows["b"][0]):
        with pytest.raises(ValueError, match="read-only"):
            while_learning(episode, lambda e, part=part: part(e.get_extra_model_outputs("n")).fill(5))


def test_a_piece_that_may_not_write_cannot_set_pending_rows() -> None:
    episode = meeting("a")
    episode.add_env_step(**joint_step("a"))
    episode.add_env_step({}, {"a": 30}, {})
    with pytest.raises(EpisodeStateError, match="mutates_episodes"):
        while_learning(episode, lambda e: e.set_actions(new_data={"a": 1}, at_indices=-1))
    assert episode.pending_actions == {"a": 30}
