"""Padded actions become agents' own, and outputs for rows of all agents reach each agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    StackAgents,
    TensorToNumpy,
)
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.module_to_env import (
    CutPaddedActions,
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    UnBatchToIndividualItems,
    UnstackAgents,
)
from epibatch.core.errors import BatchLayoutError, ColumnError, SpaceError
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import UserPiece, played


def to_env(*pieces: Any, before: Any = (), spaces: Any = None) -> ModuleToEnvPipeline:
    """The pieces after those that give each agent its row."""
    head = [*before, TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping()]
    return ModuleToEnvPipeline(None, spaces, connectors=[*head, *pieces, ListifyDataForVectorEnv()])


def out_of(spaces: Any, actions: Any, *pieces: Any, agents: str = "ab") -> Any:
    """What environments get of the rows of one module, as many as there are agents in each of them."""
    episodes = []
    for i in range(len(actions) // len(agents)):
        episode = MultiAgentEpisode(id_=f"e{i}", agent_to_module_mapping_fn=lambda *_, **__: "shared")
        episode.add_env_reset(observations={agent: np.zeros(1, np.float32) for agent in agents})
        episodes.append(episode)
    pipeline = to_env(*(pieces or (CutPaddedActions(),)), NormalizeAndClipActions(), spaces=spaces)
    return pipeline(rl_module=None, batch={"shared": {"actions": torch.as_tensor(actions)}}, episodes=episodes)


SPACES = Dict(a=Discrete(2), b=Discrete(4, start=-1))


def test_discrete_actions_stay_and_are_the_agents_own() -> None:
    out = out_of(SPACES, np.array([1, 2, 0, -1]), UserPiece(), CutPaddedActions(), UserPiece())
    assert out["actions_for_env"] == out["actions"] == [{"a": 1, "b": 2}, {"a": 0, "b": -1}]
    for row in out["actions_for_env"]:
        assert all(SPACES[agent].contains(action) for agent, action in row.items())


def test_flags_stay_and_boxes_of_one_shape_are_stretched() -> None:
    kept = out_of(Dict(a=MultiBinary(3), b=MultiBinary(3)), np.ones((2, 3), np.int8))
    assert [action.tolist() for action in kept["actions_for_env"][0].values()] == [[1, 1, 1]] * 2
    spaces, rows = Dict(a=Box(-2, 6, (2, 2)), b=Box(0, 4, (2, 2))), np.linspace(-2, 2, 8, dtype="f4").reshape(2, 2, 2)
    (found,) = out_of(spaces, rows)["actions_for_env"]
    np.testing.assert_allclose(found["a"], 2 + 4 * np.clip(rows[0], -1, 1), atol=1e-6)
    np.testing.assert_allclose(found["b"], 2 + 2 * np.clip(rows[1], -1, 1), atol=1e-6)


@pytest.mark.parametrize("plain", [False, True])
def test_boxes_are_cut_then_stretched_and_clipped(plain: bool) -> None:
    spaces = Dict(a=Box(-2, 2, (1,)), b=Box(0, 4, (3,)), c=Box(-2, 2, (1,)))
    rows = np.float32([[0.5, 9, 9], [-1, 0, 3], [-3, 9, 9]])
    out = out_of(spaces, rows, CutPaddedActions(), *[UserPiece()] * plain, agents="abc")
    (found,) = out["actions_for_env"]
    assert {agent: action.tolist() for agent, action in found.items()} == {"a": [1], "b": [0, 2, 4], "c": [-2]}
    assert all(found[agent] in spaces[agent] for agent in spaces.spaces)
    assert [action.tolist() for action in out["actions"][0].values()] == rows.tolist()
    piece = CutPaddedActions(normalize_actions=False, clip_actions=True)
    unstretched = out_of(spaces, rows, piece, agents="abc")["actions_for_env"]
    assert [action.tolist() for action in unstretched[0].values()] == [[0.5], [0, 0, 3], [-2]]


def no_action(agent: str, found: int) -> str:
    return rf"agent '{agent}'[\s\S]*found: +{found}, [\s\S]*action_mask"


TWO = np.zeros(2, np.int64)
BOXES = Dict(a=Box(-1, 1, (2,)), b=Box(-1, 1, (3,)))


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: out_of(SPACES, np.array([2, 0])), ColumnError, no_action("a", 2)),
        (lambda: out_of(SPACES, np.array([0, -2])), ColumnError, no_action("b", -2)),
        (lambda: out_of(SPACES, np.array([0, 3])), ColumnError, no_action("b", 3)),
        (lambda: out_of(SPACES, np.array([-1, 0])), ColumnError, no_action("a", -1)),
        (
            lambda: out_of(BOXES, np.zeros((2, 2), np.float32)),
            ColumnError,
            r"agent 'b'[\s\S]*shape \(3,\)[\s\S]*shape \(2,\)",
        ),
        (lambda: out_of(BOXES, TWO), ColumnError, r"found: +shape \(\)"),
        (lambda: out_of(Dict(a=Discrete(2)), TWO), SpaceError, "action space of agent 'b'"),
        (lambda: out_of(None, TWO), SpaceError, "own action spaces"),
        (lambda: alone(CutPaddedActions(None, Discrete(2))), BatchLayoutError, "multi-agent episodes"),
        (lambda: alone(UnstackAgents()), BatchLayoutError, "multi-agent episodes"),
        (
            lambda: alone(CutPaddedActions(None, SPACES), games()[0], team={"actions": TWO}),
            ColumnError,
            "after ModuleToAgentUnmapping",
        ),
        (
            lambda: unstacked(lambda obs: torch.as_tensor(obs)[:, :2]),
            ColumnError,
            r"column 'actions'[\s\S]*shape \[2, 3, '...'\]",
        ),
    ],
)
def test_mistakes_are_named(mistake: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mistake()


def alone(piece: Any, episode: Any = None, **batch: Any) -> Any:
    episode = played([0, 1]) if episode is None else episode
    return piece(rl_module=None, batch=batch or {"actions": np.zeros(1)}, episodes=[episode], shared_data={})


def games() -> list[MultiAgentEpisode]:
    """Who observes: a and b, only c, nobody, all but c, of which b ends."""
    out = []
    for i, observations in enumerate(({"b": 1.0, "a": 2.0}, {"c": 3.0}, {}, {"a": 5.0, "b": 6.0})):
        mapping = lambda agent, *_, **__: "solo" if agent == "c" else "team"  # noqa: E731
        episode = MultiAgentEpisode(id_=f"e{i}", agent_to_module_mapping_fn=mapping)
        episode.add_env_reset(observations=observations if i < 3 else {"a": 0.0, "b": 0.0})
        if i == 3:
            episode.add_env_step(observations, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"b": True})
        out.append(episode)
    return out


def unstacked(make: Any = torch.as_tensor, module_ids: Any = None, between: Any = None) -> tuple[Any, Any]:
    """The batch to act on and each agent's actions; outputs are observations times ten."""
    mapped = [AddObservationsFromEpisodesToBatch(), UserPiece(), AgentToModuleMapping(), BatchIndividualItems()]
    to_module = EnvToModulePipeline(connectors=[*mapped, StackAgents(agent_ids=["c", "a", "b"], module_ids=module_ids)])
    shared: dict[str, Any] = {}
    batch = to_module(rl_module=None, episodes=(episodes := games()), shared_data=shared)
    if between:
        between(episodes)
    outputs = {name: {"actions": make(10 * columns["obs"])} for name, columns in batch.items()}
    pipeline = to_env(UserPiece(), before=[UnstackAgents()])
    return batch, pipeline(rl_module=None, batch=outputs, episodes=episodes, shared_data=shared)["actions"]


@pytest.mark.parametrize("make", [torch.as_tensor, np.asarray])
def test_each_agent_that_acts_gets_its_part(make: Any) -> None:
    batch, actions = unstacked(make)
    assert batch["team"]["obs"].tolist() == [[0.0, 2.0, 1.0], [0.0, 5.0, 6.0]]  # b has ended, and was seen
    assert batch["team"]["agent_mask"].tolist() == [[False, True, True], [False, True, True]]
    assert batch["solo"]["obs"].tolist() == [[3.0, 0.0, 0.0]]
    assert actions == [{"b": 10.0, "a": 20.0}, {"c": 30.0}, {}, {"a": 50.0}]


def test_modules_that_are_not_stacked_are_left_alone() -> None:
    batch, actions = unstacked(module_ids=["solo"])
    assert batch["team"]["obs"].tolist() == [1.0, 2.0, 5.0]
    assert actions == [{"b": 10.0, "a": 20.0}, {"c": 30.0}, {}, {"a": 50.0}]


def test_agents_that_end_in_between_get_nothing() -> None:
    _, actions = unstacked(between=lambda episodes: episodes[0].add_env_step({}, {}, {}, terminateds={"b": True}))
    assert actions[0].get("b") is None and actions[3] == {"a": 50.0}
