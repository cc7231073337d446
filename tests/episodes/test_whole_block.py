"""Lists of views of one block are read as the block; any other list, and any change, is noticed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from epibatch.episodes import InfiniteLookbackBuffer, VectorRecorder
from epibatch.episodes._storage.whole_block import WholeBlock, whole_block

NO = np.zeros(3, bool)


def recorder(steps=6, seed=0):
    rng = np.random.default_rng(seed)
    made = VectorRecorder(3, capacity=2)
    made.reset(rng.standard_normal((3, 2)))
    done = NO
    for _ in range(steps):
        done = (rng.random(3) < 0.3) & ~done
        made.step(rng.integers(0, 9, 3), rng.standard_normal(3), done, NO, rng.standard_normal((3, 2)))
    return made


@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_selection_of_views_gives_their_own_rows(seed):
    views = list(recorder(seed=seed).harvest(1))
    order = np.random.default_rng(seed).integers(0, len(views), 5)
    some = [views[i] for i in order]
    whole = whole_block(some)
    assert type(whole) is WholeBlock and list(whole) == some and whole.columnar
    assert whole.lengths().tolist() == list(map(len, some))
    assert whole.terminateds().tolist() == [one.is_terminated for one in some]
    np.testing.assert_array_equal(whole.gather("rewards"), np.concatenate([one.get_rewards() for one in some]))
    everything = np.concatenate([one.get_observations() for one in some])
    np.testing.assert_array_equal(whole.gather("obs", plus_one=True), everything)


def test_flags_of_the_objects_count_and_those_of_chunks_nobody_looked_at():
    episodes = recorder().harvest(0)
    view = episodes[1]
    view.is_terminated, view.is_truncated = not view.is_terminated, True
    whole = whole_block(episodes)
    expected = [chunk.terminated for chunk in episodes.chunks]
    assert expected[1] is not view.is_terminated
    expected[1] = view.is_terminated
    assert type(whole) is WholeBlock and whole.terminateds().tolist() == expected
    assert whole.truncateds().tolist() == [i == 1 for i in range(len(episodes))]


def test_a_sequence_nobody_looked_at_or_that_is_being_recorded_is_used_as_it_is():
    made = recorder()
    assert whole_block(made.episodes) is made.episodes
    fragment = made.harvest(0)
    assert whole_block(fragment) is fragment


def replaced(views):
    views[0].rewards = InfiniteLookbackBuffer(np.ones(len(views[0])), lookback=0)
    return views


STRANGERS = {
    "episodes that own their rows": lambda views: pickle.loads(pickle.dumps(views)),
    "copies of the objects": lambda views: [copy.copy(view) for view in views],
    "another block's views among them": lambda views: views + list(recorder(seed=1).harvest(0)),
    "one that took its rows away": lambda views: [view.own_columns() for view in views[-1:]] and views,
    "one with a column of its own": replaced,
    "no episodes": lambda views: [],
    "a tuple": tuple,
}


@pytest.mark.parametrize("change", STRANGERS)
def test_anything_else_is_not_taken_for_a_block(change):
    assert whole_block(STRANGERS[change](list(recorder().harvest(0)))) is None


def test_views_of_what_is_being_recorded_are_read_one_by_one():
    assert whole_block(list(recorder().episodes)) is None
