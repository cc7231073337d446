"""Rows of all agents of an env step, beside loops over dicts, when acting and in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
    StackAgents,
)
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import RewardScaling
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec, TorchRLModule
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import played
from oracle.agents import Schedule, schedules, scripted
from oracle.cases import random_cases
from oracle.env_steps import by_env_step
from oracle.teams import MODULES

AGENTS = ["d", "a", "c", "b"]
VECTOR = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def module_of(agent_id: Any, *_: Any, **__: Any) -> str:
    return MODULES[agent_id]


class Values(TorchRLModule):
    """The value of an observation is the sum of its weighted entries, in any shape of batch."""

    def setup(self) -> None:
        self.weights = torch.tensor([0.5, 0.125])

    def _forward(self, batch: Any, **_: Any) -> Any:
        return {"action_dist_inputs": batch["obs"] * 1.0}

    def compute_values(self, batch: Any, embeddings: Any = None) -> torch.Tensor:
        return (batch["obs"] * self.weights).sum(-1)


def modules() -> MultiRLModule:
    spec = RLModuleSpec(module_class=Values, observation_space=VECTOR, action_space=gym.spaces.Discrete(2))
    return MultiRLModule(rl_module_specs=dict.fromkeys(set(MODULES.values()), spec))


def chunks(schedule: Schedule, cuts: set[int], name: str = "e") -> list[MultiAgentEpisode]:
    episode = MultiAgentEpisode(
        id_=name, observation_space=dict.fromkeys(AGENTS, VECTOR), agent_to_module_mapping_fn=module_of
    )
    episode.add_env_reset(**schedule.reset)
    out = [episode]
    for t, step in enumerate(schedule.steps):
        if t in cuts:
            out.append(out[-1].cut())
        out[-1].add_env_step(**step)
    return out


def lives(episode: MultiAgentEpisode, module_id: str | None = None) -> list[tuple[Any, list[int]]]:
    parts = [segment for segment in episode.segments if len(segment.episode)]
    parts = [part for part in parts if module_id in (None, part.episode.module_id)]
    return [(part.episode, part.env_steps[part.episode.lookback :].tolist()) for part in parts]


def learner(*more: Any, stacked: bool = True) -> LearnerConnectorPipeline:
    return LearnerConnectorPipeline(
        connectors=[
            AddOneTsToEpisodesAndTruncate(),
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(as_learner_connector=True),
            BatchIndividualItems(),
            *([StackAgents(agent_ids=AGENTS, as_learner_connector=True)] if stacked else []),
            *more,
        ]
    )


@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)))
def test_rows_of_train_batches(schedule: Schedule, cuts: set[int]) -> None:
    """Every cell of every column, and the order of rows."""
    world = by_env_step(schedule)
    parts = [part for part in chunks(schedule, cuts) if lives(part)]
    if not parts:
        return
    found = learner()(rl_module=None, episodes=parts)
    for module_id, columns in found.items():
        expected = []
        for part in parts:
            cells: dict[int, dict[str, Any]] = {}
            for single, steps in lives(part, module_id):
                for i, t in enumerate(steps):
                    cells.setdefault(t, {})[single.agent_id] = (single, i, i < len(steps) - 1)
            expected += [(t, cells[t]) for t in sorted(cells)]
        assert columns["obs"].shape == (len(expected), 4, 2)
        for row, (t, cells_) in enumerate(expected):
            for place, agent in enumerate(AGENTS):
                assert columns["agent_mask"][row, place] == (agent in world.seen[t])
                assert columns["obs"][row, place].tolist() == list(world.seen[t].get(agent, [0.0, 0.0]))
                single, i, step = cells_.get(agent, (None, 0, False))
                assert columns["loss_mask"][row, place] == step
                reward = single.get_rewards(i) if step else 0.0
                assert columns["rewards"][row, place] == np.float32(reward)
                if step:
                    assert columns["actions"][row, place] == single.get_actions(i)
                    assert columns["logp"][row, place] == single.get_extra_model_outputs("logp", i)


@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)))
def test_rewards_that_are_shifted_stay_zero_where_no_step_is(schedule: Schedule, cuts: set[int]) -> None:
    parts = [part for part in chunks(schedule, cuts) if lives(part)]
    if not parts:
        return
    plain = learner()(rl_module=None, episodes=parts)
    for module_id, columns in learner(RewardScaling(loc=10.0))(rl_module=None, episodes=parts).items():
        steps, before = plain[module_id]["loss_mask"], plain[module_id]["rewards"]
        np.testing.assert_array_equal(columns["rewards"], np.where(steps, before + 10, 0))


@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)))
def test_joint_observations_are_those_that_were_acted_on(schedule: Schedule, cuts: set[int]) -> None:
    acting = EnvToModulePipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(),
            AgentToModuleMapping(),
            BatchIndividualItems(),
            StackAgents(agent_ids=AGENTS),
        ]
    )
    acted: dict[tuple[str, int], Any] = {}
    parts = chunks(replace(schedule, steps=[]), set())
    for t in range(len(schedule.steps) + 1):
        if t:
            if t - 1 in cuts:
                parts.append(parts[-1].cut())
            parts[-1].add_env_step(**schedule.steps[t - 1])
        for module_id, columns in acting(rl_module=None, episodes=[parts[-1]]).items():
            assert columns["obs"].shape == (1, 4, 2)
            acted[module_id, t] = columns["obs"][0], columns["agent_mask"][0]
    parts = [part for part in parts if lives(part)]
    if not parts:
        return
    found = learner()(rl_module=None, episodes=parts)
    for module_id, columns in found.items():
        steps = [sorted({t for _, own in lives(part, module_id) for t in own}) for part in parts]
        for row, t in enumerate(t for own in steps for t in own):
            if columns["loss_mask"][row].any():
                obs, mask = acted[module_id, t]
                assert np.array_equal(columns["obs"][row], obs) and np.array_equal(columns["agent_mask"][row], mask)


@random_cases(schedule=schedules(agents=4, length=8), cuts=st.sets(st.integers(1, 7)))
def test_advantages_are_those_of_rows_by_agent(schedule: Schedule, cuts: set[int]) -> None:
    parts = [part for part in chunks(schedule, cuts) if lives(part)]
    if not parts:
        return
    module, gae = modules(), GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5)
    single = learner(NumpyToTensor(), gae, stacked=False)(rl_module=module, episodes=parts)
    joint = learner(NumpyToTensor(), gae)(rl_module=module, episodes=parts)
    for module_id, columns in single.items():
        at = 0
        own = joint[module_id]
        rows = [(i, t) for i, p in enumerate(parts) for t in sorted({t for _, s in lives(p, module_id) for t in s})]
        for i, part in enumerate(parts):
            for episode, steps in lives(part, module_id):
                for t in steps:
                    cell = rows.index((i, t)), AGENTS.index(episode.agent_id)
                    for name in ("advantages", "value_targets", "loss_mask", "obs"):
                        assert torch.equal(own[name][cell], columns[name][at]), name
                    at += 1
        assert at == len(columns["obs"]) and int(own["loss_mask"].sum()) == int(columns["loss_mask"].sum())


def test_values_by_hand() -> None:
    """a and b observe at 0; a ends at 1, b goes on; c is another module's and comes at 1."""
    schedule = scripted({"a": "oart", "b": "oar", "c": "o"}, {"b": "oar", "c": "oar"})
    (episode,) = chunks(schedule, set())
    obs = [step["observations"] for step in (schedule.reset, *schedule.steps)]
    found = learner()(rl_module=None, episodes=[episode])
    walker = found["walker"]  # b and c
    nothing = [0.0, 0.0]
    assert walker["obs"].tolist() == [
        [nothing, obs[0]["a"].tolist(), nothing, obs[0]["b"].tolist()],
        [nothing, obs[1]["a"].tolist(), obs[1]["c"].tolist(), obs[1]["b"].tolist()],
        [nothing, nothing, obs[2]["c"].tolist(), obs[2]["b"].tolist()],
    ]
    assert walker["agent_mask"].tolist() == [[0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert walker["loss_mask"].tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert found["thinker"]["loss_mask"].tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


def test_without_a_loss_mask_rows_of_agents_carry_loss() -> None:
    (episode,) = chunks(scripted({"a": "oar", "b": "oar"}, {"a": "oar"}), set())
    pieces = list(learner(stacked=False).connectors)[1:]
    found = LearnerConnectorPipeline(connectors=[*pieces, StackAgents(agent_ids=["a", "b"], as_learner_connector=True)])
    batch = found(rl_module=None, episodes=[episode])
    assert batch["thinker"]["loss_mask"].tolist() == [[True, False], [True, False]]
    assert batch["walker"]["loss_mask"].tolist() == [[False, True]]
    assert batch["thinker"]["agent_mask"].tolist() == [[True, True], [True, True]]


def test_only_some_modules_are_stacked_and_other_agents_need_no_place() -> None:
    (episode,) = chunks(scripted({"a": "oar", "b": "oar"}, {"a": "oar", "b": "oar"}), set())
    piece = StackAgents(agent_ids=["b", "c"], module_ids=["walker"], as_learner_connector=True)
    found = LearnerConnectorPipeline(connectors=[*learner(stacked=False), piece])(rl_module=None, episodes=[episode])
    assert found["walker"]["obs"].shape == (3, 2, 2) and found["thinker"]["obs"].shape == (3, 2)


@pytest.mark.parametrize("module_ids", [None, ["walker"]])
def test_the_modules_observation_spaces_have_the_agents_axis(module_ids: Any) -> None:
    spaces = gym.spaces.Dict(dict.fromkeys(AGENTS, gym.spaces.Box(-1, 1, (2,))))
    actions = gym.spaces.Dict(dict.fromkeys(AGENTS, gym.spaces.Discrete(3)))
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=module_of)
    stack = StackAgents(agent_ids=AGENTS, module_ids=module_ids)
    pieces = [AddObservationsFromEpisodesToBatch(), mapping, BatchIndividualItems(), stack]
    pipeline = EnvToModulePipeline(spaces, actions, connectors=pieces)
    found = pipeline.observation_space
    assert {key: found[key].shape for key in ("walker", "thinker")} == {
        "walker": (4, 2),
        "thinker": (4, 2) if module_ids is None else (2,),
    }
    assert all(own == gym.spaces.Discrete(3) for own in pipeline.action_space.values())


def test_mistakes_are_named() -> None:
    (episode,) = chunks(scripted({"a": "oar", "b": "oar"}, {"a": "oar", "b": "oar"}), set())
    base = list(learner(stacked=False))
    with pytest.raises(ConfigError, match=r"StackAgents.agent_ids"):
        StackAgents()
    with pytest.raises(UnknownNameError, match=r"the agents 'a'[\s\S]*'b'"):
        LearnerConnectorPipeline(connectors=[*base, StackAgents(agent_ids=["a"], as_learner_connector=True)])(
            rl_module=None, episodes=[episode]
        )
    with pytest.raises(BatchLayoutError, match="twice"):
        learner()(rl_module=None, episodes=[episode, episode])
    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        learner()(
            rl_module=None,
            episodes=[played([0, 1])],
        )


def test_recurrent_modules_are_refused() -> None:
    class Memory(Values):
        def get_initial_state(self) -> Any:
            return {"h": np.zeros(1, np.float32)}

    spec = RLModuleSpec(module_class=Memory, observation_space=VECTOR, action_space=gym.spaces.Discrete(2))
    module = MultiRLModule(rl_module_specs=dict.fromkeys(set(MODULES.values()), spec))
    (episode,) = chunks(scripted({"a": "oar"}), set())
    with pytest.raises(BatchLayoutError, match="recurrent"):
        learner()(rl_module=module, episodes=[episode])


def test_observations_that_were_changed_in_the_batch_only_are_refused_where_one_is_missing() -> None:
    """b observed at 1 and has no row there, as its step ends later; a's rows in the batch are longer."""

    class Longer(AddObservationsFromEpisodesToBatch):
        def run(self, batch: Any, call: Any) -> Any:
            batch = super().run(batch, call)
            batch["obs"].data = np.concatenate([batch["obs"].data] * 2, -1)
            return batch

    pieces = [Longer(), AgentToModuleMapping(), BatchIndividualItems(), StackAgents(agent_ids=["a", "b"])]
    (episode,) = chunks(scripted({"a": "oar", "b": "oart"}), set())
    with pytest.raises(ColumnError, match=r"of shape \(2,\)[\s\S]*\(4,\)"):
        EnvToModulePipeline(connectors=pieces)(rl_module=None, episodes=[episode])


@pytest.mark.parametrize("column", [np.zeros(9), [{}] * 9])
def test_other_numbers_of_rows_are_named(column: Any) -> None:
    class Adds(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            return {name: {**own, "x": column} for name, own in batch.items()}

    (episode,) = chunks(scripted({"a": "oar", "b": "oar"}), set())
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping(), BatchIndividualItems(), Adds()]
    with pytest.raises(ColumnError, match=r"column 'x'[\s\S]*1 rows[\s\S]*9 rows"):
        EnvToModulePipeline(connectors=[*pieces, StackAgents(agent_ids=["a", "b"])])(rl_module=None, episodes=[episode])


def test_lists_have_none_where_there_is_no_row() -> None:
    class Adds(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            return {name: {**own, "x": [{"obs": row.tolist()} for row in own["obs"]]} for name, own in batch.items()}

    (episode,) = chunks(scripted({"a": "oar", "b": "oar"}), set())
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping(), BatchIndividualItems(), Adds()]
    found = EnvToModulePipeline(connectors=[*pieces, StackAgents(agent_ids=["b", "a"])])(
        rl_module=None, episodes=[episode]
    )
    assert {name: [[item is None for item in row] for row in own["x"]] for name, own in found.items()} == {
        "thinker": [[True, False]],
        "walker": [[False, True]],
    }


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            gym.spaces.Box(np.float32([1, -3]), np.float32([2, -1])),
            gym.spaces.Box(*np.float32([2 * [[0, -3]], 2 * [[2, 0]]])),
        ),
        (gym.spaces.Discrete(3, start=2), gym.spaces.MultiDiscrete([5, 5])),
        (gym.spaces.Discrete(3, start=-5), gym.spaces.MultiDiscrete([6, 6], start=[-5, -5])),
        (gym.spaces.MultiDiscrete([2, 4], start=[0, 1]), gym.spaces.MultiDiscrete([[2, 5], [2, 5]])),
        (gym.spaces.MultiBinary([3, 1]), gym.spaces.MultiBinary([2, 3, 1])),
        (gym.spaces.Text(3), gym.spaces.Tuple([gym.spaces.Text(3)] * 2)),
    ],
)
def test_the_space_of_a_row_of_all_agents(space: gym.Space, expected: gym.Space) -> None:
    piece = StackAgents(agent_ids=["a", "b"])
    assert piece.recompute_output_observation_space(space, None) == expected
    nested = gym.spaces.Dict(a=space, b=gym.spaces.Tuple([space]))
    assert piece.recompute_output_observation_space(nested, None) == gym.spaces.Dict(
        a=expected, b=gym.spaces.Tuple([expected])
    )


def test_rows_are_of_the_space() -> None:
    spaces = gym.spaces.Dict(dict.fromkeys(AGENTS, gym.spaces.Box(1.0, 2.0, (2,))))
    episode = MultiAgentEpisode(observation_space=spaces, agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={agent: spaces[agent].sample() for agent in ("a", "c")})
    actions = gym.spaces.Dict(dict.fromkeys(AGENTS, gym.spaces.Discrete(3)))
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=module_of)
    pieces = [AddObservationsFromEpisodesToBatch(), mapping, BatchIndividualItems(), StackAgents(agent_ids=AGENTS)]
    pipeline = EnvToModulePipeline(spaces, actions, connectors=pieces)
    batch = pipeline(rl_module=None, episodes=[episode])
    assert len(batch) == 2
    assert all(pipeline.observation_space[name].contains(row) for name, own in batch.items() for row in own["obs"])
