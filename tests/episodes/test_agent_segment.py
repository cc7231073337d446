"""One agent's lives and what waits for its next observation."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes._parts.agent_segment import AgentRecord, AgentSegment


def segment(*steps: int) -> AgentSegment:
    episode = SingleAgentEpisode(agent_id="a")
    episode.add_env_reset(float(steps[0]))
    for step in steps[1:]:
        episode.add_env_step(float(step), 0, 1.0)
    return AgentSegment(episode, array("q", steps))


def test_env_steps_are_integers_per_observation() -> None:
    found = segment(0, 2, 5).env_steps
    assert (found.tolist(), found.dtype) == ([0, 2, 5], np.int64)


@pytest.mark.parametrize(("env_t", "row"), [(-1, -1), (0, 0), (1, 0), (2, 1), (4, 1), (9, 2)])
def test_the_newest_row_at_an_env_step(env_t: int, row: int) -> None:
    assert segment(0, 2, 5).row_at(env_t) == row


@pytest.mark.parametrize(("low", "kept"), [(9, [5]), (5, [5]), (3, [5]), (2, [2, 5]), (-3, [0, 2, 5])])
def test_a_cut_keeps_what_began_late_enough_and_the_newest_observation(low: int, kept: list[int]) -> None:
    part = segment(0, 2, 5).sliced(5, 5, low)
    assert (list(part.steps), part.episode.lookback, len(part.episode)) == (kept, len(kept) - 1, 0)


@pytest.mark.parametrize(
    ("begin", "end", "low", "steps", "lookback"),
    [
        (0, 7, 0, [0, 2, 5, 7], 0),
        (2, 5, 2, [2, 5], 0),
        (3, 6, 2, [2, 5], 0),
        (5, 7, 0, [0, 2, 5, 7], 2),
        (6, 6, 2, [2, 5], 1),
    ],
)
def test_a_slice_has_the_steps_that_ended_in_it(
    begin: int, end: int, low: int, steps: list[int], lookback: int
) -> None:
    part = segment(0, 2, 5, 7).sliced(begin, end, low)
    assert (list(part.steps), part.episode.lookback) == (steps, lookback)
    observed = part.episode.get_observations(slice(-lookback, None), neg_index_as_lookback=True)
    assert observed.tolist() == steps


def test_rewards_and_infos_wait_and_are_taken_once() -> None:
    record = AgentRecord()
    record.begin(segment(0))
    record.settle()
    assert record.ready is record.live
    record.add_reward(0.5)
    record.add_reward(0.25)
    record.add_info({"x": 1, "y": 1})
    record.settle()
    assert record.ready is None
    assert (record.take_open()[2], record.take_open()[2]) == (0.75, 0.0)
    assert (record.take_info({"y": 2}), record.take_info(None)) == ({"x": 1, "y": 2}, None)


def test_what_a_life_leaves_over_is_pending_for_good() -> None:
    record = AgentRecord()
    assert record.pending_reward is None
    record.begin(segment(0))
    record.add_reward(0.5)
    record.finish(True, False, 3)
    assert (record.live, record.end, record.reward, record.pending_reward) == (None, (True, False), None, 0.5)
    record.begin(segment(4))
    record.add_reward(1.0)
    assert (record.end, record.pending_reward, record.take_open()[2], record.pending_reward) == (None, 1.5, 1.0, 0.5)


def test_a_record_can_be_as_it_was_before_a_step() -> None:
    record = AgentRecord()
    record.begin(segment(0, 1))
    record.settle()
    before = record.snapshot()
    assert record.live is not None
    record.live.episode.add_env_step(2.0, 0, 1.0)
    record.live.steps.append(2)
    record.add_reward(0.5)
    record.finish(True, False, 2)
    record.begin(segment(3))
    record.restore(before)
    assert len(record.segments) == 1 and record.ready is record.live
    assert record.live is not None and list(record.live.steps) == [0, 1]
    assert (record.live.episode.is_done, len(record.live.episode), record.left_over) == (False, 1, 0.0)
