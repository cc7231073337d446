from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes._parts.acting_history import ActingHistory

SPACES = (gym.spaces.Dict(x=gym.spaces.Box(-9, 9, (2,))), gym.spaces.Discrete(5))


def rows(value, n=3):
    return {"x": np.full((n, 2), value, np.float32) + np.arange(n, dtype=np.float32)[:, None] * 100}


def test_a_part_without_leaves_comes_first():
    history = ActingHistory.start({"a": {}, "x": np.zeros((4, 2))}, (None, None))
    assert len(history.episodes) == 4


def walk(steps, lookback, starts=None):
    """A history of `steps` steps in three environments, and the same episodes recorded one by one."""
    history = ActingHistory.start(rows(0), SPACES, {"t": np.zeros(3, int)})
    history.commit()
    slow = [new_episode(i, rows(0), 0) for i in range(3)]
    for t in range(1, steps + 1):
        begun = np.zeros(3, bool) if starts is None else starts[t - 1]
        history = history.after(
            observations=rows(t),
            actions=np.arange(3) + t,
            rewards=np.arange(3.0) * t,
            outputs={"state_out": {"h": np.full((3, 1), t)}},
            lookback=lookback,
            starts=begun,
            infos={"t": np.full(3, t)},
        )
        history.commit()
        for i in range(3):
            if begun[i]:
                slow[i] = new_episode(i, rows(t), t)
                continue
            slow[i].add_env_step(
                {"x": rows(t)["x"][i]},
                i + t,
                float(i * t),
                {"t": t},
                extra_model_outputs={"state_out": {"h": np.array([t])}},
            )
    return history, slow


def new_episode(i, observations, t):
    episode = SingleAgentEpisode(str(i))
    episode.add_env_reset({"x": observations["x"][i]}, {"t": t})
    return episode


@pytest.mark.parametrize("lookback", [0, 1, 3, 20])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_the_newest_rows_are_those_of_a_recorded_episode(steps, lookback):
    starts = np.zeros((steps, 3), bool)
    starts[min(2, steps - 1) :: 4, 1] = True
    history, slow = walk(steps, lookback, starts)
    for own, episode in zip(history.episodes, slow):
        kept = min(lookback + 1, episode.t)
        assert own.t == episode.t
        for back in range(1, kept + 1):
            assert own.get_actions(-back) == episode.get_actions(-back)
            assert own.get_rewards(-back) == episode.get_rewards(-back)
            assert own.get_extra_model_outputs("state_out", -back) == episode.get_extra_model_outputs(
                "state_out", -back
            )
        for back in range(1, kept + 2):
            np.testing.assert_array_equal(own.get_observations(-back)["x"], episode.get_observations(-back)["x"])
            assert own.get_infos(-back) == episode.get_infos(-back)
        assert own.observations.len_incl_lookback() == kept + 1


def test_a_history_stays_as_it_is():
    history, _ = walk(4, 2)
    before = [episode.get_state() for episode in history.episodes]
    for value in (7, 8):
        later = history.after(
            observations=rows(value), actions=np.zeros(3, int), rewards=np.zeros(3), lookback=2,
            outputs={"state_out": {"h": np.zeros((3, 1))}},
        )  # fmt: skip
        later.episodes[0].set_observations(new_data={"x": np.full(2, -1.0)}, at_indices=-1)
        later.episodes[0].custom_data["seen"] = value
        later.commit()
    for state, episode in zip(before, history.episodes):
        after = episode.get_state()
        np.testing.assert_array_equal(state["observations"]["x"], after["observations"]["x"])
        assert state["custom_data"] == after["custom_data"] == {}


def test_custom_data_is_carried_and_copied():
    history = ActingHistory.start(rows(0), SPACES)
    history.episodes[1].custom_data["goal"] = [1]
    history.commit()
    step = {"actions": np.zeros(3, int), "rewards": np.zeros(3), "outputs": {}, "lookback": 0}
    later = history.after(observations=rows(1), **step)
    assert later.episodes[1].custom_data == {"goal": [1]}
    later.episodes[1].custom_data["goal"].append(2)
    assert history.episodes[1].custom_data == {"goal": [1]}
    fresh = history.after(observations=rows(1), starts=np.ones(3, bool), **step)
    assert fresh.episodes[1].custom_data == {}
    assert fresh.episodes[1].id_ != later.episodes[1].id_ == history.episodes[1].id_


def test_infos_one_by_one():
    history = ActingHistory.start(rows(0), SPACES, [{"a": 1}, {"b": 2}, {}])
    assert [episode.get_infos(-1) for episode in history.episodes] == [{"a": 1}, {"b": 2}, {}]


def test_rows_and_outputs_that_do_not_fit():
    history, _ = walk(2, 1)
    step = {"observations": rows(3), "actions": np.zeros(3, int), "rewards": np.zeros(3), "lookback": 1}
    with pytest.raises(EpisodeError, match=r"(?s)\['state_out'\].*found:    \['vf_preds'\]"):
        history.after(outputs={"vf_preds": np.zeros(3)}, **step)
    with pytest.raises(ColumnError, match="3 rows, one per environment"):
        history.after(outputs={"state_out": {"h": np.zeros((2, 1))}}, **step)
