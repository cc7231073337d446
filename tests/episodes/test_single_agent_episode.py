"""SingleAgentEpisode: the behaviours it shares with RLlib's, the ones it mends, and its errors."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpibatchError, EpisodeError, EpisodeStateError
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


# ---------------------------------------------------------------- what it refuses
def test_state_errors_are_named_and_are_assertion_errors() -> None:
    empty, running = SingleAgentEpisode(), SingleAgentEpisode()
    running.add_env_reset(0)
    done = make(terminated=True)
    options = {"terminated": False, "truncated": False}
    for call, words in (
        (lambda: empty.add_env_step(0, 0, 0.0, **options), "reset"),
        (lambda: running.add_env_reset(0), "reset"),
        (lambda: make().add_env_reset(0), "reset"),
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
    episode = make(2)
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


# ---------------------------------------------------------------- identity and value
def test_episodes_are_equal_by_identity_and_equal_in_value_by_name() -> None:
    episode = make(3)
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
    episode = make()
    episode.set_infos(new_data={"i": np.ones(2)}, at_indices=0)
    twin = copy.deepcopy(episode)
    assert episode.equals(twin)
    change(twin)
    assert not episode.equals(twin) and not twin.equals(episode)


@pytest.mark.parametrize(("name", "setter"), [("rewards", "set_rewards"), ("observations", "set_observations")])
def test_something_in_the_place_of_a_column_is_named(name, setter):
    episode = SingleAgentEpisode("e", observations=[0, 1], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    setattr(episode, name, [5.0])
    with pytest.raises(EpisodeError, match=rf"episode 'e', column[\s\S]*list in its place[\s\S]*episode\.{setter}\("):
        episode.validate()


def test_getters_give_views_as_they_say():
    episode = SingleAgentEpisode(observations=[0.0, 1.0], actions=[1], rewards=[3.0], len_lookback_buffer=0)
    for getter in (episode.get_observations, episode.get_actions, episode.get_rewards):
        assert "writes to the episode" in (getter.__doc__ or "")
        rows = getter()
        rows += 1
        np.testing.assert_array_equal(getter(), rows)
        copied = getter().copy()
        copied += 1
        np.testing.assert_array_equal(getter(), rows)
