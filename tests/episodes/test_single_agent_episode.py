"""SingleAgentEpisode: the behaviours it shares with RLlib's, the ones it mends, and its errors."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpibatchError, EpisodeIndexError
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)
DICT = gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(9)})


def make(n: int = 4, lookback: int | str = 0, **options: Any) -> SingleAgentEpisode:
    """Observations 0..n, actions 10.., rewards 0, 0.5, 1.0.., one extra of two columns."""
    return SingleAgentEpisode(
        observations=list(range(n + 1)),
        actions=[10 + i for i in range(n)],
        rewards=[0.5 * i for i in range(n)],
        infos=[{"i": i} for i in range(n + 1)],
        extra_model_outputs={"e": [np.full(2, i, np.float32) for i in range(n)]},
        len_lookback_buffer=lookback,  # type: ignore[arg-type]
        **options,
    )


def contents(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Everything an episode made by `make` holds, as plain lists."""
    extras = episode.extra_model_outputs
    return {
        "obs": list(episode.observations.data),
        "actions": list(episode.actions.data),
        "rewards": list(episode.rewards.data),
        "infos": [info.get("i") for info in episode.infos.data],
        "e": [float(row[0]) for row in extras["e"].data] if "e" in extras else [],
        "lookback": {b.lookback for b in (episode.observations, episode.actions, episode.rewards, episode.infos)},
        "t": (episode.t_started, episode.t, len(episode)),
        "flags": (episode.is_terminated, episode.is_truncated),
    }


def whole(first: int, last: int) -> dict[str, Any]:
    """The columns of `make` from observation `first` to observation `last`."""
    steps = list(range(first, last))
    rows = [*steps, last]
    columns = {"actions": [10 + i for i in steps], "rewards": [0.5 * i for i in steps], "e": [float(i) for i in steps]}
    return {"obs": rows, "infos": rows, **columns}


def check(episode: SingleAgentEpisode, first: int, last: int, **expected: Any) -> None:
    found = contents(episode)
    for key, value in {**whole(first, last), **expected}.items():
        assert found[key] == value, key
    episode.validate()


def step(episode: SingleAgentEpisode, i: int, **options: Any) -> None:
    """The step of `make` that leads to observation `i`."""
    options = {"terminated": False, "truncated": False} | options
    extras = {"e": np.full(2, i - 1, np.float32)}
    episode.add_env_step(i, 9 + i, 0.5 * (i - 1), {"i": i}, extra_model_outputs=extras, **options)


# ---------------------------------------------------------------- construction, lookback, growth
@pytest.mark.parametrize(
    ("lookback", "t_started", "expected_lookback", "t"),
    [("auto", None, 4, (0, 0, 0)), (2, None, 2, (0, 2, 2)), (2, 10, 2, (10, 12, 2)), (9, 3, 4, (3, 3, 0))],
)
def test_lookback_of_given_data(lookback: Any, t_started: Any, expected_lookback: int, t: tuple[int, ...]) -> None:
    check(make(4, lookback, t_started=t_started), 0, 4, lookback={expected_lookback}, t=t, flags=(False, False))


def test_getters_return_what_follows_the_lookback() -> None:
    episode = make(4, 2)
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


# ---------------------------------------------------------------- index rules of the getters
@pytest.mark.parametrize(
    ("indices", "options", "expected"),
    [
        (-1, {}, 4),
        (-5, {}, 0),
        (np.int64(0), {}, 2),
        (-1, {"neg_index_as_lookback": True}, 1),
        (-2, {"neg_index_as_lookback": True}, 0),
        (slice(-2, 2), {"neg_index_as_lookback": True}, [0, 1, 2, 3]),
        (slice(-9, 9), {}, [0, 1, 2, 3, 4]),
        (slice(-3, 4), {"fill": 7, "neg_index_as_lookback": True}, [7, 0, 1, 2, 3, 4, 7]),
        ([0, -1], {}, [2, 4]),
        ([], {}, []),
        (slice(None, None, -1), {}, [4, 3, 2]),
        (99, {"fill": 7}, 7),
    ],
)
def test_index_rules_hold_for_every_getter(indices: Any, options: dict[str, Any], expected: Any) -> None:
    episode = make(4, 2)
    np.testing.assert_array_equal(episode.get_observations(indices, **options), expected)
    found = episode.get_infos(indices, **options)
    if isinstance(expected, list):
        assert found == [i if i == 7 else {"i": i} for i in expected]
    else:
        assert found == (expected if expected == 7 else {"i": expected})


