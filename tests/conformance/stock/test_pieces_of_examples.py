"""The pieces that RLlib's examples use and no default pipeline has, beside RLlib's."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.differences import listed
from oracle.episodes import Chunk, several_chunks
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.spaces import rows, spaces
from oracle.teams import SPACES, Team, keywords, teams

ACTIONS = st.just(gym.spaces.Discrete(3))


def several(length: Any) -> Any:
    """Some chunks of one observation space, each of an episode of its own."""
    return several_chunks(st.integers(1, 3), spaces, ACTIONS, length=length, state=0, extras=())


def batches(make: Any, given: list[Chunk], *, numpy: bool, newest_only: bool = False) -> tuple[Any, Any]:
    """What `make(library, episodes)` gives in RLlib and here.

    Args:
        make: makes it.
        given: the chunks, from which each library builds its episodes.
        numpy: call `to_numpy()` on them.
        newest_only: leave their history out, as an acting pipeline sees each observation when it is the newest.
    """

    def build(library: Library, chunk: Chunk) -> Any:
        last = {"observations": chunk.columns["observations"][-1:], "infos": [{}], "len_lookback_buffer": 0}
        rest = {"actions": [], "rewards": [], "terminated": False, "truncated": False}
        return chunk.build(library, numpy=numpy, **({**last, **rest} if newest_only else {}))

    theirs, ours = (make(library, [build(library, chunk) for chunk in given]) for library in BOTH)
    return theirs, ours


@pytest.mark.parametrize("bootstrap", [False, True])
@random_cases(given=several(st.integers(1, 6)))
def test_next_observations_and_infos(given, bootstrap):
    def make(library: Library, episodes: list[Any]) -> Any:
        pieces = library.learner
        made = [pieces.AddOneTsToEpisodesAndTruncate()] if bootstrap else []
        made += [pieces.AddNextObservationsFromEpisodesToTrainBatch(), pieces.AddInfosFromEpisodesToTrainBatch()]
        space, act = given[0].observation_space, given[0].action_space
        pipeline = pieces.LearnerConnectorPipeline(space, act, connectors=[*made, pieces.BatchIndividualItems()])
        batch = pipeline(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={})
        return {name: batch[name] for name in ("new_obs", "infos")}

    assert mismatches(*batches(make, given, numpy=True)) == []


def preprocessor(library: Library) -> Any:
    """A piece that puts the observation into a Dict, beside how far the episode is."""
    base = library.module("connectors.env_to_module.observation_preprocessor").SingleAgentObservationPreprocessor

    class WithSteps(base):  # type: ignore[misc]
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return gym.spaces.Dict(own=input_observation_space, steps=gym.spaces.Box(0, 99, (), np.int64))

        def preprocess(self, observation, episode):
            return {"own": observation, "steps": np.int64(len(episode))}

    return WithSteps


@random_cases(given=several(st.integers(0, 6)))
def test_single_agent_observation_preprocessor(given):
    def make(library: Library, episodes: list[Any]) -> Any:
        pieces, space, act = library.env_to_module, given[0].observation_space, given[0].action_space
        made = [preprocessor(library)(), pieces.AddObservationsFromEpisodesToBatch(), pieces.BatchIndividualItems()]
        pipeline = pieces.EnvToModulePipeline(space, act, connectors=made)
        batch = pipeline(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={})
        return (
            batch,
            [episode.get_observations(-1) for episode in episodes],
            pipeline.observation_space == (episodes[0].observation_space),
        )

    theirs, ours = batches(make, given, numpy=False, newest_only=True)
    assert mismatches(theirs[0], ours[0]) == []
    assert theirs[2] and ours[2]
    for other, mine in zip(theirs[1], ours[1]):
        assert mine["steps"] == other["steps"]
        np.testing.assert_equal(mine["own"], other["own"])


def preprocessor_of_agents(library: Library) -> Any:
    """A piece that puts beside each observation who else has one, and what the agents saw together."""
    base = library.module("connectors.env_to_module.observation_preprocessor").MultiAgentObservationPreprocessor

    class Together(base):  # type: ignore[misc]
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            others = gym.spaces.Box(-np.inf, np.inf, (len(SPACES) + 1,), np.float32)
            own = input_observation_space.spaces
            return gym.spaces.Dict({a: gym.spaces.Dict(own=space, others=others) for a, space in own.items()})

        def preprocess(self, observations, episode):
            total = sum(float(row[0]) for row in observations.values())
            others = np.float32([*(agent in observations for agent in SPACES), total])
            return {agent: {"own": row, "others": others + len(episode)} for agent, row in observations.items()}

    return Together()


@random_cases(team=teams(episodes=1, mild=True))
def test_multi_agent_observation_preprocessor(team: Team) -> None:
    schedule = team.schedules[0]
    unseen = any(step["terminateds"].keys() - step["observations"].keys() for step in schedule.steps)
    assume(not (unseen and listed("unseen-ends")))
    found = []
    for library in BOTH:
        episode, piece = library.MultiAgentEpisode(id_="e", **keywords()), preprocessor_of_agents(library)
        spaces_of = keywords()["observation_space"], keywords()["action_space"]
        home = library.env_to_module
        pipeline = home.EnvToModulePipeline(*spaces_of, connectors=[piece, home.AddObservationsFromEpisodesToBatch()])
        batches_of, given = [], [schedule.reset, *schedule.steps]
        for t, event in enumerate(given):
            (episode.add_env_step if t else episode.add_env_reset)(**event)
            batch = pipeline(rl_module=None, batch={}, episodes=[episode], explore=True, shared_data={})
            batches_of.append(batch.get("obs", {}))
        seen = {agent: part.get_observations() for agent, part in episode.agent_episodes.items()}
        found.append((batches_of, seen, piece.observation_space))
    theirs, ours = found
    assert mismatches(theirs[0], ours[0]) == []
    assert theirs[1].keys() == ours[1].keys() and theirs[2] == ours[2]
    for agent, rows_of in ours[1].items():
        np.testing.assert_equal(stacked(theirs[1][agent]), rows_of)


def stacked(given: Any) -> Any:
    """Rows of nested observations as arrays, whether they came in a list or stacked."""
    if not isinstance(given, list):
        return given
    return {key: np.stack([row[key] for row in given]) for key in given[0]}


@random_cases(given=several(st.integers(0, 3)), seed=st.integers(0, 2**32 - 1))
def test_write_observations_to_episodes(given, seed):
    space, rng = given[0].observation_space, np.random.default_rng(seed)
    written = [rows(space, rng, 1)[0] for _ in given]

    def make(library: Library, episodes: list[Any]) -> Any:
        piece = library.env_to_module.WriteObservationsToEpisodes(space, given[0].action_space)
        batch = {"obs": {(episode.id_,): [row] for episode, row in zip(episodes, written)}}
        out = piece(rl_module=None, batch=batch, episodes=episodes, explore=True, shared_data={})
        return out, [episode.get_observations(-1) for episode in episodes]

    theirs, ours = batches(make, given, numpy=False)
    np.testing.assert_equal(ours, theirs)
    for mine, row in zip(ours[1], written):
        np.testing.assert_equal(mine, row)


def test_both_sides_are_there():
    for library in (RLLIB, EPIBATCH):
        module = library.module("connectors.env_to_module.observation_preprocessor")
        assert module.ObservationPreprocessor is module.SingleAgentObservationPreprocessor
