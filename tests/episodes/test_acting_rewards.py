from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.episodes._parts.acting_rewards import ActingRewards, known

REWARDS = [1.0, 2.0, float("nan"), 4.0]


@pytest.mark.parametrize("indices", [0, -1, [0, -1], slice(0, 2), slice(None, 2)])
def test_given_rewards_are_read(indices):
    read = ActingRewards(REWARDS).get(indices)
    expected = np.array(REWARDS)[indices]
    assert np.array_equal(read, expected)


@pytest.mark.parametrize("indices", [2, -2, [0, 2], slice(1, None), slice(None, None, 2), None])
def test_a_reward_that_nobody_gave_is_not(indices):
    with pytest.raises(ColumnError, match=r"none for 1 of them[\s\S]*reward=reward"):
        ActingRewards(REWARDS).get(indices)


def test_rows_that_are_filled_do_not_count():
    assert ActingRewards(REWARDS[:2]).get([0, 5], fill=0.0).tolist() == [1.0, 0.0]
    with pytest.raises(ColumnError, match="none for 1"):
        ActingRewards(REWARDS).get([2, 5], fill=0.0)


def test_known_rewards_pass_as_they_are():
    rewards = np.array([1.0, 2.0])
    assert known(rewards) is rewards
    with pytest.raises(ColumnError, match="none for 2"):
        known(np.full(2, np.nan))
