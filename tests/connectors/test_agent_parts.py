"""Pieces whose work depends on spaces, or that have a state, on episodes of several agents."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import (
    EnvToModulePipeline,
    FlattenObservations,
    MeanStdFilter,
    PrevActionsPrevRewards,
    SingleAgentObservationPreprocessor,
)
from epibatch.connectors.learner import PrevActionsPrevRewardsLearner
from epibatch.core.errors import ConfigError, PipelineError, SpaceError, StateError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

WIDE = Box(-100.0, 100.0, (3,), np.float64)
SPACES = {"a": gym.spaces.Dict(x=Box(-100.0, 100.0, (2,), np.float64), k=Discrete(3)), "b": WIDE, "c": WIDE}
ACTIONS = {"a": Discrete(2), "b": Discrete(4), "c": Discrete(4)}
PREVIOUS = ("prev_n_actions", "prev_n_rewards")
MODULES = {"a": "first", "b": "second", "c": "second"}


def spaces() -> tuple[gym.spaces.Dict, gym.spaces.Dict]:
    return gym.spaces.Dict(SPACES), gym.spaces.Dict(ACTIONS)


def drawn(agent: str, rng: np.random.Generator) -> Any:
    return {"x": rng.normal(size=2), "k": int(rng.integers(3))} if agent == "a" else rng.normal(3.0, 2.0, 3)


def game(seed: int, steps: int = 4, absent: str = "") -> tuple[MultiAgentEpisode, dict[str, SingleAgentEpisode]]:
    """An episode, and the same for each agent alone."""
    rng = np.random.default_rng(seed)
    agents = [agent for agent in SPACES if agent not in absent]
    observations, actions = spaces()
    several = MultiAgentEpisode(
        id_=f"e{seed}",
        observation_space=observations,
        action_space=actions,
        agent_to_module_mapping_fn=lambda agent_id, episode, **_: MODULES[agent_id],
    )
    several.add_env_reset(observations={agent: drawn(agent, rng) for agent in agents})
    for _ in range(steps):
        seen = {agent: drawn(agent, rng) for agent in agents}
        acted = {agent: int(rng.integers(ACTIONS[agent].n)) for agent in agents}
        several.add_env_step(seen, acted, {agent: float(rng.normal()) for agent in agents})
    return several, copy.deepcopy(dict(several.agent_episodes))


def newest(episode: Any) -> Any:
    return episode.get_observations(-1)


def equal(one: Any, other: Any) -> None:
    if isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in other:
            equal(one[key], other[key])
    else:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "make",
    [
        FlattenObservations,
        MeanStdFilter,
        lambda *a, **k: PrevActionsPrevRewards(*a, n_prev_actions=2, n_prev_rewards=1, **k),
    ],
)
def test_rewriters_do_for_each_agent_what_they_do_for_its_episode_alone(make: Any) -> None:
    piece = make(*spaces(), multi_agent=True)
    singles = {agent: make(SPACES[agent], ACTIONS[agent]) for agent in SPACES}
    for agent in SPACES:
        assert piece.observation_space[agent] == singles[agent].observation_space
    for round_ in range(3):
        games = [game(10 * round_ + i, absent="c" if i == 1 else "") for i in range(3)]
        piece(batch={}, episodes=[several for several, _ in games])
        for agent, single in singles.items():
            single(batch={}, episodes=[alone[agent] for _, alone in games if agent in alone])
        for several, alone in games:
            for agent in alone:
                equal(newest(several.agent_episodes[agent]), newest(alone[agent]))
                assert several.agent_episodes[agent].observation_space == singles[agent].observation_space


def test_a_pipeline_with_the_mapping_knows_that_spaces_are_by_agent() -> None:
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=lambda agent_id, episode: MODULES[agent_id])
    pipeline = EnvToModulePipeline(
        *spaces(), connectors=[FlattenObservations(), AddObservationsFromEpisodesToBatch(), mapping]
    )
    flat = {agent: FlattenObservations(SPACES[agent]).observation_space for agent in SPACES}
    assert pipeline.episode_observation_space == gym.spaces.Dict(flat)
    assert pipeline.observation_space == gym.spaces.Dict(first=flat["a"], second=flat["b"])
    assert pipeline.action_space == gym.spaces.Dict(first=ACTIONS["a"], second=ACTIONS["b"])
    found = pipeline(rl_module=None, batch={}, episodes=[game(1)[0]])
    assert {name: len(columns["obs"]) for name, columns in found.items()} == {"first": 1, "second": 2}
    pipeline.remove("AgentToModuleMapping")  # now it is one agent's Dict, with a Dict in it
    assert pipeline.observation_space.shape == (2 + 3 + 3 + 3,)


def test_each_agents_statistics_are_saved_merged_frozen_and_forgotten() -> None:
    copies = [MeanStdFilter(*spaces(), multi_agent=True) for _ in range(2)]
    for seed, piece in enumerate(copies):
        piece(batch={}, episodes=[game(seed, absent="c" if seed else "")[0]])
    states = [piece.get_state() for piece in copies]
    assert [list(state["agents"]) for state in states] == [["a", "b", "c"], ["a", "b"]]
    merged = copies[0].merge_states(states)
    counts = {agent: own["synchronised"]["count"] for agent, own in merged["agents"].items()}
    assert counts == {"a": 2, "b": 2, "c": 1}
    seen = np.stack([newest(game(seed, absent=absent)[0].agent_episodes["b"]) for seed, absent in ((0, ""), (1, "c"))])
    assert np.allclose(merged["agents"]["b"]["synchronised"]["mean"], seen.mean(0), rtol=1e-12)
    restored = MeanStdFilter(*spaces(), multi_agent=True)
    restored.set_state(merged)
    restored.freeze()
    restored(batch={}, episodes=[game(5)[0]])
    again = restored.get_state()
    assert {agent: own["synchronised"]["count"] for agent, own in again["agents"].items()} == counts
    assert all(own["since"]["count"] == 0 for own in again["agents"].values())
    restored.reset_state()
    assert restored.get_state() == {}
    with pytest.raises(StateError, match="those of each agent"):
        restored.set_state(states[0]["agents"]["b"])


def test_earlier_steps_in_training_go_by_agent() -> None:
    several, alone = game(0)
    piece = PrevActionsPrevRewardsLearner(*spaces(), n_prev_actions=2)
    found = piece(batch={}, episodes=[several], shared_data={}, rl_module=None)["obs"]
    for agent in SPACES:
        piece = PrevActionsPrevRewardsLearner(SPACES[agent], ACTIONS[agent], n_prev_actions=2)
        (expected,) = piece(batch={}, episodes=[alone[agent]], rl_module=None)["obs"].values()
        (items,) = found["e0", agent, MODULES[agent]]
        equal({name: items[name] for name in PREVIOUS}, {name: expected[0][name] for name in PREVIOUS})


def test_an_agent_without_a_space_is_named() -> None:
    several, _ = game(0)
    piece = FlattenObservations(gym.spaces.Dict(a=SPACES["a"]), None, multi_agent=True)
    with pytest.raises(SpaceError, match=r"observation space of agent 'b'[\s\S]*among those of \['a'\]"):
        piece(batch={}, episodes=[several])


def test_rewriting_behind_the_column_is_refused_for_agents_too() -> None:
    class Early(ConnectorV2):
        def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            return AddObservationsFromEpisodesToBatch()(batch=batch, episodes=episodes)

    for piece in (MeanStdFilter(), FlattenObservations()):
        pipeline = EnvToModulePipeline(*spaces(), connectors=[Early(), piece, AgentToModuleMapping()])
        with pytest.raises(PipelineError, match="a batch without observations"):
            pipeline(rl_module=None, batch={}, episodes=[game(0)[0]])


def test_only_some_agents_are_flattened() -> None:
    piece = FlattenObservations(*spaces(), multi_agent=True, agent_ids=["a"])
    assert piece.observation_space == gym.spaces.Dict(
        {**SPACES, "a": FlattenObservations(SPACES["a"]).observation_space}
    )
    several, alone = game(0)
    piece(batch={}, episodes=[several])
    FlattenObservations(SPACES["a"])(batch={}, episodes=[alone["a"]])
    for agent in SPACES:
        equal(newest(several.agent_episodes[agent]), newest(alone[agent]))
    with pytest.raises(ConfigError, match="agent_ids"):
        FlattenObservations(agent_ids=["a"], as_learner_connector=True)


class Doubled(ConnectorV2):
    """Gives every observation twice, side by side."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        return Box(-100.0, 100.0, (2 * input_observation_space.shape[0],), np.float64)

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return batch


