"""Episodes of one agent: facts, growth, equality, refusals, parts of them and their copies."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpibatchError, EpisodeError, EpisodeStateError
from epibatch.episodes import SingleAgentEpisode
from fixture_episodes import add_numbered, check_numbered, numbered

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)


DICT = gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(9)})


# ---------------------------------------------------------------- construction, lookback, growth
@pytest.mark.parametrize(
    ("lookback", "t_started", "expected_lookback", "t"),
    [("auto", None, 4, (0, 0, 0)), (2, None, 2, (0, 2, 2)), (2, 10, 2, (10, 12, 2)), (9, 3, 4, (3, 3, 0))],
)
def test_lookback_of_given_data(lookback: Any, t_started: Any, expected_lookback: int, t: tuple[int, ...]) -> None:
    check_numbered(
        numbered(4, lookback, t_started=t_started), 0, 4, lookback={expected_lookback}, t=t, flags=(False, False)
    )


def test_getters_return_what_follows_the_lookback() -> None:
    episode = numbered(4, 2)
    np.testing.assert_array_equal(episode.get_observations(), [2, 3, 4])
    np.testing.assert_array_equal(episode.get_actions(), [12, 13])
    np.testing.assert_array_equal(episode.get_rewards(), [1.0, 1.5])
    np.testing.assert_array_equal(episode.get_extra_model_outputs("e"), [[2, 2], [3, 3]])
    assert episode.get_infos() == [{"i": 2}, {"i": 3}, {"i": 4}]
    assert episode.get_return() == 2.5 and episode.env_steps() == 2 and episode.agent_steps() == 2


def test_a_new_episode_is_empty_and_is_an_array_episode_from_the_start() -> None:
    episode = SingleAgentEpisode(id_="x", agent_id="a", module_id="m", multi_agent_episode_id="ma", t_started=0)
    assert (episode.id_, episode.agent_id, episode.module_id, episode.multi_agent_episode_id) == ("x", "a", "m", "ma")
    assert (len(episode), episode.t, episode.is_reset, episode.is_done, episode.is_numpy) == (0, 0, False, False, True)
    assert episode.to_numpy() is episode and episode.custom_data == {}
    assert SingleAgentEpisode().id_ != SingleAgentEpisode().id_


def test_reset_and_steps() -> None:
    episode = SingleAgentEpisode(observation_space=DICT, action_space=gym.spaces.Discrete(3))
    rows = [{"x": np.array([i, i], np.float32), "n": i} for i in range(4)]
    episode.add_env_reset(rows[0], {"seed": 1})
    assert episode.is_reset and len(episode) == 0 and episode.get_infos() == [{"seed": 1}]
    np.testing.assert_array_equal(episode.get_observations(-1)["x"], [0, 0])
    for i in (1, 2, 3):
        episode.add_env_step(rows[i], i - 1, float(i), terminated=i == 3, truncated=False)
    found = episode.get_observations()
    assert found["x"].shape == (4, 2) and found["x"].dtype == np.float32
    np.testing.assert_array_equal(found["n"], [0, 1, 2, 3])
    assert (episode.t, len(episode), episode.is_terminated, episode.is_truncated, episode.is_done) == (3, 3, *FLAGS)
    assert episode.get_rewards().dtype == np.float64 and episode.get_actions().dtype == np.int64
    assert episode.get_infos() == [{"seed": 1}, {}, {}, {}]
    assert episode.to_numpy() is episode and isinstance(episode.infos.data, list)
    assert episode.get_duration_s() >= 0.0


FLAGS = (True, False, True)


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


@pytest.mark.parametrize(
    "columns",
    [
        {"observations": [0, 1], "actions": [0, 1], "rewards": [0.0]},
        {"observations": [0, 1], "actions": [0], "rewards": [0.0], "infos": [{}]},
        {"observations": [0, 1], "actions": [0], "rewards": [0.0], "extra_model_outputs": {"e": [1, 2, 3]}},
        {"observations": [0], "actions": [0], "rewards": [0.0]},
    ],
)
def test_columns_of_unequal_length(columns: dict[str, Any]) -> None:
    with pytest.raises(EpisodeError, match=r"expected:[\s\S]*found:"):
        SingleAgentEpisode(**columns)


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


def three_steps(**options: bool) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 4.0], t_started=9, len_lookback_buffer=1,
        extra_model_outputs={"e": [0.0, 0.1, 0.2]}, **options,
    )  # fmt: skip


def test_lengths_and_times() -> None:
    episode = three_steps()
    assert (len(episode), episode.env_steps(), episode.agent_steps(), episode.lookback) == (2, 2, 2, 1)
    assert (episode.t_started, episode.t) == (9, 11)
    episode.t_started = 3
    assert episode.t == 5 and episode.observations.t_started == episode.extra_model_outputs["e"].t_started == 3


@pytest.mark.parametrize(("terminated", "truncated"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_data_dict_has_the_flags_at_its_last_step(terminated: bool, truncated: bool) -> None:
    episode = three_steps(terminated=terminated, truncated=truncated)
    data = episode.get_data_dict()
    assert episode.is_done == (terminated or truncated)
    assert {key: list(value) for key, value in data.items() if key != "infos"} == {
        "obs": [1, 2], "actions": [6, 7], "rewards": [2.0, 4.0], "e": [0.1, 0.2],
        "terminateds": [False, terminated], "truncateds": [False, truncated], "t": [9, 10], "eps_id": [episode.id_] * 2,
    }  # fmt: skip
    assert data["infos"] == [{}, {}]


def test_totals_of_an_episode_without_steps() -> None:
    episode = SingleAgentEpisode()
    assert (episode.get_return(), episode.get_duration_s(), episode.is_reset) == (0.0, 0.0, False)
    assert [len(column) for column in episode.get_data_dict().values()] == [0] * 8
    assert three_steps().get_return() == 6.0


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


@pytest.mark.parametrize(("k", "kept"), [(0, 0), (1, 1), (3, 3), (99, 6)])
def test_cut(k: int, kept: int) -> None:
    episode = numbered(6, 2, t_started=10, id_="i", agent_id="a", module_id="m", multi_agent_episode_id="ma")
    episode.custom_data["x"] = [1]
    successor = episode.cut(len_lookback_buffer=k)
    check_numbered(successor, 6 - kept, 6, lookback={kept}, t=(14, 14, 0), flags=(False, False))
    assert (successor.id_, successor.agent_id, successor.module_id) == ("i", "a", "m")
    assert successor.multi_agent_episode_id == "ma"
    successor.custom_data["x"].append(2)
    add_numbered(successor, 7)
    add_numbered(successor, 8)
    assert episode.custom_data == {"x": [1]}
    check_numbered(episode, 0, 6, t=(10, 14, 4))
    check_numbered(successor, 6 - kept, 8, t=(14, 16, 2))


def test_concat_onto_a_chunk_without_steps_keeps_the_model_outputs() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0, {"i": 0})
    successor = episode.cut()
    add_numbered(successor, 1)
    add_numbered(successor, 2)
    episode.concat_episode(successor)
    check_numbered(episode, 0, 2, t=(0, 2, 2))
    add_numbered(episode, 3)
    check_numbered(episode, 0, 3)
    check_numbered(successor, 0, 2)


@pytest.mark.parametrize(
    ("key", "options", "rows", "lookback", "t", "done"),
    [
        (slice(1, 3), {}, (1, 5), 2, (11, 13, 2), False),
        (slice(None), {}, (0, 6), 2, (10, 14, 4), True),
        (slice(-2, None), {}, (2, 6), 2, (12, 14, 2), True),
        (slice(2, 4), {}, (2, 6), 2, (12, 14, 2), True),
        (slice(4, 4), {}, (4, 6), 2, (14, 14, 0), True),
        (slice(0, -1), {}, (0, 5), 2, (10, 13, 3), False),
        (slice(1, 3), {"len_lookback_buffer": 1}, (2, 5), 1, (11, 13, 2), False),
        (slice(1, 3), {"len_lookback_buffer": 0}, (3, 5), 0, (11, 13, 2), False),
        (slice(1, 3), {"len_lookback_buffer": 9}, (0, 5), 3, (11, 13, 2), False),
        (slice(np.int64(1), np.int64(3)), {}, (1, 5), 2, (11, 13, 2), False),
        # a stop behind the end keeps the flags
        (slice(0, 9), {}, (0, 6), 2, (10, 14, 4), True),
    ],
)
def test_slice(key: slice, options: Any, rows: Any, lookback: int, t: Any, done: bool) -> None:
    ids = {"id_": "i", "agent_id": "a", "module_id": "m", "multi_agent_episode_id": "ma"}
    episode = numbered(6, 2, t_started=10, terminated=True, observation_space=gym.spaces.Discrete(99), **ids)
    episode.custom_data["x"] = 1
    part = episode.slice(key, **options)
    check_numbered(part, *rows, lookback={lookback}, t=t, flags=(done, False))
    assert {name: getattr(part, name) for name in ids} == ids
    assert part.custom_data == {"x": 1} and part.observation_space == gym.spaces.Discrete(99)
    if not options:
        check_numbered(episode[key], *rows, lookback={lookback}, t=t)


@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize(("length", "key"), [(0, slice(None, None, -1)), (3, slice(-9, None, -1))])
def test_a_slice_backwards_from_before_the_first_step_is_empty(lookback: int, length: int, key: slice) -> None:
    episode = numbered(length + lookback, lookback, t_started=10)
    check_numbered(episode.slice(key), 0, lookback, lookback={lookback}, t=(10, 10, 0))


def test_slices_of_nested_columns_keep_their_lookback() -> None:
    rows = [{"x": np.full(2, i, np.float32), "n": i} for i in range(8)]
    episode = SingleAgentEpisode(observations=rows, actions=[0] * 7, rewards=[0.0] * 7, len_lookback_buffer=5)
    part = episode[1:2]
    assert part.observations.lookback == 5 == part.rewards.lookback
    np.testing.assert_array_equal(part.observations.data["n"], [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("index", [0, -1, np.int64(0)])
def test_single_steps_are_not_episodes(index: Any) -> None:
    with pytest.raises(NotImplementedError):
        numbered()[index]


# ---------------------------------------------------------------- refusals and flags
@pytest.mark.parametrize(
    "call",
    [
        lambda: numbered().cut(len_lookback_buffer=-1),
        lambda: numbered().slice(slice(0, 2), len_lookback_buffer=-1),
        lambda: numbered(4, -1),
    ],
)
def test_a_negative_lookback_is_a_named_error(call: Any) -> None:
    with pytest.raises(EpisodeError, match=r"len_lookback_buffer[\s\S]*found: +-1"):
        call()


def test_a_refused_concat_changes_nothing() -> None:
    episode = numbered(2, id_="i")
    other = SingleAgentEpisode(
        "i", observations=[2, 3], actions=[{"nested": 1}], rewards=[1.0], t_started=2, len_lookback_buffer=0,
        extra_model_outputs={"e": [np.zeros(2)]},
    )  # fmt: skip
    with pytest.raises(EpibatchError, match="nested"):
        episode.concat_episode(other)
    check_numbered(episode, 0, 2)


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
