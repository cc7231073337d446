"""The mapping: rows of agents become rows of modules, in the order of episodes and agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.errors import BatchLayoutError, ColumnError, SpaceError
from epibatch.core.rl_module import RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece

SMALL, LARGE = Box(-1.0, 1.0, (2,), np.float32), Box(-1.0, 1.0, (3,), np.float32)
MODULES = {"x": "m", "y": "n", "z": "m"}


def by_name(agent_id: Any, episode: Any, **_: Any) -> str:
    return MODULES[agent_id]


def game(id_: str, **observations: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=by_name)
    episode.add_env_reset(observations=observations)
    return episode


def run(episodes: list[Any], pieces: list[Any] | None = None, shared: dict[str, Any] | None = None) -> Any:
    pieces = pieces or [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping()]
    return EnvToModulePipeline(connectors=pieces)(episodes=episodes, batch={}, shared_data=shared)


def test_rows_are_in_the_order_of_episodes_and_of_agents_in_them() -> None:
    shared: dict[str, Any] = {}
    found = run([game("e", z=1.0, y=2.0, x=3.0), game("f", x=4.0)], shared=shared)
    assert found == {"m": {"obs": [1.0, 3.0, 4.0]}, "n": {"obs": [2.0]}}
    assert len(shared["memorized_map_structure"]) == 2
    assert shared["memorized_map_structure"] == {"m": [("e", "z"), ("e", "x"), ("f", "x")], "n": [("e", "y")]}


def test_agents_that_ended_with_their_newest_observation_do_not_act() -> None:
    episode = game("e", x=1.0, y=2.0, z=3.0)
    rewards = {"x": 0.0, "y": 0.0, "z": 0.0}
    episode.add_env_step({"x": 4.0, "y": 5.0, "z": 6.0}, {"x": 0, "y": 0, "z": 0}, rewards, terminateds={"x": True})
    assert run([episode]) == {"m": {"obs": [6.0]}, "n": {"obs": [5.0]}}


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("to_train", [None, {"m"}, {"n", "other"}, set()])
def test_modules_that_are_not_trained_have_no_batch(to_train: Any, plain: bool) -> None:
    episode = game("e", x=1.0, y=2.0, z=3.0)
    episode.add_env_step({"x": 4.0, "y": 5.0, "z": 6.0}, {"x": 0, "y": 1, "z": 2}, {"x": 0.0, "y": 0.0, "z": 0.0})
    between = [UserPiece()] if plain else []
    pieces: list[Any] = [AddColumnsFromEpisodesToTrainBatch(), AgentToModuleMapping(), *between, BatchIndividualItems()]
    shared = {} if to_train is None else {"policies_to_train": frozenset(to_train)}
    found = LearnerConnectorPipeline(connectors=pieces)(episodes=[episode], batch={}, shared_data=shared)
    expected = {"m": [0, 2], "n": [1]}
    assert {name: columns["actions"].tolist() for name, columns in found.items()} == {
        name: actions for name, actions in expected.items() if to_train is None or name in to_train
    }


@pytest.mark.parametrize("done", [False, True])
def test_pieces_called_by_hand_go_on_with_the_empty_batch_where_no_agent_is_to_act(done: bool) -> None:
    """As a pipeline of them does."""
    episode, batch, shared = game("e", x=np.zeros(2, np.float32)), {}, {}  # type: ignore[var-annotated]
    episode.add_env_step({"x": np.ones(2, np.float32)}, {"x": 0}, {"x": 1.0}, terminateds={"__all__": done})
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping(), BatchIndividualItems(multi_agent=True)]
    for piece in pieces:
        batch = piece(rl_module=None, batch=batch, episodes=[episode], explore=True, shared_data=shared)
    again: Any = run([episode], [piece.clone() for piece in pieces])
    assert batch.keys() == again.keys() == (set() if done else {"m"})
    for found in (batch, again):
        assert done or np.asarray(found["m"]["obs"]).tolist() == [[1.0, 1.0]]


def test_agents_of_other_spaces_with_one_module_are_batched_when_their_rows_have_one_shape() -> None:
    def cut(batch: Any, episodes: Any) -> None:
        for episode in UserPiece.single_agent_episode_iterator(episodes):
            UserPiece.add_batch_item(batch, "obs", episode.get_observations(-1)[:2], episode)

    def wide() -> MultiAgentEpisode:
        episode = MultiAgentEpisode(
            id_="e", agent_to_module_mapping_fn=by_name, observation_space={"x": SMALL, "y": SMALL, "z": LARGE}
        )
        first = {"z": np.float32([0.1, 0.2, 0.3]), "y": np.float32([0.4, 0.5]), "x": np.float32([0.6, 0.7])}
        episode.add_env_reset(observations=first)
        return episode

    found = run([wide()], [UserPiece(cut), AddObservationsFromEpisodesToBatch(), AgentToModuleMapping()])
    np.testing.assert_array_equal(found["m"]["obs"], np.float32([[0.1, 0.2], [0.6, 0.7]]))
    with pytest.raises(ColumnError, match=r"agent 'z'[\s\S]*agent 'x'|agent 'x'[\s\S]*agent 'z'"):
        run([wide()])


def test_a_column_that_some_agents_lack_is_named() -> None:
    def only_x(batch: Any, episodes: Any) -> None:
        for episode in UserPiece.single_agent_episode_iterator(episodes):
            if episode.agent_id == "x":
                UserPiece.add_batch_item(batch, "mark", 1.0, episode)

    pieces = [AddObservationsFromEpisodesToBatch(), UserPiece(only_x), AgentToModuleMapping()]
    assert run([game("e", x=1.0, y=2.0)], pieces)["m"]["mark"] == [1.0]
    episode = MultiAgentEpisode(
        id_="e",
        agent_to_module_mapping_fn=by_name,
        observation_space={"x": SMALL, "z": Box(-2.0, 2.0, (2,), np.float32)},
    )
    episode.add_env_reset(observations={"x": np.zeros(2, np.float32), "z": np.zeros(2, np.float32)})
    with pytest.raises(ColumnError, match=r"column 'mark' of module 'm'[\s\S]*agent 'z'"):
        run([episode], pieces)


OBS = gym.spaces.Dict(x=SMALL, y=LARGE, z=SMALL)
ACT = gym.spaces.Dict(x=Discrete(2), y=Discrete(3), z=Discrete(2))


def test_spaces_follow_from_the_agents() -> None:
    piece = AgentToModuleMapping(OBS, ACT, agent_to_module_mapping_fn=by_name)
    assert piece.observation_space == gym.spaces.Dict(m=SMALL, n=LARGE)
    assert piece.action_space == gym.spaces.Dict(m=Discrete(2), n=Discrete(3))


def test_a_modules_spec_says_its_spaces() -> None:
    specs = {"m": RLModuleSpec(observation_space=LARGE, action_space=Discrete(5)), "n": RLModuleSpec()}
    piece = AgentToModuleMapping(OBS, ACT, agent_to_module_mapping_fn=by_name, rl_module_specs=specs)
    assert piece.observation_space == gym.spaces.Dict(m=LARGE, n=LARGE)
    assert piece.action_space == gym.spaces.Dict(m=Discrete(5), n=Discrete(3))


def test_a_mapping_that_draws_is_not_asked_where_all_agents_are_alike() -> None:
    def draws(agent_id: Any, episode: Any) -> str:
        raise AssertionError("asked")

    same = gym.spaces.Dict(x=SMALL, y=SMALL)
    piece = AgentToModuleMapping(
        same, None, agent_to_module_mapping_fn=draws, rl_module_specs={"m": RLModuleSpec(), "n": RLModuleSpec()}
    )
    assert piece.observation_space == gym.spaces.Dict(m=SMALL, n=SMALL)


def spaces(mapping: Any = by_name, **settings: Any) -> Any:
    return AgentToModuleMapping(OBS, ACT, agent_to_module_mapping_fn=mapping, **settings).observation_space


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: run([SingleAgentEpisode(observations=[0])]), BatchLayoutError, "leave this piece out"),
        (
            lambda: spaces(rl_module_specs={name: RLModuleSpec() for name in ("m", "n", "spare")}),
            SpaceError,
            r"of module 'spare'[\s\S]*its observation_space; if no agent is for it, leave the module out",
        ),
        (lambda: spaces(lambda *_: "m"), SpaceError, r"observation_space of module 'm'[\s\S]*of agent 'y'"),
        (
            lambda: spaces(lambda _, episode: episode.id_),
            SpaceError,
            r"answers without an episode[\s\S]*for agent 'x' and episode None",
        ),
    ],
)
def test_mistakes_are_named(mistake: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mistake()
