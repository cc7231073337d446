"""RLlib's helpers of postprocessing."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from epibatch.learner.postprocessing import value_predictions, zero_padding
from epibatch.learner.postprocessing.episodes import (
    add_one_ts_to_episodes_and_truncate,
    remove_last_ts_from_data,
    remove_last_ts_from_episodes_and_restore_truncateds,
)


def make(steps: int, *, terminated: bool = False, truncated: bool = False, lookback: int = 0) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=[np.float32([i]) for i in range(steps + 1)],
        infos=[{"i": i} for i in range(steps + 1)],
        actions=list(range(steps)),
        rewards=[float(i) for i in range(steps)],
        extra_model_outputs={"vf": [10.0 * i for i in range(steps)]},
        terminated=terminated,
        truncated=truncated,
        len_lookback_buffer=lookback,
        t_started=lookback,
    )


def columns(episode: SingleAgentEpisode) -> list[list[float]]:
    return [
        episode.get_observations().ravel().tolist(),
        [info["i"] for info in episode.get_infos()],
        episode.get_actions().tolist(),
        episode.get_rewards().tolist(),
        episode.get_extra_model_outputs("vf").tolist(),
    ]


def test_one_step_more_and_back_as_rllib_does():
    episodes = [make(3, truncated=True), make(2, terminated=True), make(2), make(4, lookback=2)]
    before = [columns(episode) for episode in episodes]
    truncateds = add_one_ts_to_episodes_and_truncate(episodes)
    assert truncateds == [True, False, False, False]
    assert [columns(episode) for episode in episodes] == [  # recorded from RLlib 2.60
        [[0, 1, 2, 3, 3], [0, 1, 2, 3, 3], [0, 1, 2, 2], [0, 1, 2, 0], [0, 10, 20, 20]],
        [[0, 1, 2, 2], [0, 1, 2, 2], [0, 1, 1], [0, 1, 0], [0, 10, 10]],
        [[0, 1, 2, 2], [0, 1, 2, 2], [0, 1, 1], [0, 1, 0], [0, 10, 10]],
        [[2, 3, 4, 4], [2, 3, 4, 4], [2, 3, 3], [2, 3, 0], [20, 30, 30]],
    ]
    flags = [(episode.is_terminated, episode.is_truncated) for episode in episodes]
    assert flags == [(False, True), (True, False), (False, True), (False, True)]
    assert [episode.t for episode in episodes] == [4, 3, 3, 5]
    for episode in episodes:
        episode.validate()
    remove_last_ts_from_episodes_and_restore_truncateds(episodes, truncateds)
    assert [columns(episode) for episode in episodes] == before
    assert [episode.is_truncated for episode in episodes] == truncateds


def lengthened_by_hand(episode: SingleAgentEpisode) -> None:
    """One step more, by what RLlib's episodes offer for it."""
    episode.t += 1
    for column in (episode.observations, episode.infos, episode.actions, *episode.extra_model_outputs.values()):
        column.append(column[-1])
    episode.rewards.append(0.0)
    episode.is_truncated = episode.is_truncated or not episode.is_done
    episode.validate()


@pytest.mark.parametrize("recorded", [False, True])
def test_columns_may_be_lengthened_by_hand_while_t_is_counted_along(recorded: bool):
    def fresh() -> list[SingleAgentEpisode]:
        return list(of_a_recorder()) if recorded else [make(3), make(2, lookback=1), make(2, terminated=True)]

    by_hand, expected, before = fresh(), fresh(), fresh()
    add_one_ts_to_episodes_and_truncate(expected)
    for episode, other, old in zip(by_hand, expected, before):
        lengthened_by_hand(episode)
        assert episode.t == old.t + 1 == other.t
        for name in ("observations", "infos", "actions", "rewards"):
            mine, theirs = (getattr(each, f"get_{name}")() for each in (episode, other))
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
        assert (episode.is_terminated, episode.is_truncated) == (other.is_terminated, other.is_truncated)
        episode.t -= 1
        columns = (episode.observations, episode.infos, episode.actions, episode.rewards)
        for column in (*columns, *episode.extra_model_outputs.values()):
            column.pop()
        assert (episode.t, episode.get_rewards().tolist()) == (old.t, old.get_rewards().tolist())
        assert episode.get_infos() == old.get_infos()
        episode.validate()


def test_integer_rewards_stay_integers():
    episode = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=np.array([2]), len_lookback_buffer=0)
    add_one_ts_to_episodes_and_truncate([episode])
    assert episode.get_rewards().dtype.kind == "i" and episode.get_rewards().tolist() == [2, 0]


def test_remove_last_ts_from_data():
    one, two = remove_last_ts_from_data([4, 3], np.arange(7.0), np.arange(14).reshape(7, 2))
    assert one.tolist() == [0, 1, 2, 4, 5]
    assert two.tolist() == [[0, 1], [2, 3], [4, 5], [8, 9], [10, 11]]


def test_errors_leave_the_episodes_alone():
    empty = SingleAgentEpisode(observations=[0.0])
    whole = make(2)
    with pytest.raises(EpisodeError, match="at least 1 step"):
        add_one_ts_to_episodes_and_truncate([whole, empty])
    assert len(whole) == 2 and not whole.is_truncated
    with pytest.raises(EpisodeError, match="one per episode"):
        remove_last_ts_from_episodes_and_restore_truncateds([whole], [])
    with pytest.raises(ColumnError, match="expected: 4 rows"):
        remove_last_ts_from_data([4], np.arange(3))


def of_a_recorder():
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 1), np.float32))
    for t in range(3):
        done = np.array([t == 2, False])
        observations = np.full((2, 1), t + 1, np.float32)
        recorder.step(np.array([t, 10 + t]), np.array([1.0, 2.0]), done, np.zeros(2, bool), observations)
    return recorder.flush(0)


def test_rllibs_further_names():
    for name in ("create_mask_and_seq_lens", "split_and_zero_pad_n_episodes", "split_and_zero_pad", "BatchedNdArray"):
        assert callable(getattr(zero_padding, name))
    rows = zero_padding.unpad_data_if_necessary([2, 1], np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]))
    assert rows.tolist() == [1.0, 2.0, 3.0]
    assert callable(value_predictions.compute_value_targets)
