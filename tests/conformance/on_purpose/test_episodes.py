"""Differences of episodes that are there on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import EpisodeError, EpisodeStateError
from oracle.probes import Raises, plain, probe, tried


def episode_of(library: Any, rewards: list[Any]) -> Any:
    """An episode with these rewards and as many zeros as actions."""
    episode = library.SingleAgentEpisode(id_="e")
    episode.add_env_reset(np.zeros(1, np.float32))
    for reward in rewards:
        episode.add_env_step(np.zeros(1, np.float32), 0, reward)
    return episode


@probe("columns", ours=["ndarray", "ndarray", True], theirs=["list", "ndarray", True])
def test_rewards_are_an_array_from_the_first_on(library: Any) -> Any:
    episode = episode_of(library, [1.0, 2.0])
    before = type(episode.get_rewards()).__name__
    return [before, type(episode.to_numpy().get_rewards()).__name__, episode.to_numpy() is episode]


@probe("column-types", ours=[0.5, 2.0], theirs=[0, 2])
def test_a_fraction_among_whole_rewards(library: Any) -> Any:
    episode = episode_of(library, [1, 2]).to_numpy()
    episode.set_rewards(new_data=0.5, at_indices=0)
    return plain(episode.get_rewards())


@probe("changing-shapes", ours=[[0.0], [0.0, 0.0]], theirs=Raises(ValueError, "could not broadcast"))
def test_observations_of_another_shape(library: Any) -> Any:
    episode = episode_of(library, [])
    episode.add_env_step(np.zeros(2, np.float32), 0, 0.0)
    return [plain(row) for row in episode.to_numpy().get_observations()]


@probe("newest-observation", ours=(3,), theirs=Raises(ValueError, r"could not broadcast .* from shape \(3,\)"))
def test_the_newest_observation_is_replaced_by_one_of_another_shape(library: Any) -> Any:
    episode = episode_of(library, [1.0]).to_numpy()
    episode.set_observations(new_data=np.zeros(3, np.float32), at_indices=-1)
    return episode.get_observations(-1).shape


@probe("reset-tuple", ours=Raises(EpisodeError, "as env.reset\\(\\) returns it"), theirs=(1, {"a": 2}))
def test_a_reset_observation_of_two_whose_second_is_a_dict(library: Any) -> Any:
    episode = library.SingleAgentEpisode()
    episode.add_env_reset((1, {"a": 2}))
    return episode.get_observations(0)


@probe(
    "extra-keys",
    ours=Raises(EpisodeError, "the keys of its first step"),
    theirs=Raises(AssertionError, "^$", "validate"),
)
def test_a_model_output_that_is_missing_in_one_step(library: Any) -> Any:
    episode = episode_of(library, [])
    episode.add_env_step(np.zeros(1, np.float32), 0, 0.0, extra_model_outputs={"seen": 1})
    episode.add_env_step(np.zeros(1, np.float32), 0, 0.0)
    return episode.to_numpy()


@probe(
    "old-stack-methods",
    ours=[],
    theirs=["get_sample_batch", "add_temporary_timestep_data", "get_temporary_timestep_data"],
)
def test_methods_of_the_old_stack(library: Any) -> Any:
    names = ("get_sample_batch", "add_temporary_timestep_data", "get_temporary_timestep_data")
    return [name for name in names if hasattr(library.SingleAgentEpisode(), name)]


@probe(
    "state-errors",
    ours=[Raises(EpisodeStateError, "reset"), True],
    theirs=[Raises(AssertionError, "^$", "add_env_reset"), True],
)
def test_a_second_reset(library: Any) -> Any:
    episode = episode_of(library, [1.0])
    error = tried(lambda: episode.add_env_reset(np.zeros(1, np.float32)))
    return [error, isinstance(error, AssertionError)]


@probe("getters-write-through", ours=9.0, theirs=1.0)
def test_what_a_getter_gives_is_the_episodes(library: Any) -> Any:
    episode = episode_of(library, [1.0, 2.0])
    episode.get_rewards()[0] = 9.0
    return float(episode.get_rewards(0))


@probe("outputs-without-rows", ours=["x"], theirs=[])
def test_model_outputs_of_an_agent_without_a_step(library: Any) -> Any:
    episode = library.MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    outputs = {"a": {"x": 1}}
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0}, {}, extra_model_outputs=outputs)
    return list(episode.cut().agent_episodes["a"].extra_model_outputs)
