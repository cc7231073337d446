"""One environment's part of a block, and the episode that shows it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from epibatch.core.errors import EpisodeStateError
from epibatch.episodes._storage.block import Block
from epibatch.episodes._storage.chunk import Chunk


def recorded(steps: int = 3, start: int = 1) -> Chunk:
    """Environment 1 of 2: observations 100.., actions 10.., rewards 0.., the first `start` rows as lookback."""
    block = Block(2, 8)
    for row in range(steps):
        block.observations.put(row, np.array([row, 100 + row]), 8)
        block.actions.put(row, np.array([0, 10 + row]), 8)
        block.rewards.put(row, np.array([0, row]), 8)
        block.row = row + 1
    block.stage(np.array([steps, 100 + steps]))
    return Chunk(block, 1, 0, start, (None, None), "id", 5)


def test_the_view_shows_the_blocks_rows() -> None:
    chunk = recorded()
    view = chunk.view()
    assert chunk.view() is view and chunk.shown is view
    assert (len(chunk), len(view), view.lookback, view.t_started, view.t, view.id_) == (2, 2, 1, 5, 7, "id")
    np.testing.assert_array_equal(view.get_observations(), [101, 102, 103])
    np.testing.assert_array_equal(view.observations.data, [100, 101, 102, 103])
    np.testing.assert_array_equal(view.get_actions(slice(-1, None), neg_index_as_lookback=True), [10, 11, 12])
    view.get_rewards()[:] = 7
    assert chunk.block.rewards.leaves[0][:3].tolist() == [[0, 0], [0, 7], [0, 7]]


def test_a_piece_may_replace_the_newest_observation() -> None:
    view = (chunk := recorded(1, 0)).view()
    view.set_observations(new_data=np.zeros(3), at_indices=-1)
    assert chunk.block.written[1].shape == (3,) and view.get_observations(-1).shape == (3,)
    assert view.get_observations(0) == 100


def test_a_tail_lies_outside_the_block() -> None:
    chunk = recorded()
    chunk.finish(3, True, False)
    chunk.tail, chunk.tail_infos = 55, {"end": 1}
    view = chunk.view()
    np.testing.assert_array_equal(view.get_observations(), [101, 102, 55])
    np.testing.assert_array_equal(view.observations.rows(0, 3)[0], [101, 102, 55])
    assert view.get_infos(-1) == {"end": 1} and view.is_terminated and not view.is_truncated
    view.set_observations(new_data=56, at_indices=-1)
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view)), view[:]):
        np.testing.assert_array_equal(twin.get_observations(), [101, 102, 56])
        assert twin.rewards._source is None


def test_a_chunk_that_starts_with_the_raw_observation() -> None:
    view = recorded(1, 1).view()
    chunk = Chunk(block := Block(1, 4), 0, 1, 1, (None, None))
    block.observations.put(0, np.array([7]), 4)
    block.row = 1
    for newest in (8, 8.5):  # in its row, and apart
        block.stage(np.array([newest]))
        assert chunk.view().get_observations(slice(-3, None), fill=0).tolist() == [0, 0, newest]
        assert chunk.view().get_observations().tolist() == [newest] and len(view) == 0


def test_next_chunk() -> None:
    chunk = recorded()
    chunk.view().custom_data["k"] = [1]
    view = chunk.view()
    view.custom_data["k"] = [1]
    after = chunk.next_chunk(chunk.block.successor(2, 4), 2)
    assert (after.id_, after.low, after.start, after.t_started, len(after)) == ("id", 0, 2, 7, 0)
    np.testing.assert_array_equal(after.view().observations.data, [101, 102, 103])
    after.view().custom_data.get("k", []).append(2)
    assert view.custom_data == {"k": [1]}


def test_rows_cannot_be_added_while_recording() -> None:
    chunk = recorded()
    view = chunk.view()
    with pytest.raises(EpisodeStateError, match=r"copy\.deepcopy"):
        view.own_columns()
    chunk.finish(3, False, False)
    view.own_columns()
    assert chunk.replaced
    view.rewards.set(9, at_indices=0)
    assert chunk.block.rewards.leaves[0][1, 1] == 1
    view.add_env_step(104, 13, 9.0)
    assert len(chunk) == 3 and view.get_observations().tolist() == [101, 102, 103, 104]
