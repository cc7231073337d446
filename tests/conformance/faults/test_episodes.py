"""Faults of episodes and buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeIndexError, EpisodeStateError, SpaceError
from oracle.probes import Raises, plain, probe, tried

BOX = gym.spaces.Box(-9, 9, (1,), np.float32)


def episode_of(library: Any, steps: int, *, terminated: bool = False, **settings: Any) -> Any:
    """An episode with observation [t], action t, reward t + 0.5; each step's output `seen` is t too."""
    episode = library.SingleAgentEpisode(id_="e", **settings)
    episode.add_env_reset(np.array([0], np.float32))
    for t in range(steps):
        done = terminated and t == steps - 1
        observation = np.array([t + 1], np.float32)
        episode.add_env_step(observation, t, t + 0.5, terminated=done, extra_model_outputs={"seen": t})
    return episode


@probe(
    "O18",
    ours={"slice": ["a", "m", "all", {"k": 1}], "cut": ["a", "m", "all", {"k": 1}]},
    theirs={"slice": [None, None, None, {}], "cut": [None, None, None, {"k": 1}]},
)
def test_slices_and_cuts_keep_ids_and_custom_data(library: Any) -> Any:
    episode = episode_of(library, 3, agent_id="a", module_id="m", multi_agent_episode_id="all")
    episode.custom_data["k"] = 1
    parts = {"slice": episode[1:3], "cut": episode.cut()}
    return {
        name: [part.agent_id, part.module_id, part.multi_agent_episode_id, dict(part.custom_data)]
        for name, part in parts.items()
    }


@probe("O18", ours=[False, True, True, True], theirs=[False, True, False, True])
def test_a_slice_with_the_last_step_is_done(library: Any) -> Any:
    episode = episode_of(library, 3, terminated=True)
    return [episode[part].is_terminated for part in (slice(0, 2), slice(0, 3), slice(0, 4), slice(1, None))]


@probe("O19", ours=[2, 1, Raises(EpisodeIndexError, "2")], theirs=[2, 1, 6])
def test_an_index_before_the_lookback(library: Any) -> Any:
    buffer = library.InfiniteLookbackBuffer(data=np.array([1, 2, 3, 4, 5, 6]), lookback=2)
    return [tried(lambda i=i: plain(buffer.get(i, neg_index_as_lookback=True))) for i in (-1, -2, -3)]


@probe("O20", ours=[0, 1, 3, 5], theirs=[0, 0, 1, 3, 5])
def test_slices_with_steps_are_filled(library: Any) -> Any:
    """Positions -2 to 4 of five rows, every second one."""
    buffer = library.InfiniteLookbackBuffer(data=np.array([1, 2, 3, 4, 5]))
    return plain(buffer.get(slice(-7, None, 2), fill=0))


@probe("O20", ours=[[5, 4, 3, 2, 1], [4, 3, 2]], theirs=[[], [4, 3, 2]])
def test_slices_go_backwards(library: Any) -> Any:
    """RLlib's are empty unless both bounds are given."""
    buffer = library.InfiniteLookbackBuffer(data=np.array([1, 2, 3, 4, 5]))
    return [plain(buffer.get(slice(None, None, -1))), plain(buffer.get(slice(3, 0, -1)))]


@probe("O20", ours=2, theirs=Raises(AssertionError, "^$", "get"))
def test_numpy_integers_are_indices(library: Any) -> Any:
    buffer = library.InfiniteLookbackBuffer(data=[1, 2, 3])
    return plain(buffer.get(np.int64(1)))


@probe("O20", ours=["float64", "float64"], theirs=["float32", "float"])
def test_filled_items_are_of_the_rows_type(library: Any) -> Any:
    episode = episode_of(library, 2)
    items = episode.get_rewards([-3, -1], fill=0.0)
    return [str(item.dtype) if hasattr(item, "dtype") else type(item).__name__ for item in items]


@probe("O21", ours={"is_numpy": True, "observations": "ndarray"}, theirs={"is_numpy": False, "observations": "ndarray"})
def test_a_chunk_without_steps_is_an_array_episode(library: Any) -> Any:
    episode = episode_of(library, 0).to_numpy()
    return {"is_numpy": episode.is_numpy, "observations": type(episode.get_observations()).__name__}


