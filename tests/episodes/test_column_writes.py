"""Writing into an episode: setters, types, the provisional observation, who owns the arrays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpisodeIndexError
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)
RUNNING = {"terminated": False, "truncated": False}


def make(n: int = 4, lookback: int = 0) -> SingleAgentEpisode:
    """Observations 0..n, actions 10.., rewards 0, 0.5, 1.0.., one extra of two columns."""
    return SingleAgentEpisode(
        observations=list(range(n + 1)),
        actions=[10 + i for i in range(n)],
        rewards=[0.5 * i for i in range(n)],
        extra_model_outputs={"e": [np.full(2, i, np.float32) for i in range(n)]},
        len_lookback_buffer=lookback,
    )


def step(episode: SingleAgentEpisode, i: int) -> None:
    extras = {"e": np.full(2, i - 1, np.float32)}
    episode.add_env_step(i, 9 + i, 0.5 * (i - 1), extra_model_outputs=extras, **RUNNING)


# ---------------------------------------------------------------- writing
@pytest.mark.parametrize(
    ("indices", "options", "new", "expected"),
    [
        (None, {}, [5, 6], [0, 0.5, 5, 6]),
        (0, {}, 5, [0, 0.5, 5, 1.5]),
        (-4, {}, 5.25, [5.25, 0.5, 1, 1.5]),
        (-1, {"neg_index_as_lookback": True}, 5, [0, 5, 1, 1.5]),
        (slice(-1, 1), {"neg_index_as_lookback": True}, [5, 6], [0, 5, 6, 1.5]),
        ([1, -4], {}, [5, 6], [6, 0.5, 1, 5]),
        (slice(0, 2), {}, np.array([5.0, 6.0]), [0, 0.5, 5, 6]),
    ],
)
def test_set_rewards(indices: Any, options: dict[str, Any], new: Any, expected: list[float]) -> None:
    episode = make(4, 2)
    episode.set_rewards(new_data=new, at_indices=indices, **options)
    np.testing.assert_array_equal(episode.rewards.data, expected)
    assert len(episode) == 2


@pytest.mark.parametrize(("new", "indices"), [([1.0], None), ([1.0], slice(0, 2)), (1.0, 2), (1.0, -5)])
def test_set_with_wrong_indices_changes_nothing(new: Any, indices: Any) -> None:
    episode = make(4, 2)
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:"):
        episode.set_rewards(new_data=new, at_indices=indices)
    np.testing.assert_array_equal(episode.rewards.data, [0, 0.5, 1, 1.5])


def test_set_the_other_columns() -> None:
    episode = make(3)
    episode.set_observations(new_data=[5, 6, 7, 8])
    episode.set_actions(new_data=9, at_indices=-1)
    episode.set_extra_model_outputs(key="e", new_data=np.ones(2, np.float32), at_indices=0)
    np.testing.assert_array_equal(episode.get_observations(), [5, 6, 7, 8])
    np.testing.assert_array_equal(episode.get_actions(), [10, 11, 9])
    np.testing.assert_array_equal(episode.get_extra_model_outputs("e"), [[1, 1], [1, 1], [2, 2]])


def test_a_fraction_written_into_integers_makes_the_column_float() -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[1, 2], len_lookback_buffer=0)
    assert episode.get_rewards().dtype == np.int64
    episode.set_rewards(new_data=0.5, at_indices=0)
    np.testing.assert_array_equal(episode.get_rewards(), [0.5, 2])
    episode.add_env_step(3, 0.25, 3, terminated=False, truncated=False)
    np.testing.assert_array_equal(episode.get_actions(), [0, 0, 0.25])


def test_numeric_getters_write_through() -> None:
    episode = make(3, 1)
    rewards, observations, extra = episode.get_rewards(), episode.get_observations(), episode.get_extra_model_outputs
    rewards += 5
    observations += 100
    extra("e")[:] = 7
    extra("e", 0)[0] = 8
    np.testing.assert_array_equal(episode.rewards.data, [0, 5.5, 6])
    np.testing.assert_array_equal(episode.observations.data, [0, 101, 102, 103])
    np.testing.assert_array_equal(episode.extra_model_outputs["e"].data, [[0, 0], [8, 7], [7, 7]])
    step(episode, 4)
    np.testing.assert_array_equal(episode.observations.data, [0, 101, 102, 103, 4])


def test_a_leaf_of_changing_shape_becomes_an_object_column_alone() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({"a": np.zeros(2), "b": 0})
    for i in (1, 2, 3):
        episode.add_env_step({"a": np.full(2 + i, i), "b": i}, 0, 0.0, terminated=False, truncated=False)
    found = episode.get_observations(slice(0, 4))
    assert found["a"].dtype == object and [row.shape for row in found["a"]] == [(2,), (3,), (4,), (5,)]
    np.testing.assert_array_equal(found["a"][2], [2, 2, 2, 2])
    np.testing.assert_array_equal(episode.get_observations(1)["a"], [1, 1, 1])
    assert found["b"].dtype == np.int64


def test_text_observations_stay_text() -> None:
    episode = SingleAgentEpisode(observation_space=gym.spaces.Text(9))
    words = ["north", "east", "up"]
    episode.add_env_reset(words[0])
    for word in words[1:]:
        episode.add_env_step(word, 0, 0.0, **RUNNING)
        found = episode.get_observations()
        assert [type(item) for item in found] == [str] * len(found)
    assert list(episode.get_observations()) == words and episode.get_observations(-1) == "up"


def test_the_newest_observation_is_provisional() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({"x": np.zeros(2, np.float64), "n": 0})
    for i in range(1, 5):
        raw = episode.get_observations(-1)
        assert raw["n"] == i - 1
        flat = np.concatenate([raw["x"], [raw["n"]]]).astype(np.float32)
        episode.set_observations(new_data=flat, at_indices=-1)
        np.testing.assert_array_equal(episode.get_observations(-1), flat)
        obs = {"x": np.full(2, i, np.float64), "n": i}
        episode.add_env_step(obs, 0, 0.0, terminated=False, truncated=i == 4)
    episode.set_observations(new_data=np.full(3, 4, np.float32), at_indices=-1)
    found = episode.get_observations()
    assert found.dtype == np.float32 and episode.is_truncated
    np.testing.assert_array_equal(found, [[i, i, i] for i in range(5)])


def test_a_piece_may_write_observations_and_point_the_episode_to_their_space() -> None:
    flat_space = gym.spaces.Box(-100, 100, (3,), np.float32)
    episode = SingleAgentEpisode(observation_space=flat_space)
    episode.add_env_reset(np.zeros(3, np.float32))
    assert episode.observations.space == flat_space
    episode.observation_space, episode.action_space = BOX, gym.spaces.Discrete(2)
    episode.set_observations(new_data=np.ones(2, np.float32), at_indices=-1)
    np.testing.assert_array_equal(episode.observations.get(-5, fill=1), [1, 1])
    assert episode.observations.space == BOX and episode.actions.space == gym.spaces.Discrete(2)


RAW = {"x": np.zeros(2), "n": 0}
READERS: dict[str, Callable[[SingleAgentEpisode], Any]] = {
    "data": lambda e: e.observations.data,
    "get": lambda e: e.get_observations(),
    "slice": lambda e: e[0 : len(e)],
    "cut": lambda e: e.cut(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda e: pickle.dumps(e, protocol=5),
    "state": lambda e: e.get_state(),
    "validate": lambda e: e.validate(),
    "repr": repr,
}


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("reader", READERS)
def test_reading_leaves_the_newest_observation_provisional(reader: str, steps_before: int) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(RAW)
    for i in range(steps_before + 1):
        if i == steps_before:
            READERS[reader](episode)
            assert episode.get_observations(-1)["n"] == 0
        episode.set_observations(new_data=np.full(3, i, np.float32), at_indices=-1)
        episode.add_env_step(RAW, 0, 0.0, **RUNNING)
    episode.set_observations(new_data=np.full(3, steps_before + 1, np.float32), at_indices=-1)
    found = episode.get_observations()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[i] * 3 for i in range(steps_before + 2)])


@pytest.mark.parametrize("clone", ["state", "pickle", "deepcopy"])
def test_a_copy_goes_on_like_its_original(clone: str) -> None:
    """The raw observations still fit although a piece pointed the episode to the space of its output."""
    episode = SingleAgentEpisode(observation_space=gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(3)}))
    raw = {"x": np.zeros(2, np.float32), "n": 0}
    episode.add_env_reset(raw)
    episode.observation_space = gym.spaces.Box(-9, 9, (3,), np.float32)
    episode.set_observations(new_data=np.zeros(3, np.float32), at_indices=-1)
    twin = {
        "state": lambda: SingleAgentEpisode.from_state(episode.get_state()),
        "pickle": lambda: pickle.loads(pickle.dumps(episode)),
        "deepcopy": lambda: copy.deepcopy(episode),
    }[clone]()
    for one in (episode, twin):
        one.add_env_step(raw, 0, 0.0, **RUNNING)
        one.set_observations(new_data=np.ones(3, np.float32), at_indices=-1)
        np.testing.assert_array_equal(one.get_observations(), [[0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize("done", [False, True])
def test_getters_of_stepped_episodes_write_through_up_to_the_newest_row(done: bool) -> None:
    episode = SingleAgentEpisode(observation_space=BOX)
    episode.add_env_reset(np.zeros(2, np.float32))
    for i in (1, 2):
        episode.add_env_step(np.full(2, i, np.float32), 0, float(i), terminated=done and i == 2, truncated=False)
    observations, rewards = episode.get_observations(), episode.get_rewards()
    observations += 10
    rewards *= 2
    last = episode.get_observations(-1)
    last += 0.5
    np.testing.assert_array_equal(episode.get_observations(), [[10, 10], [11, 11], [12.5, 12.5]])
    np.testing.assert_array_equal(episode.get_rewards(), [2, 4])


# ---------------------------------------------------------------- ownership
def test_the_constructor_keeps_nothing_of_the_callers() -> None:
    observations, rewards, infos, extras = [np.zeros(2), np.ones(2)], [1.0], [{}, {}], {"e": [np.zeros(1)]}
    episode = SingleAgentEpisode(
        observations=observations, actions=[0], rewards=rewards, infos=infos, extra_model_outputs=extras,
        len_lookback_buffer=0,
    )  # fmt: skip
    episode.add_env_step(
        np.full(2, 2.0), 1, 2.0, {"k": 1}, terminated=False, truncated=False, extra_model_outputs={"e": np.ones(1)}
    )
    assert [len(x) for x in (observations, rewards, infos, extras["e"])] == [2, 1, 2, 1]
    observations[0][:] = 9
    observations.append(np.zeros(2))
    extras["e"][0][:] = 9
    rewards[0] = 9.0
    np.testing.assert_array_equal(episode.get_observations(), [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(episode.get_rewards(), [1, 2])
    np.testing.assert_array_equal(episode.get_extra_model_outputs("e"), [[0], [1]])


def test_arrays_given_at_a_step_may_be_reused_by_the_environment() -> None:
    shared = np.zeros(2, np.float32)
    episode = SingleAgentEpisode(observation_space=BOX)
    episode.add_env_reset(shared)
    for i in (1, 2):
        shared = shared.copy()
        shared[:] = i
        episode.add_env_step(shared, np.array([i]), 0.0, terminated=False, truncated=False)
    episode.add_env_step(np.full(2, 3, np.float32), np.array([3]), 0.0, terminated=False, truncated=False)
    shared[:] = 99  # committed by the step after it
    np.testing.assert_array_equal(episode.get_observations(), [[0, 0], [1, 1], [2, 2], [3, 3]])


@pytest.mark.parametrize("how", ["constructor", "step", "set"])
def test_rows_of_object_columns_are_copies_as_well(how: str) -> None:
    rows = [np.zeros(1), np.zeros(2), np.zeros(3)]
    if how == "constructor":
        episode = SingleAgentEpisode(
            observations=[0, 1, 2, 3], actions=list(rows), rewards=[0.0] * 3, len_lookback_buffer=0,
            extra_model_outputs={"e": list(rows)},
        )  # fmt: skip
    else:
        episode = SingleAgentEpisode()
        episode.add_env_reset(0)
        for row in rows:
            first = row if how == "step" else np.ones(len(row))
            episode.add_env_step(0, first, 0.0, extra_model_outputs={"e": first}, **RUNNING)
    if how == "set":
        for i, row in enumerate(rows):
            episode.set_actions(new_data=row, at_indices=i)
            episode.set_extra_model_outputs(key="e", new_data=row, at_indices=i)
    for row in rows:
        row += 9
    for column in (episode.get_actions(), episode.get_extra_model_outputs("e")):
        assert column.dtype == object and [float(row.sum()) for row in column] == [0.0, 0.0, 0.0]


def test_setting_does_not_keep_the_callers_array() -> None:
    episode = make(2)
    new = np.array([5.0, 6.0])
    episode.set_rewards(new_data=new)
    new += 1
    np.testing.assert_array_equal(episode.get_rewards(), [5, 6])
    rewards = episode.get_rewards()
    rewards += 1
    np.testing.assert_array_equal(new, [6, 7])


# ---------------------------------------------------------------- a refused write changes nothing
@pytest.mark.parametrize(
    ("action", "extra"),
    [({"b": 1}, {"e": 0}), (1, {"e": 0}), ({"a": 1}, {"e": {"nested": 0}}), (({"a": 1},), {"e": 0})],
)
def test_a_refused_step_leaves_the_episode_as_it_was(action: Any, extra: Any) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    for i in (1, 2):
        episode.add_env_step(i, {"a": i}, 1.0, extra_model_outputs={"e": i}, **RUNNING)
    with pytest.raises(ValueError, match=r"expected:[\s\S]*found:"):
        episode.add_env_step(3, action, 1.0, extra_model_outputs=extra, **RUNNING)
    episode.validate()
    assert len(episode) == 2
    episode.add_env_step(3, {"a": 3}, 1.0, extra_model_outputs={"e": 3}, **RUNNING)
    np.testing.assert_array_equal(episode.get_observations(), [0, 1, 2, 3])
    np.testing.assert_array_equal(episode.get_actions()["a"], [1, 2, 3])


def test_an_observation_of_another_nesting_is_refused_without_loss() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({"x": 0})
    episode.add_env_step({"x": 1}, 0, 1.0, **RUNNING)

    def refused() -> None:  # at the step that brings it, or at the one that commits it
        episode.add_env_step({"y": 2}, 0, 1.0, **RUNNING)
        episode.add_env_step({"x": 3}, 0, 1.0, **RUNNING)

    with pytest.raises(ValueError, match=r"expected:[\s\S]*found:"):
        refused()
    episode.validate()
    np.testing.assert_array_equal(episode.get_observations(slice(0, 2))["x"], [0, 1])


def test_nested_observations_can_be_written_back() -> None:
    space = gym.spaces.Dict(a=gym.spaces.Discrete(9), b=BOX)
    rows = [{"a": i, "b": np.full(2, i, np.float32)} for i in range(3)]
    episode = SingleAgentEpisode(
        observations=rows, actions=[0, 0], rewards=[0.0, 0.0], observation_space=space, len_lookback_buffer=0
    ).to_numpy()
    episode.set_observations(new_data=episode.get_observations(-1), at_indices=0)
    assert episode.get_observations()["a"].tolist() == [2, 1, 2]
    assert episode.get_observations()["b"].tolist() == [[2, 2], [1, 1], [2, 2]]
