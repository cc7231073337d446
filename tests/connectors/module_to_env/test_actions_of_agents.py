"""Padded actions become agents' own, and outputs for rows of all agents reach each agent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
    StackAgents,
    TensorToNumpy,
)
from epibatch.connectors.env_to_module import EnvToModulePipeline, PadActions
from epibatch.connectors.module_to_env import (
    CutPaddedActions,
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    UnBatchToIndividualItems,
    UnstackAgents,
)
from epibatch.core.errors import BatchLayoutError, ColumnError, SpaceError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import UserPiece

SEEN = Box(-9, 9, (1,))


def to_env(spaces: Any, *pieces: Any) -> ModuleToEnvPipeline:
    head = [GetActions(), TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping()]
    tail = [NormalizeAndClipActions(), ListifyDataForVectorEnv()]
    return ModuleToEnvPipeline(None, spaces, connectors=[*head, *pieces, *tail])


def episodes(agents: str, count: int = 1, module: Any = "shared") -> list[MultiAgentEpisode]:
    out = []
    for i in range(count):
        mapping = module if callable(module) else lambda *_, **__: module
        episode = MultiAgentEpisode(id_=f"e{i}", agent_to_module_mapping_fn=mapping)
        episode.add_env_reset(observations={agent: np.zeros(1, np.float32) for agent in agents})
        out.append(episode)
    return out


def out_of(spaces: Any, actions: Any, *pieces: Any, agents: str = "ab", count: int = 1) -> Any:
    pipeline = to_env(spaces, *(pieces or (CutPaddedActions(),)))
    outputs = {"shared": {"actions": torch.as_tensor(actions)}}
    return pipeline(rl_module=None, batch=outputs, episodes=episodes(agents, count))


def test_discrete_actions_stay_and_are_the_agents_own() -> None:
    spaces = Dict(a=Discrete(2), b=Discrete(4, start=-1))
    out = out_of(spaces, np.array([1, 2, 0, -1]), UserPiece(), CutPaddedActions(), UserPiece(), count=2)
    assert out["actions_for_env"] == [{"a": 1, "b": 2}, {"a": 0, "b": -1}]
    assert out["actions"] == out["actions_for_env"]
    for row in out["actions_for_env"]:
        assert all(spaces[agent].contains(action) for agent, action in row.items())


@pytest.mark.parametrize(("actions", "agent"), [([2, 0], "a"), ([0, -2], "b"), ([0, 3], "b"), ([-1, 0], "a")])
def test_an_action_that_the_agent_does_not_have_is_an_error(actions: list[int], agent: str) -> None:
    spaces = Dict(a=Discrete(2), b=Discrete(4, start=-1))
    wrong = actions["ab".index(agent)]
    with pytest.raises(ColumnError, match=rf"agent '{agent}'[\s\S]*found: +{wrong}, [\s\S]*action_mask"):
        out_of(spaces, np.array(actions))


def test_boxes_are_cut_then_stretched_and_clipped() -> None:
    spaces = Dict(a=Box(-2, 2, (1,)), b=Box(0, 4, (3,)), c=Box(-2, 2, (1,)))
    rows = np.float32([[0.5, 9, 9], [-1, 0, 3], [-3, 9, 9]])
    out = out_of(spaces, rows, agents="abc")
    (found,) = out["actions_for_env"]
    assert {agent: action.tolist() for agent, action in found.items()} == {"a": [1], "b": [0, 2, 4], "c": [-2]}
    assert all(found[agent] in spaces[agent] for agent in spaces.spaces)
    assert [action.tolist() for action in out["actions"][0].values()] == rows.tolist()
    plain = out_of(spaces, rows, CutPaddedActions(normalize_actions=False, clip_actions=True), agents="abc")
    assert [a.tolist() for a in plain["actions_for_env"][0].values()] == [[0.5], [0, 0, 3], [-2]]


def test_actions_of_different_shapes_pass_plain_pieces_behind() -> None:
    spaces = Dict(a=Box(-2, 2, (1,)), b=Box(0, 4, (3,)))
    rows = np.float32([[0.5, 9, 9], [-1, 0, 1]])
    out = out_of(spaces, rows, CutPaddedActions(), UserPiece())
    assert [action.tolist() for action in out["actions_for_env"][0].values()] == [[1.0], [0.0, 2.0, 4.0]]


def test_agents_with_nothing_to_cut_get_what_normalising_gives() -> None:
    rng = np.random.default_rng(0)
    spaces = Dict(a=Box(-2, 6, (2, 2)), b=Box(0, 4, (2, 2)))
    rows = rng.normal(size=(6, 2, 2)).astype(np.float32)
    one = out_of(spaces, rows, count=3)
    other = out_of(spaces, rows, UserPiece(), count=3)
    for cut, same in zip(one["actions_for_env"], other["actions_for_env"]):
        assert all(np.array_equal(cut[agent], same[agent]) for agent in "ab")
    flags = Dict(a=MultiBinary(3), b=MultiBinary(3))
    kept = out_of(flags, np.ones((2, 3), np.int8))
    assert [action.tolist() for action in kept["actions_for_env"][0].values()] == [[1, 1, 1]] * 2


def test_there_and_back_with_a_module_that_heeds_the_mask() -> None:
    """Only allowed actions are drawn, and each of them is."""
    actions = Dict(a=Discrete(2), b=Discrete(5), c=Discrete(2, start=3))
    seen = Dict(dict.fromkeys("abc", SEEN))

    class Masked(TorchRLModule):
        def _forward(self, batch: Any, **_: Any) -> Any:
            legal = batch["obs"]["action_mask"].bool()
            return {"action_dist_inputs": torch.zeros(legal.shape).masked_fill(~legal, -1e9)}

    to_module = EnvToModulePipeline(
        seen,
        actions,
        connectors=[
            PadActions(),
            AddObservationsFromEpisodesToBatch(),
            AgentToModuleMapping(agent_to_module_mapping_fn=lambda *_: "shared"),
            BatchIndividualItems(),
            NumpyToTensor(),
        ],
    )
    spec = RLModuleSpec(
        module_class=Masked,
        observation_space=to_module.observation_space["shared"],
        action_space=to_module.action_space["shared"],
    )
    module = MultiRLModule(rl_module_specs={"shared": spec})
    drawn: dict[str, set[int]] = {agent: set() for agent in "abc"}
    back = to_env(actions, CutPaddedActions())
    back.seed(0)
    for _ in range(20):
        games = episodes("cab", 4)
        shared: dict[str, Any] = {}
        batch = to_module(rl_module=module, episodes=games, shared_data=shared)
        outputs = module.forward_exploration(batch)
        out = back(rl_module=module, batch=outputs, episodes=games, explore=True, shared_data=shared)
        for row in out["actions_for_env"]:
            for agent, action in row.items():
                assert actions[agent].contains(action)
                drawn[agent].add(int(action))
    assert drawn == {"a": {0, 1}, "b": {0, 1, 2, 3, 4}, "c": {3, 4}}


def test_mistakes_are_named() -> None:
    boxes = Dict(a=Box(-1, 1, (2,)), b=Box(-1, 1, (3,)))
    with pytest.raises(ColumnError, match=r"agent 'b'[\s\S]*shape \(3,\)[\s\S]*shape \(2,\)"):
        out_of(boxes, np.zeros((2, 2), np.float32))
    with pytest.raises(ColumnError, match=r"found: +shape \(\)"):
        out_of(boxes, np.zeros(2, np.int64))
    with pytest.raises(SpaceError, match="action space of agent 'b'"):
        out_of(Dict(a=Discrete(2)), np.zeros(2, np.int64))
    with pytest.raises(SpaceError, match="own action spaces"):
        out_of(None, np.zeros(2, np.int64))
    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        CutPaddedActions(None, Discrete(2))(
            batch={"actions": np.zeros(1)}, episodes=[SingleAgentEpisode(observations=[0])]
        )
    with pytest.raises(ColumnError, match="after ModuleToAgentUnmapping"):
        CutPaddedActions(None, gym.spaces.Dict(a=Discrete(2)))(
            batch={"shared": {"actions": np.zeros(1)}}, episodes=episodes("a")
        )


AGENTS = ["c", "a", "b"]


def games() -> list[MultiAgentEpisode]:
    """Who observes: a and b, only c, nobody, all but c, of which b ends."""
    seen = ({"b": 1.0, "a": 2.0}, {"c": 3.0}, {}, {"a": 5.0, "b": 6.0})
    out = []
    for i, observations in enumerate(seen):
        fn = lambda agent, *_, **__: "solo" if agent == "c" else "team"  # noqa: E731
        episode = MultiAgentEpisode(id_=f"e{i}", agent_to_module_mapping_fn=fn)
        if i < 3:
            episode.add_env_reset(observations=observations)
        else:
            episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
            acts = dict.fromkeys("ab", 0)
            episode.add_env_step(observations, acts, dict.fromkeys("ab", 0.0), terminateds={"b": True})
        out.append(episode)
    return out


def run(episodes: list[MultiAgentEpisode], module_ids: Any = None, make: Any = torch.as_tensor) -> tuple[Any, Any]:
    """Outputs are observations times ten."""
    to_module = EnvToModulePipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(),
            UserPiece(),
            AgentToModuleMapping(),
            BatchIndividualItems(),
            StackAgents(agent_ids=AGENTS, module_ids=module_ids),
        ]
    )
    to_env = ModuleToEnvPipeline(
        connectors=[
            UnstackAgents(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            ModuleToAgentUnmapping(),
            UserPiece(),
            ListifyDataForVectorEnv(),
        ]
    )
    shared: dict[str, Any] = {}
    batch = to_module(rl_module=None, episodes=episodes, shared_data=shared)
    outputs = {name: {"actions": make(10 * columns["obs"])} for name, columns in batch.items()}
    return batch, to_env(rl_module=None, batch=outputs, episodes=episodes, shared_data=shared)


@pytest.mark.parametrize("make", [torch.as_tensor, np.asarray])
def test_each_agent_that_acts_gets_its_part(make: Any) -> None:
    batch, out = run(games(), make=make)
    assert batch["team"]["obs"].tolist() == [[0.0, 2.0, 1.0], [0.0, 5.0, 6.0]]  # b has ended, and was seen
    assert batch["team"]["agent_mask"].tolist() == [[False, True, True], [False, True, True]]
    assert batch["solo"]["obs"].tolist() == [[3.0, 0.0, 0.0]]
    assert out["actions"] == [{"b": 10.0, "a": 20.0}, {"c": 30.0}, {}, {"a": 50.0}]


def test_modules_that_are_not_stacked_are_left_alone() -> None:
    batch, out = run(games(), module_ids=["solo"])
    assert batch["team"]["obs"].tolist() == [1.0, 2.0, 5.0]
    assert out["actions"] == [{"b": 10.0, "a": 20.0}, {"c": 30.0}, {}, {"a": 50.0}]


def test_agents_that_end_in_between_get_nothing() -> None:
    episodes = games()
    to_module = EnvToModulePipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(),
            AgentToModuleMapping(),
            BatchIndividualItems(),
            StackAgents(agent_ids=AGENTS),
        ]
    )
    shared: dict[str, Any] = {}
    batch = to_module(rl_module=None, episodes=episodes, shared_data=shared)
    episodes[0].add_env_step({}, {}, {}, terminateds={"b": True})
    to_env = ModuleToEnvPipeline(
        connectors=[
            UnstackAgents(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            ModuleToAgentUnmapping(),
            ListifyDataForVectorEnv(),
        ]
    )
    outputs = {name: {"actions": columns["obs"]} for name, columns in batch.items()}
    out = to_env(rl_module=None, batch=outputs, episodes=episodes, shared_data=shared)
    assert out["actions"][0].get("b") is None and out["actions"][3] == {"a": 5.0}


def test_outputs_of_another_shape_are_named() -> None:
    with pytest.raises(ColumnError, match=r"column 'actions'[\s\S]*shape \[2, 3, '...'\]"):
        run(games(), make=lambda obs: torch.as_tensor(obs)[:, :2])


def test_episodes_of_one_agent_are_refused() -> None:
    from epibatch.episodes import SingleAgentEpisode

    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        ModuleToEnvPipeline(connectors=[UnstackAgents()])(
            batch={"actions": np.zeros(1)}, episodes=[SingleAgentEpisode(observations=[0])]
        )