@pytest.mark.parametrize("name", ["observations", "infos", "actions", "rewards"])
@pytest.mark.parametrize(("index", "neg"), [(3, False), (-6, False), (np.int64(9), False), (-3, True)])
def test_wrong_indices_are_named_errors(name: str, index: int, neg: bool) -> None:
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:"):
        getattr(make(4, 2), f"get_{name}")(index, neg_index_as_lookback=neg)


def test_fill_items_have_the_form_of_the_column() -> None:
    row = {"x": np.ones(2, np.float32), "n": 1}
    for space in (DICT, None):
        episode = SingleAgentEpisode(observation_space=space)
        episode.add_env_reset(row)
        item = episode.get_observations(-3, fill=0.0)
        assert item["x"].dtype == np.float32 and item["x"].shape == (2,) and not item["x"].any()
        assert np.shape(item["n"]) == () and np.asarray(item["n"]).dtype == np.int64
        stacked = episode.get_observations(slice(-3, None), fill=0.0)
        np.testing.assert_array_equal(stacked["x"], [[0, 0], [0, 0], [1, 1]])
    assert make(2).get_rewards(slice(-3, None), fill=0).dtype == np.float64


def test_one_hot_actions_and_their_fill() -> None:
    episode = SingleAgentEpisode(
        observations=[0, 1, 2], actions=[2, 0], rewards=[0.0, 0.0], action_space=gym.spaces.Discrete(3),
        observation_space=gym.spaces.Discrete(4, start=-1), len_lookback_buffer=0,
    )  # fmt: skip
    found = episode.get_actions(slice(-1, 2), one_hot_discrete=True, fill=0.0, neg_index_as_lookback=True)
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 0, 1], [1, 0, 0]])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(episode.get_observations(0, one_hot_discrete=True), [0, 1, 0, 0])


def test_unknown_extra_key_is_an_error_naming_the_known_ones() -> None:
    with pytest.raises(KeyError, match="e"):
        make().get_extra_model_outputs("ee")
    with pytest.raises(EpibatchError, match="nope"):
        make().set_extra_model_outputs(key="nope", new_data=[1])


# ---------------------------------------------------------------- cut, concat, slice
@pytest.mark.parametrize(("k", "kept"), [(0, 0), (1, 1), (3, 3), (99, 6)])
def test_cut(k: int, kept: int) -> None:
    episode = make(6, 2, t_started=10, id_="i", agent_id="a", module_id="m", multi_agent_episode_id="ma")
    episode.custom_data["x"] = [1]
    successor = episode.cut(len_lookback_buffer=k)
    check(successor, 6 - kept, 6, lookback={kept}, t=(14, 14, 0), flags=(False, False))
    assert (successor.id_, successor.agent_id, successor.module_id) == ("i", "a", "m")
    assert successor.multi_agent_episode_id == "ma"
    successor.custom_data["x"].append(2)
    step(successor, 7)
    step(successor, 8)
    assert episode.custom_data == {"x": [1]}
    check(episode, 0, 6, t=(10, 14, 4))
    check(successor, 6 - kept, 8, t=(14, 16, 2))


