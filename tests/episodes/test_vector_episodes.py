"""Recorded episodes as a sequence, and whole columns of them."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytest

from epibatch.core.errors import UnknownNameError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from epibatch.episodes.vector_episodes import VectorEpisodes

NO = np.zeros(2, bool)


def step(recorder: VectorRecorder, i: int, done: tuple[bool, bool] = (False, False)) -> None:
    recorder.step(
        np.array([i, 10 + i]), np.array([i / 2, -i]), np.array(done), NO, np.array([i + 1, 11 + i]),
        extras={"v": np.array([i, -i])},
    )  # fmt: skip


def recorded() -> VectorEpisodes:
    """Environment 0: two steps and an end, then one step; environment 1: four steps."""
    recorder = VectorRecorder(2, capacity=2)
    recorder.reset(np.array([0, 10]))
    for i in range(4):
        step(recorder, i, (i in (1, 2), False))  # an end told with the reset is none
    return recorder.harvest(0)


def test_it_is_a_sequence_of_episodes() -> None:
    episodes = recorded()
    assert len(episodes) == 3 and episodes.lengths().tolist() == [2, 1, 4] and len(set(episodes.ids)) == 3
    assert episodes[0] is episodes[0] and [type(e) for e in episodes] == [SingleAgentEpisode] * 3
    assert episodes[-2:] == [episodes[1], episodes[2]] and next(reversed(episodes)) is episodes[2]
    assert [e.is_terminated for e in episodes] == [True, False, False]
    assert repr(episodes) == "VectorEpisodes(3 chunks, 7 steps)" and episodes.columnar and not episodes.recording
    assert pickle.loads(pickle.dumps(episodes)) == list(episodes)


@pytest.mark.parametrize(
    ("name", "plus_one", "expected"),
    [
        ("obs", False, [0, 1, 3, 10, 11, 12, 13]),
        ("obs", True, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]),
        ("actions", False, [0, 1, 3, 10, 11, 12, 13]),
        ("rewards", True, [0, 0.5, 0.5, 1.5, 1.5, 0, -1, -2, -3, -3]),
        ("v", False, [0, 1, 3, 0, -1, -2, -3]),
    ],
)
def test_gather(name: str, plus_one: bool, expected: list[float]) -> None:
    found = recorded().gather(name, plus_one=plus_one)
    np.testing.assert_array_equal(found, expected)


def test_gather_gives_copies_and_names_what_it_does_not_know() -> None:
    episodes = recorded()
    episodes.gather("rewards")[:] = 9
    assert episodes[2].get_return() == -6.0
    with pytest.raises(UnknownNameError, match="rewards"):
        episodes.gather("reward")


def test_gather_before() -> None:
    recorder = VectorRecorder(2, capacity=2)
    recorder.reset(np.array([0, 10]))
    for i in range(5):
        if i == 3:
            recorder.harvest(2)
        step(recorder, i)
    found = recorder.harvest(0).gather_before("v", [np.array([-1, 1]), np.array([-2])])
    np.testing.assert_array_equal(found, [2, 4, -1])


def test_the_newest_step_while_recording() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.array([0, 10]))
    episodes = recorder.episodes
    assert episodes.recording and episodes.latest_output("v") is None
    episodes.set_latest_observations(np.array([[1.0], [2.0]]))
    np.testing.assert_array_equal(episodes[1].get_observations(-1), [2.0])
    recorder.step(
        np.array([0, 0]), np.array([0, 0]), np.array([True, False]), NO, np.zeros((2, 1)), extras={"v": np.arange(2)}
    )
    output, has = recorder.episodes.latest_output("v") or (None, None)
    np.testing.assert_array_equal(output, [0, 1])
    np.testing.assert_array_equal(has, [True, True])


def harvested(num_envs: int, keep: int) -> tuple[VectorRecorder, SingleAgentEpisode, weakref.ref]:
    recorder = VectorRecorder(num_envs)
    recorder.reset(np.zeros((num_envs, 3)))
    none = np.zeros(num_envs, bool)
    for i in range(4):
        recorder.step(np.arange(num_envs), np.ones(num_envs), none, none, np.full((num_envs, 3), i + 1.0))
    episodes = recorder.harvest(0)
    return recorder, episodes[keep], weakref.ref(episodes.block)


def test_a_small_chunk_kept_past_the_next_harvest_does_not_pin_its_block() -> None:
    recorder, kept, block = harvested(4, 2)
    gc.collect()
    assert block() is not None  # the episode still shows its rows
    recorder.harvest(0)
    gc.collect()
    assert block() is None
    np.testing.assert_array_equal(kept.get_observations(), np.repeat(np.arange(5.0), 3).reshape(5, 3))
    assert kept.get_actions().tolist() == [2] * 4 and kept.get_infos() == [{}] * 5


def test_a_chunk_that_is_most_of_its_block_keeps_it() -> None:
    recorder, kept, block = harvested(1, 0)
    recorder.harvest(0)
    gc.collect()
    assert block() is not None and len(kept) == 4


def test_episodes_that_are_let_go_of_later_are_compacted_at_the_harvest_after_that() -> None:
    recorder = VectorRecorder(3)
    recorder.reset(np.zeros(3))
    none = np.zeros(3, bool)
    for i in range(3):
        recorder.step(np.arange(3), np.ones(3), none, none, np.full(3, i + 1.0))
    episodes = recorder.harvest(0)
    block = weakref.ref(episodes.block)
    recorder.harvest(0)
    kept = episodes[0]
    del episodes
    gc.collect()
    assert block() is not None
    recorder.harvest(0)
    gc.collect()
    assert block() is None and kept.get_observations().tolist() == [0, 1, 2, 3]