class OneSpace(Doubled):
    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        return WIDE


class Wrong(Doubled):
    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        raise SpaceError("here", expected="another", found=repr(input_observation_space), do="do")


def test_a_piece_that_knows_one_agents_space_is_given_one_agents_at_a_time() -> None:
    def output_of(piece: ConnectorV2) -> Any:
        agents = [gym.spaces.Dict({agent: own[agent] for agent in "bc"}) for own in (SPACES, ACTIONS)]
        mapping = AgentToModuleMapping(agent_to_module_mapping_fn=lambda agent_id, episode: MODULES[agent_id])
        pieces = [piece, AddObservationsFromEpisodesToBatch(), mapping]
        return EnvToModulePipeline(*agents, connectors=pieces).observation_space

    assert output_of(OneSpace()) == gym.spaces.Dict(second=WIDE)
    assert output_of(Doubled()) == gym.spaces.Dict(second=Box(-100.0, 100.0, (6,), np.float64))
    with pytest.raises(SpaceError, match=r"found: +Box"):
        output_of(Wrong())


class Halves(SingleAgentObservationPreprocessor):
    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        space = input_observation_space
        return Box(space.low / 2, space.high / 2, dtype=space.dtype.type)

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation / 2


def test_a_preprocessor_goes_by_agent_too() -> None:
    own = gym.spaces.Dict(b=WIDE, c=WIDE)
    pipeline = EnvToModulePipeline(
        own, gym.spaces.Dict(b=Discrete(4), c=Discrete(4)), connectors=[Halves(), AgentToModuleMapping()]
    )
    several, alone = game(0, absent="a")
    pipeline(rl_module=None, batch={}, episodes=[several])
    for agent in "bc":
        assert np.array_equal(newest(several.agent_episodes[agent]), newest(alone[agent]) / 2)
        assert several.agent_episodes[agent].observation_space.high.tolist() == [50.0] * 3


def test_copies_for_agents_follow_the_spaces_of_their_piece() -> None:
    piece = FlattenObservations(gym.spaces.Dict(b=Discrete(3)), None, multi_agent=True)

    def flat(observation: Any, space: Any) -> Any:
        piece.input_observation_space = gym.spaces.Dict(b=space)
        episode = MultiAgentEpisode(observation_space={"b": space})
        episode.add_env_reset(observations={"b": observation})
        piece(batch={}, episodes=[episode])
        return newest(episode.agent_episodes["b"]).tolist()

    assert flat(1, Discrete(3)) == [0, 1, 0]
    assert flat(1, Discrete(2)) == [0, 1]
