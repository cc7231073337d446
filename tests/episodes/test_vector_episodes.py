"""Recorded episodes as a sequence over one block, and what may be written to one of them."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import weakref

import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpisodeStateError
from epibatch.episodes import SingleAgentEpisode, VectorEpisodes, VectorRecorder, reader_of

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
        step(recorder, i, (i == 1, False))
    return recorder.flush(0)


def test_it_is_a_sequence_of_episodes() -> None:
    episodes = recorded()
    assert len(episodes) == 3 and episodes.lengths().tolist() == [2, 1, 4] and len(set(episodes.ids)) == 3
    assert episodes[0] is episodes[0] and [type(e) for e in episodes] == [SingleAgentEpisode] * 3
    assert episodes[-2:] == [episodes[1], episodes[2]] and next(reversed(episodes)) is episodes[2]
    assert [e.is_terminated for e in episodes] == [True, False, False]
    assert repr(episodes) == "VectorEpisodes(3 chunks, 7 steps)" and not episodes.recording
    twins = pickle.loads(pickle.dumps(episodes))
    assert twins.ids == episodes.ids and type(copy.deepcopy(episodes)) is type(copy.copy(episodes)) is list
    for twin, deep, episode in zip(twins, copy.deepcopy(episodes), episodes, strict=True):
        assert twin.equals(episode) and deep.equals(episode) and deep is not episode
    assert all(map(operator.is_, copy.copy(episodes), episodes))


def test_sequences_are_added_up_as_lists_are() -> None:
    left, right = recorded(), recorded()
    for total in (left + right, left + list(right), list(left) + right):
        assert type(total) is list and len(total) == 6 and all(map(operator.is_, total, [*left, *right]))
    with pytest.raises(TypeError):
        left + 1


def test_the_newest_step_while_recording() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.array([0, 10]))
    episodes = recorder.episodes
    assert episodes.recording and reader_of(episodes).newest("v")[0] is None
    reader_of(episodes).write_newest(np.array([[1.0], [2.0]]))
    np.testing.assert_array_equal(episodes[1].get_observations(-1), [2.0])
    recorder.step(
        np.array([0, 0]), np.array([0, 0]), np.array([True, False]), NO, np.zeros((2, 1)), extras={"v": np.arange(2)}
    )
    output, has = reader_of(recorder.episodes).newest("v")
    np.testing.assert_array_equal(output, [0, 1])
    assert has is None  # all
    step(recorder, 1)  # brings the first environment's reset observation
    _, has = reader_of(recorder.episodes).newest("v")
    np.testing.assert_array_equal(has, [False, True])
    step(recorder, 2)
    assert reader_of(recorder.episodes).newest("v")[1] is None


def harvested(num_envs: int, keep: int) -> tuple[VectorRecorder, SingleAgentEpisode, weakref.ref]:
    recorder = VectorRecorder(num_envs)
    recorder.reset(np.zeros((num_envs, 3)))
    none = np.zeros(num_envs, bool)
    for i in range(4):
        recorder.step(np.arange(num_envs), np.ones(num_envs), none, none, np.full((num_envs, 3), i + 1.0))
    episodes = recorder.flush(0)
    return recorder, episodes[keep], weakref.ref(episodes.block)


@pytest.mark.slow
def test_a_small_chunk_kept_past_the_next_harvest_does_not_pin_its_block() -> None:
    recorder, kept, block = harvested(4, 2)
    gc.collect()
    assert block() is not None  # the episode still shows its rows
    recorder.flush(0)
    gc.collect()
    assert block() is None
    np.testing.assert_array_equal(kept.get_observations(), np.repeat(np.arange(5.0), 3).reshape(5, 3))
    assert kept.get_actions().tolist() == [2] * 4 and kept.get_infos() == [{}] * 5


def test_a_chunk_that_is_most_of_its_block_keeps_it() -> None:
    recorder, kept, block = harvested(1, 0)
    recorder.flush(0)
    gc.collect()
    assert block() is not None and len(kept) == 4


@pytest.mark.slow
def test_episodes_that_are_let_go_of_later_are_compacted_at_the_harvest_after_that() -> None:
    recorder = VectorRecorder(3)
    recorder.reset(np.zeros(3))
    none = np.zeros(3, bool)
    for i in range(3):
        recorder.step(np.arange(3), np.ones(3), none, none, np.full(3, i + 1.0))
    episodes = recorder.flush(0)
    block = weakref.ref(episodes.block)
    recorder.flush(0)
    kept = episodes[0]
    del episodes
    gc.collect()
    assert block() is not None
    recorder.flush(0)
    gc.collect()
    assert block() is None and kept.get_observations().tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------- pieces that change the episode object
def fragment() -> VectorEpisodes:
    """Two environments, three chunks (an end with a tail, a start behind a lookback), float32 observations."""
    recorder = VectorRecorder(2, autoreset="same_step", capacity=2)
    recorder.reset(np.array([[0, 0], [10, 10]], np.float32))
    for i in range(5):
        if i == 2:
            recorder.flush(1)
        recorder.step(
            np.array([i, 10 + i]), np.array([i / 2, -i]), np.array([i == 3, False]), NO,
            np.array([[i + 1] * 2, [i + 11] * 2], np.float32), extras={"v": np.array([i, -i])},
            final_observations=np.array([[77, 77], [0, 0]], np.float32),
        )  # fmt: skip
    return recorder.flush(0)


def test_facts_without_views_are_copies() -> None:
    vector = fragment()
    for facts in (vector.lengths, vector.terminateds, vector.truncateds):
        facts()[:] = 9
    assert vector.block.num_objects == 0 and not any(chunk.detached for chunk in vector.chunks)
    assert vector.lengths().tolist() == [2, 1, 3] and vector.terminateds().tolist() == [True, False, False]
    assert not vector.truncateds().any()


# ---------------------------------------------------------------- writing to one of them
def test_rows_of_another_shape_leave_the_neighbours_alone() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 2), np.float32))
    for i in range(2):
        recorder.step(np.zeros(2), np.zeros(2), NO, NO, np.full((2, 2), i + 1, np.float32))
    first, second = vector = recorder.flush(0)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    first.set_observations(new_data=rows)
    np.testing.assert_array_equal(first.get_observations(), rows)
    assert second.get_observations().dtype == np.float32 and second.get_observations().shape == (3, 2)
    assert vector.block.observations.leaves[0].dtype == np.float32 and vector.chunks[0].detached
    second.set_rewards(new_data=np.ones(3), at_indices=0)
    assert second.get_rewards().dtype == object and vector.block.rewards.leaves[0].dtype == np.float64
    first.set_rewards(new_data=["text", "more"])
    assert first.get_rewards().tolist() == ["text", "more"] and first.get_actions().tolist() == [0, 0]


def test_rows_of_another_shape_are_refused_while_they_are_recorded() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 2), np.float32))
    recorder.step(np.zeros(2), np.array([1, 2]), NO, NO, np.ones((2, 2), np.float32))
    view = recorder.episodes[0]
    for new_data, indices in ((np.zeros((2, 4)), None), (np.zeros(4), 0), ([np.zeros(4)], [0])):
        with pytest.raises(EpisodeStateError, match="another nesting, shape or kind in the place of committed"):
            view.set_observations(new_data=new_data, at_indices=indices)
    view.set_rewards(new_data=0.5, at_indices=0)
    assert recorder.episodes[1].get_rewards().tolist() == [2.0]
    view.set_observations(new_data=np.zeros(4), at_indices=-1)
    assert view.get_observations(-1).shape == (4,) and view.get_observations(0).shape == (2,)


def test_the_latest_window_of_an_environment_that_waits_for_its_reset() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.array([0, 10]))
    step(recorder, 0, (True, False))
    recorder.flush(3)
    rows, _, complete = reader_of(recorder.episodes).window("obs", -2, 0)
    assert rows.joined().tolist() == [0, 1, 10, 11] and rows.counts.tolist() == [2, 2] and not complete


def test_the_latest_window_of_nested_observations_and_of_another_shape() -> None:
    recorder = VectorRecorder(2)
    recorder.reset({"a": np.array([1, 2]), "b": np.zeros((2, 3), np.float32)})
    recorder.step(np.zeros(2), np.zeros(2), NO, NO, {"b": np.ones((2, 3), np.float32), "a": np.array([3, 4])})
    window = reader_of(recorder.episodes).window("obs", -1, 0)[0].joined()
    assert window["a"].tolist() == [1, 3, 2, 4] and window["b"].shape == (4, 3)
    reader_of(recorder.episodes).write_newest({"a": np.array([3, 4]), "b": np.ones((2, 4), np.float32)})
    with pytest.raises(ColumnError, match=r"shape \(3,\) per environment[\s\S]*\(4,\)"):
        reader_of(recorder.episodes).window("obs", -1, 0)


def test_a_part_of_a_delivery_keeps_its_episodes_in_the_block() -> None:
    recorder = VectorRecorder(2, capacity=2)
    recorder.reset(np.array([0, 10]))
    for i in range(4):
        step(recorder, i, (i in (1, 3), False))
    part = recorder.flush(0).first(2)
    view = part[1]
    gc.collect()
    recorder.flush(0)
    assert not part.chunks[1].detached and view.get_actions().tolist() == [3]


def test_the_list_of_all_views_is_what_iterating_gives_and_the_callers_own():
    recorder = VectorRecorder(3)
    recorder.reset(np.zeros((3, 1)))
    episodes = recorder.episodes
    kept = episodes[1]
    assert episodes.views_of_all()[1] is kept
    for ended in ([False] * 3, [True, False, True], [False] * 3, [True] * 3, [False] * 3):
        recorder.step(np.zeros(3), np.zeros(3), np.array(ended), np.zeros(3, bool), np.zeros((3, 1)))
        every = recorder.episodes.views_of_all()
        assert None not in every and all(a is b for a, b in zip(every, recorder.episodes, strict=True))
        every.clear()
    later = recorder.flush(0)
    assert all(a is b for a, b in zip(later.views_of_all(), later, strict=True))
    first = later.first(2)
    assert all(a is b for a, b in zip(first.views_of_all(), later)) and len(first.views_of_all()) == 2


def test_a_terminal_observation_outside_the_block_is_read_written_and_copied() -> None:
    view = next(episode for episode in fragment() if episode.is_terminated)
    assert view.get_observations()[-1].tolist() == [77, 77]
    view.set_observations(new_data=np.full(2, 56, np.float32), at_indices=-1)
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view)), view[:]):
        assert twin.equals(view) and twin.get_observations(-1).tolist() == [56, 56]
        assert twin.rewards.source is None
    rows = view.get_observations()
    rows *= 0
    assert not view.get_observations().any() and not view.get_observations(-1).any()


@pytest.mark.parametrize("newest", [8, 8.5])  # in its row, and apart
def test_a_chunk_that_starts_with_its_newest_observation(newest: float) -> None:
    recorder = VectorRecorder(1, autoreset="same_step")
    recorder.reset(np.array([7]))
    one = np.ones(1, bool)
    recorder.step(np.zeros(1), np.zeros(1), one, ~one, np.array([newest]), final_observations=np.array([7]))
    (view,) = recorder.episodes
    assert view.get_observations(slice(-3, None), fill=0).tolist() == [0, 0, newest]
    assert view.get_observations().tolist() == [newest]
