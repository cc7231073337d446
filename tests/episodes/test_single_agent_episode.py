"""Episodes of one agent: facts, growth, equality, refusals, parts of them and their copies."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpibatchError, EpisodeError, EpisodeStateError
from epibatch.episodes import SingleAgentEpisode
from fixture_episodes import numbered

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)


DICT = gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(9)})


# ---------------------------------------------------------------- construction, lookback, growth


def test_a_new_episode_is_empty_and_is_an_array_episode_from_the_start() -> None:
    episode = SingleAgentEpisode(id_="x", agent_id="a", module_id="m", multi_agent_episode_id="ma", t_started=0)
    assert (episode.id_, episode.agent_id, episode.module_id, episode.multi_agent_episode_id) == ("x", "a", "m", "ma")
    assert (len(episode), episode.t, episode.is_reset, episode.is_done, episode.is_numpy) == (0, 0, False, False, True)
    assert episode.to_numpy() is episode and episode.custom_data == {}
    assert SingleAgentEpisode().id_ != SingleAgentEpisode().id_


def test_columns_given_as_arrays_and_structs_work_like_lists() -> None:
    stacked = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "n": np.arange(3)}
    rows = [{"x": stacked["x"][i], "n": i} for i in range(3)]
    for observations in (stacked, rows):
        episode = SingleAgentEpisode(
            observations=observations, actions=np.arange(2), rewards=np.array([1.0, 2.0]), len_lookback_buffer=0
        )
        np.testing.assert_array_equal(episode.get_observations()["x"], stacked["x"])
        np.testing.assert_array_equal(episode.get_observations(1)["n"], 1)
        assert len(episode) == 2 and episode.get_return() == 3.0 and episode.get_infos() == [{}, {}, {}]


# ---------------------------------------------------------------- what it refuses
def test_state_errors_are_named_and_are_assertion_errors() -> None:
    empty, running = SingleAgentEpisode(), SingleAgentEpisode()
    running.add_env_reset(0)
    done = numbered(terminated=True)
    options = {"terminated": False, "truncated": False}
    for call, words in (
        (lambda: empty.add_env_step(0, 0, 0.0, **options), "reset"),
        (lambda: running.add_env_reset(0), "reset"),
        (lambda: numbered().add_env_reset(0), "reset"),
        (lambda: done.add_env_step(0, 0, 0.0, **options), "ended|done"),
        (done.cut, "ended|done"),
    ):
        with pytest.raises(EpisodeStateError, match=words) as caught:
            call()
        assert isinstance(caught.value, AssertionError) and "found:" in str(caught.value)
    assert len(empty) == 0 and not empty.is_reset
    assert len(done) == 4 and len(done.get_observations()) == 5


@pytest.mark.parametrize(
    ("space", "good", "bad", "words"),
    [
        (BOX, np.zeros(2, np.float32), np.zeros(3, np.float32), r"\(2,\)[\s\S]*\(3,\)"),
        (BOX, np.zeros(2, np.float32), 1.0, r"\(2,\)[\s\S]*found: +(\(\)|float)"),
        (gym.spaces.Discrete(3), 1, np.zeros(2), r"\(\)[\s\S]*\(2,\)"),
        (DICT, {"x": np.zeros(2, np.float32), "n": 0}, {"x": np.zeros((1, 2), np.float32), "n": 0}, r"\(1, 2\)"),
        (DICT, {"x": np.zeros(2, np.float32), "n": 0}, {"x": np.zeros(2, np.float32)}, "n"),
        (gym.spaces.Tuple((BOX, BOX)), (np.zeros(2), np.zeros(2)), (np.zeros(2),), "found"),
    ],
)
@pytest.mark.parametrize("steps_before", [0, 1, 99, 100])
def test_an_observation_of_another_shape_than_its_space(
    space: Any, good: Any, bad: Any, words: str, steps_before: int
) -> None:
    options = {"terminated": False, "truncated": False}
    episode = SingleAgentEpisode(observation_space=space)
    with pytest.raises(EpibatchError, match=words):
        episode.add_env_reset(bad)
    episode.add_env_reset(good)
    for _ in range(steps_before):
        episode.add_env_step(good, 0, 0.0, **options)
    with pytest.raises(EpibatchError, match=words):
        episode.add_env_step(bad, 0, 0.0, **options)
    episode.validate()  # the refused step left nothing behind
    assert len(episode) == steps_before
    episode.add_env_step(good, 0, 0.0, **options)
    assert len(episode) == steps_before + 1


def test_values_out_of_bounds_and_other_float_types_are_accepted() -> None:
    episode = SingleAgentEpisode(observation_space=BOX)
    episode.add_env_reset(np.full(2, 1e6, np.float64))
    episode.add_env_step(np.full(2, -1e6, np.float64), 0, 0.0, terminated=False, truncated=False)
    np.testing.assert_array_equal(episode.get_observations(), [[1e6, 1e6], [-1e6, -1e6]])


@pytest.mark.parametrize("extras", [{"e": np.ones(2), "late_key": 1}, {"late_key": 1}, {}, None])
def test_extra_keys_must_stay_the_same(extras: Any) -> None:
    episode = numbered(2)
    word = "late_key" if extras else "e"
    with pytest.raises(EpisodeError, match=rf"{word}[\s\S]*found:|found:[\s\S]*{word}"):
        episode.add_env_step(9, 9, 9.0, terminated=False, truncated=False, extra_model_outputs=extras)
    episode.validate()
    assert len(episode) == 2 and list(episode.extra_model_outputs) == ["e"]


# ---------------------------------------------------------------- identity and value
def test_episodes_are_equal_by_identity_and_equal_in_value_by_name() -> None:
    episode = numbered(3)
    episode.custom_data["k"] = [np.arange(3), float("nan")]
    twin = copy.deepcopy(episode)
    assert episode != twin and len({episode, twin, episode}) == 2 and [twin, episode].index(episode) == 1
    assert episode.equals(episode) and episode.equals(twin) and not episode.equals(None)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: setattr(e, "is_terminated", True),
        lambda e: setattr(e, "t_started", 2),
        lambda e: setattr(e, "id_", "another"),
        lambda e: e.set_rewards(new_data=9.0, at_indices=0),
        lambda e: e.set_actions(new_data=e.get_actions() + 0.0),
        lambda e: e.set_infos(new_data={"i": np.zeros(2)}, at_indices=0),
        lambda e: e.set_extra_model_outputs(key="e", new_data=np.ones(2), at_indices=0),
        lambda e: e.custom_data.update(k=np.zeros(2)),
        lambda e: e.add_env_step(5, 6, 7.0, extra_model_outputs={"e": np.zeros(2)}),
    ],
)
def test_any_difference_makes_episodes_unequal(change: Any) -> None:
    episode = numbered()
    episode.set_infos(new_data={"i": np.ones(2)}, at_indices=0)
    twin = copy.deepcopy(episode)
    assert episode.equals(twin)
    change(twin)
    assert not episode.equals(twin) and not twin.equals(episode)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ([np.arange(2), (1, float("nan"))], [np.arange(2), (1, np.nan)], True),
        (np.arange(2), np.arange(2.0), False),
        ({"k": 1}, {"k": 1, "m": 2}, False),
        ([1, 2], (1, 2), False),
        ([1, 2], [1, 2, 3], False),
        (np.zeros(2), [0, 0], False),
        (np.float32(1), np.ones(1, np.float32), False),
        (1, np.int64(1), True),
    ],
)
def test_custom_data_is_compared_at_any_depth(left: Any, right: Any, same: bool) -> None:
    one, other = numbered(id_="e"), numbered(id_="e")
    one.custom_data["x"], other.custom_data["x"] = left, right
    assert one.equals(other) is other.equals(one) is same


@pytest.mark.parametrize(("name", "setter"), [("rewards", "set_rewards"), ("observations", "set_observations")])
def test_something_in_the_place_of_a_column_is_named(name, setter):
    episode = SingleAgentEpisode("e", observations=[0, 1], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    setattr(episode, name, [5.0])
    with pytest.raises(EpisodeError, match=rf"episode 'e', column[\s\S]*list in its place[\s\S]*episode\.{setter}\("):
        episode.validate()


def test_duration_grows_with_the_steps() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    assert episode.get_duration_s() == 0.0
    episode.add_env_step(1, 0, 0.0)
    first = episode.get_duration_s()
    episode.add_env_step(1, 0, 0.0)
    assert 0.0 < first < episode.get_duration_s() < 10.0


def test_unknown_extra_key_is_an_error_naming_the_known_ones() -> None:
    with pytest.raises(KeyError, match="e"):
        numbered().get_extra_model_outputs("ee")
    with pytest.raises(EpibatchError, match="nope"):
        numbered().set_extra_model_outputs(key="nope", new_data=[1])


def test_a_fill_value_that_no_row_needs_may_be_of_another_kind():
    space = gym.spaces.MultiBinary(1)
    episode = SingleAgentEpisode(observations=[np.array([1], np.int8)], observation_space=space)
    rows = episode.get_observations(fill=float("nan"), one_hot_discrete=True)
    assert rows.tolist() == [[1]] and rows.dtype == np.int8


# ---------------------------------------------------------------- refusals and flags


def test_an_episode_that_was_not_reset() -> None:
    empty = SingleAgentEpisode()
    assert len(empty[0:3]) == 0 and not empty[:].is_reset
    with pytest.raises(AssertionError, match="was not reset"):
        empty.cut()


def added_by_hand(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    out = episode[:]
    out.is_terminated = out.is_truncated = False
    out.given_observation_space = None
    out.add_env_step(
        out.get_observations(-1),
        out.get_actions(-1),
        0.0,
        out.get_infos(-1),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated or not episode.is_terminated,
        extra_model_outputs={key: out.get_extra_model_outputs(key, -1) for key in out.extra_model_outputs},
    )
    return out


ROWS_TO_REPEAT: dict[str, Any] = {
    "numbers": {"observations": [0.5, 1.5, 2.5], "actions": [0, 1], "rewards": [1.0, 2.0]},
    "whole_rewards": {"observations": [0, 1, 2], "actions": [0, 1], "rewards": np.array([1, 2])},
    "vectors": {"observations": np.eye(3), "actions": np.ones((2, 4), np.float32), "rewards": [1.0, 2.0]},
    "nested": {
        "observations": [{"a": np.full(2, i), "b": (i, 0.5)} for i in range(3)],
        "actions": [{"left": 1}, {"left": 2}],
        "rewards": [1.0, 2.0],
        "extra_model_outputs": {"state": {"h": np.ones((2, 3)), "c": np.zeros((2, 3))}, "logp": [0.1, 0.2]},
    },
    "objects": {
        "observations": [np.ones(1), np.ones(2), np.ones(3)],
        "actions": ["left", "right"],
        "rewards": np.ones((2, 2)),
        "infos": [{}, {"seen": 1}, {"seen": 2}],
    },
}


@pytest.mark.parametrize("rows", ROWS_TO_REPEAT)
@pytest.mark.parametrize("lookback", [0, 1])
@pytest.mark.parametrize("ends", [(False, False), (True, False), (False, True)])
def test_the_copy_is_the_episode_with_a_step_added_by_hand(rows: str, lookback: int, ends: tuple[bool, bool]) -> None:
    terminated, truncated = ends
    episode = SingleAgentEpisode(
        id_="a",
        len_lookback_buffer=lookback,
        terminated=terminated,
        truncated=truncated,
        t_started=3,
        **ROWS_TO_REPEAT[rows],
    )
    before = copy.deepcopy(episode)
    out = episode.with_artificial_step()
    assert out.equals(added_by_hand(episode))
    assert (len(out), out.t_started, out.observations.t_started) == (len(episode) + 1, 3, 3)
    out.set_rewards(new_data=5.0, at_indices=0)
    out.get_infos(-1)["new"] = 1
    assert episode.equals(before)
    assert out.get_infos(-2) == before.get_infos(-1)


def test_a_newest_observation_of_another_shape_may_be_replaced_once_more() -> None:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(np.zeros(2))
    episode.add_env_step(np.ones(2), 1, 1.0)
    episode.set_observations(new_data=np.ones(3), at_indices=-1)
    out = episode.with_artificial_step()
    assert out.equals(added_by_hand(episode))
    out.set_observations(new_data=np.full(5, 7.0), at_indices=-1)
    assert out.get_observations(-1).tolist() == [7.0] * 5


def test_an_observation_that_is_nested_differently_is_named() -> None:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset({"a": 1.0})
    episode.add_env_step({"a": 2.0}, 1, 1.0)
    episode.set_observations(new_data={"b": 2.0}, at_indices=-1)
    with pytest.raises(ColumnError, match="episode a, column 'obs' at t=1"):
        episode.with_artificial_step()


@pytest.mark.parametrize("index", [0, -1, np.int64(0)])
def test_single_steps_are_not_episodes(index: Any) -> None:
    with pytest.raises(NotImplementedError):
        numbered()[index]


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_joined_chunks_have_both_flags_of_the_last_one(terminated, truncated):
    """A time limit may fall on the step that terminates: gymnasium's TimeLimit then sets both."""
    joined = SingleAgentEpisode()
    joined.add_env_reset(0)
    joined.add_env_step(1, 0, 1.0)
    last = joined.cut()
    last.add_env_step(2, 0, 1.0, terminated=terminated, truncated=truncated)
    joined.concat_episode(last)
    assert (joined.is_terminated, joined.is_truncated) == (terminated, truncated)