@pytest.mark.parametrize("lookback", [0, 1, 3])
def test_concat_undoes_cut(lookback: int) -> None:
    episode = make(3, 1, t_started=5)
    successor = episode.cut(len_lookback_buffer=lookback)
    step(successor, 4)
    step(successor, 5, terminated=True)
    successor.custom_data["q"] = 1
    episode.concat_episode(successor)
    check(episode, 0, 5, lookback={1}, t=(5, 9, 4), flags=(True, False))
    assert episode.custom_data == {"q": 1}


def test_concat_onto_a_chunk_without_steps_keeps_the_model_outputs() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0, {"i": 0})
    successor = episode.cut()
    step(successor, 1)
    step(successor, 2)
    episode.concat_episode(successor)
    check(episode, 0, 2, t=(0, 2, 2))
    step(episode, 3)
    check(episode, 0, 3)
    check(successor, 0, 2)


def wrong_successors() -> dict[str, Any]:
    def other(**options: Any) -> Any:
        return lambda: make(2, 0, **({"id_": "i", "t_started": 4} | options))

    return {
        "other id": (False, other(id_="j")),
        "a gap in t": (False, other(t_started=5)),
        "another first observation": (False, other()),
        "after the end": (True, other()),
    }


@pytest.mark.parametrize("case", wrong_successors())
def test_concat_refuses_what_does_not_follow(case: str) -> None:
    done, other = wrong_successors()[case]
    episode = make(4, 0, id_="i", terminated=done)
    with pytest.raises(AssertionError, match=r"expected:[\s\S]*found:"):
        episode.concat_episode(other())
    check(episode, 0, 4)


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
    episode = make(6, 2, t_started=10, terminated=True, observation_space=gym.spaces.Discrete(99), **ids)
    episode.custom_data["x"] = 1
    part = episode.slice(key, **options)
    check(part, *rows, lookback={lookback}, t=t, flags=(done, False))
    assert {name: getattr(part, name) for name in ids} == ids
    assert part.custom_data == {"x": 1} and part.observation_space == gym.spaces.Discrete(99)
    if not options:
        check(episode[key], *rows, lookback={lookback}, t=t)


def test_appending_to_a_slice_and_to_its_source_are_separate() -> None:
    episode = make(4)
    part = episode[0:2]
    part.add_env_step(99, 99, 99.0, {"i": 99}, terminated=False, truncated=False, extra_model_outputs={"e": np.ones(2)})
    step(episode, 5)
    check(episode, 0, 5)
    assert list(part.get_observations()) == [0, 1, 2, 99]


def test_slices_of_nested_columns_keep_their_lookback() -> None:
    rows = [{"x": np.full(2, i, np.float32), "n": i} for i in range(8)]
    episode = SingleAgentEpisode(observations=rows, actions=[0] * 7, rewards=[0.0] * 7, len_lookback_buffer=5)
    part = episode[1:2]
    assert part.observations.lookback == 5 == part.rewards.lookback
    np.testing.assert_array_equal(part.observations.data["n"], [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("index", [0, -1, np.int64(0)])
def test_single_steps_are_not_episodes(index: Any) -> None:
    with pytest.raises(NotImplementedError):
        make()[index]


# ---------------------------------------------------------------- state
@pytest.mark.parametrize("clone", [lambda e: SingleAgentEpisode.from_state(e.get_state()), copy.deepcopy])
def test_state_round_trip(clone: Any) -> None:
    episode = make(5, 2, t_started=3, truncated=True, agent_id="a", observation_space=gym.spaces.Discrete(50))
    episode.custom_data["x"] = [1]
    twin = clone(episode)
    assert contents(twin) == contents(episode)
    assert (twin.id_, twin.agent_id, twin.custom_data) == (episode.id_, "a", {"x": [1]})
    assert twin.observation_space == episode.observation_space and twin.get_return() == episode.get_return()
    twin.set_rewards(new_data=9.0, at_indices=0)
    assert contents(episode)["rewards"] == whole(0, 5)["rewards"]