@probe("O22", ours=Raises(SpaceError, "t=1"), theirs=1)
def test_observations_are_checked_from_the_first_step_on(library: Any) -> Any:
    episode = episode_of(library, 0, observation_space=BOX)
    episode.add_env_step(np.zeros(7, np.float32), 0, 0.0)
    return len(episode)


@probe(
    "O22",
    ours=[Raises(SpaceError, "t=100"), Raises(SpaceError, "t=101")],
    theirs=[None, Raises(AssertionError, "`observation` 0.5 does NOT fit")],
)
def test_observations_are_checked_at_step_100(library: Any) -> Any:
    """Array episodes of 99 and 100 steps, whose observations are integers, get a fraction."""
    outcomes = []
    for steps in (99, 100):
        episode = library.SingleAgentEpisode(id_="e", observation_space=gym.spaces.Discrete(3))
        episode.add_env_reset(0)
        for _ in range(steps):
            episode.add_env_step(1, 0, 0.0)
        outcomes.append(tried(partial(episode.to_numpy().add_env_step, 0.5, 0, 0.0)))
    return outcomes


@probe("O23", ours=Raises(EpisodeStateError, "add_env_reset first"), theirs=1)
def test_a_step_before_the_reset(library: Any) -> Any:
    episode = library.SingleAgentEpisode(id_="e")
    episode.add_env_step(np.zeros(1, np.float32), 0, 0.0)
    return len(episode)


@probe("O23", ours=["refused", 1], theirs=["accepted", Raises(AssertionError, "^$", "validate")])
def test_a_model_output_that_appears_late(library: Any) -> Any:
    episode = episode_of(library, 1)
    outputs = {"seen": 1, "late": 1}
    error = tried(lambda: episode.add_env_step(np.ones(1, np.float32), 0, 0.0, extra_model_outputs=outputs))
    return ["refused" if error else "accepted", tried(lambda: len(episode.to_numpy()))]


@probe("O58", ours=[0, 1, 2, 0, 0], theirs=[0, 1, 2])
def test_a_slice_over_both_ends_is_filled_at_both(library: Any) -> Any:
    return plain(library.InfiniteLookbackBuffer(data=[1, 2]).get(slice(-3, 4), fill=0))


@probe("O58", ours=[], theirs=[0, 0])
def test_an_empty_range_is_not_filled(library: Any) -> Any:
    return plain(library.InfiniteLookbackBuffer(data=[1, 2]).get(slice(6, 4), fill=0))


@probe("O59", ours=[], theirs=Raises(ValueError, "does not contain any items", "batch"))
def test_no_indices_give_no_rows(library: Any) -> Any:
    return plain(library.InfiniteLookbackBuffer(data=np.array([1, 2])).get([]))


@probe("O59", ours=[], theirs=Raises(AssertionError, r"\(-1, -100000000\)", "_interpret_slice"))
def test_a_slice_of_an_empty_column_is_empty(library: Any) -> Any:
    return plain(library.InfiniteLookbackBuffer().get(slice(0, -1)))


@probe("O60", ours=[3, 3], theirs=[2, Raises(AssertionError, "^$", "validate")])
def test_slices_of_nested_columns_keep_their_lookback(library: Any) -> Any:
    """Five rows with two keys, three of them lookback: in a buffer, and in a slice of an episode."""
    column = {"x": np.zeros(6, np.float32), "y": np.zeros(6, np.float32)}
    episode = library.SingleAgentEpisode(
        id_="e",
        observations=[{"x": x, "y": x} for x in column["x"]],
        actions=[0] * 5,
        rewards=[0.0] * 5,
        len_lookback_buffer=3,
    ).to_numpy()
    buffer = library.InfiniteLookbackBuffer(data=column, lookback=3)
    return [buffer.lookback, tried(lambda: episode[0:2].observations.lookback)]


@probe("O62", ours=[3, 2, 2], theirs=[4, 3, 3])
def test_the_constructor_copies_what_it_is_given(library: Any) -> Any:
    observations, actions, rewards = [0, 1, 2], [0, 1], [0.5, 1.5]
    episode = library.SingleAgentEpisode(
        id_="e", observations=observations, actions=actions, rewards=rewards, len_lookback_buffer=0
    )
    episode.add_env_step(3, 2, 2.5)
    return [len(observations), len(actions), len(rewards)]
