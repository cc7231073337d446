"""Cutting, slicing and concatenating episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpibatchError, EpisodeError
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


@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize(("length", "key"), [(0, slice(None, None, -1)), (3, slice(-9, None, -1))])
def test_a_slice_backwards_from_before_the_first_step_is_empty(lookback: int, length: int, key: slice) -> None:
    episode = make(length + lookback, lookback, t_started=10)
    check(episode.slice(key), 0, lookback, lookback={lookback}, t=(10, 10, 0))


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


# ---------------------------------------------------------------- refusals and flags
@pytest.mark.parametrize(
    "call",
    [
        lambda: make().cut(len_lookback_buffer=-1),
        lambda: make().slice(slice(0, 2), len_lookback_buffer=-1),
        lambda: make(4, -1),
    ],
)
def test_a_negative_lookback_is_a_named_error(call: Any) -> None:
    with pytest.raises(EpisodeError, match=r"len_lookback_buffer[\s\S]*found: +-1"):
        call()


@pytest.mark.parametrize(
    ("given", "expected"),
    [((True, True), (True, False)), ((False, True), (False, True)), ((False, False), (False, False))],
)
def test_flags_after_a_concat(given: tuple[bool, bool], expected: tuple[bool, bool]) -> None:
    episode = make(2)
    successor = episode.cut()
    step(successor, 3, terminated=given[0], truncated=given[1])
    episode.concat_episode(successor)
    assert (episode.is_terminated, episode.is_truncated) == expected


def test_a_refused_concat_changes_nothing() -> None:
    episode = make(2, id_="i")
    other = SingleAgentEpisode(
        "i", observations=[2, 3], actions=[{"nested": 1}], rewards=[1.0], t_started=2, len_lookback_buffer=0,
        extra_model_outputs={"e": [np.zeros(2)]},
    )  # fmt: skip
    with pytest.raises(EpibatchError, match="nested"):
        episode.concat_episode(other)
    check(episode, 0, 2)


def test_every_second_step() -> None:
    part = make(6, 2)[0:4:2]
    np.testing.assert_array_equal(part.observations.data, [0, 1, 2, 4, 6])
    np.testing.assert_array_equal(part.rewards.data, [0, 0.5, 1, 2])
    assert part.lookback == 2 and len(part) == 2 and part.get_infos(-1) == {"i": 6}


def test_an_episode_that_was_not_reset() -> None:
    empty = SingleAgentEpisode()
    assert len(empty[0:3]) == 0 and not empty[:].is_reset
    with pytest.raises(AssertionError, match="was not reset"):
        empty.cut()
