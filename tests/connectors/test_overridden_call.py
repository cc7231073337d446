"""Subclasses of built-in pieces that override `__call__`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorPipelineV2, ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    EnvToModulePipeline,
    NumpyToTensor,
    WriteObservationsToEpisodes,
)
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    AgentToModuleMapping,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import GetActions, ModuleToEnvPipeline
from epibatch.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

BOX = gym.spaces.Box(-9, 9, (1,), np.float32)
TWO = gym.spaces.Discrete(2)


def episode(length: int = 3, id_: str = "e") -> Any:
    out = SingleAgentEpisode(id_=id_, observation_space=BOX, action_space=TWO)
    out.add_env_reset(np.zeros(1, np.float32))
    for t in range(length):
        out.add_env_step(np.full(1, t + 1, np.float32), t % 2, float(t), terminated=t == length - 1)
    return out


def plus_one(batch: Any) -> Any:
    ConnectorV2.foreach_batch_item_change_in_place(batch, "obs", lambda x, *_: x + 1)
    return batch


class PlusOne(AddObservationsFromEpisodesToBatch):
    """Adds observations that are one too large."""

    def __call__(self, *, batch: Any, **call: Any) -> Any:
        return plus_one(super().__call__(batch=batch, **call))


def acting_episode() -> Any:
    out = SingleAgentEpisode(id_="e", observation_space=BOX, action_space=TWO)
    out.add_env_reset(np.zeros(1, np.float32))
    return out


@pytest.mark.parametrize("kind", [EnvToModulePipeline, LearnerConnectorPipeline, ConnectorPipelineV2])
def test_an_override_is_called_in_every_pipeline(kind: Any) -> None:
    learning = kind is LearnerConnectorPipeline
    pipeline = kind(BOX, TWO, connectors=[PlusOne(as_learner_connector=learning), BatchIndividualItems()])
    obs = pipeline(episodes=[episode()])["obs"]
    assert obs.tolist() == ([[1], [2], [3]] if learning else [[4]])
    assert pipeline(episodes=[episode()])["obs"].tolist() == obs.tolist()


def test_a_subclass_of_a_subclass_and_a_mixin_count_too() -> None:
    class More(PlusOne):
        """Overrides nothing itself."""

    class Mixin:
        def __call__(self, **call: Any) -> Any:
            return plus_one(super().__call__(**call))  # type: ignore[misc]

    class Mixed(Mixin, AddObservationsFromEpisodesToBatch):  # type: ignore[misc]
        """Overrides by a class that is no piece."""

    for cls in (More, Mixed):
        assert EnvToModulePipeline(BOX, TWO, connectors=[cls()])(episodes=[acting_episode()])["obs"]["e",] == [[1]]


def test_what_an_override_leaves_need_not_be_what_the_piece_says() -> None:
    class Other(AddObservationsFromEpisodesToBatch):
        def __call__(self, *, batch: Any, episodes: Any, **call: Any) -> Any:
            for one in episodes:
                self.add_batch_item(batch, "obs", np.zeros((2, 2)), one)
                self.add_batch_item(batch, "mine", 7, one)
            return batch

    class Reader(ConnectorV2):
        reads = ("mine",)

        def __call__(self, *, batch: Any, **call: Any) -> Any:
            return batch

    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[Other(), Reader(), BatchIndividualItems(), NumpyToTensor()])
    out = pipeline(episodes=[acting_episode()])
    assert out["obs"].shape == (1, 2, 2)
    assert out["mine"].tolist() == [7]


def test_an_override_may_pass_other_arguments_on() -> None:
    class Greedy(GetActions):
        def __call__(self, **call: Any) -> Any:
            return super().__call__(**{**call, "explore": False})

    module = RLModuleSpec(observation_space=BOX, action_space=TWO).build()
    pipeline = ModuleToEnvPipeline(BOX, TWO, connectors=[Greedy()])
    logits = torch.zeros(1, 2)
    for _ in range(20):
        call = {"rl_module": module, "episodes": [acting_episode()], "explore": True}
        assert pipeline(batch={"action_dist_inputs": logits}, **call)["actions"].tolist() == [0]


def test_super_goes_on_with_the_call_of_the_pipeline() -> None:
    """Advantages know of the bootstrap rows that an earlier piece added."""

    class Frames(FrameStacking):
        def __call__(self, **call: Any) -> Any:
            return super().__call__(**call)

    class Advantages(GeneralAdvantageEstimation):
        def __call__(self, *, batch: Any, **call: Any) -> Any:
            out = super().__call__(batch=batch, **call)
            out["default_policy"]["advantages"] = out["default_policy"]["advantages"] * 2
            return out

    specs = {
        "default_policy": RLModuleSpec(observation_space=gym.spaces.Box(-9, 9, (2,), np.float32), action_space=TWO)
    }
    module = MultiRLModuleSpec(rl_module_specs=specs).build()

    def batch(frames: Any, advantages: Any) -> Any:
        pipeline = LearnerConnectorPipeline(
            BOX,
            TWO,
            connectors=[
                AddOneTsToEpisodesAndTruncate(),
                frames(num_frames=2, as_learner_connector=True),
                AddColumnsFromEpisodesToTrainBatch(),
                BatchIndividualItems(),
                NumpyToTensor(),
                advantages(),
            ],
        )
        return pipeline(rl_module=module, episodes=[episode(4), episode(3, "g")])

    plain, own = batch(FrameStacking, GeneralAdvantageEstimation), batch(Frames, Advantages)
    plain, own = plain["default_policy"], own["default_policy"]
    assert torch.equal(plain["obs"], own["obs"])
    assert torch.equal(plain["value_targets"], own["value_targets"])
    assert torch.equal(plain["advantages"] * 2, own["advantages"])


def test_a_piece_that_another_calls_leaves_the_pipeline_alone() -> None:
    class Peek(ConnectorV2):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.add, self.join = AddObservationsFromEpisodesToBatch(), BatchIndividualItems()

        def __call__(self, *, batch: Any, episodes: Any, **call: Any) -> Any:
            own = self.add(batch={}, episodes=episodes, **call)
            self.seen = self.join(batch=own, episodes=episodes, **call)["obs"]
            return batch

    peek = Peek()
    pipeline = LearnerConnectorPipeline(
        BOX,
        TWO,
        connectors=[peek, AddObservationsFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems()],
    )
    assert pipeline(episodes=[episode()])["obs"].tolist() == [[0], [1], [2]]
    assert peek.seen.tolist() == [[3]]


def test_a_piece_that_writes_observations_back_may_be_overridden() -> None:
    class Back(WriteObservationsToEpisodes):
        def __call__(self, **call: Any) -> Any:
            return super().__call__(**call)

    one = acting_episode()
    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[PlusOne(), Back()])
    assert pipeline(episodes=[one])["obs"]["e",] == [[1]]
    assert one.get_observations(-1).tolist() == [1]


def test_a_transform_may_be_overridden() -> None:
    class Doubled(ColumnTransform):
        columns = "obs"

        def transform(self, x: Any) -> Any:
            return 2 * x

        def __call__(self, *, batch: Any, **call: Any) -> Any:
            return plus_one(super().__call__(batch=batch, **call))

    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[AddObservationsFromEpisodesToBatch(), Doubled()])
    assert pipeline(episodes=[episode()])["obs"]["e",] == [[7]]


def test_overrides_run_in_traces_and_profiles() -> None:
    pipeline = EnvToModulePipeline(BOX, TWO, connectors=[PlusOne(), BatchIndividualItems()])
    trace = pipeline.trace([acting_episode()])
    assert "plus_one" in str(trace)
    with pipeline.profile() as profile:
        assert pipeline(episodes=[acting_episode()])["obs"].tolist() == [[1]]
    assert [row.calls for row in profile.rows()] == [1, 1]


def two_agents() -> Any:
    modules = {"x": "m0", "y": "m1"}
    spaces = {"observation_space": gym.spaces.Dict(dict.fromkeys(modules, BOX))}
    out = MultiAgentEpisode(
        id_="m",
        **spaces,
        action_space=gym.spaces.Dict(dict.fromkeys(modules, TWO)),
        agent_to_module_mapping_fn=lambda agent, episode, **_: modules[agent],
    )
    zero = np.zeros(1, np.float32)
    out.add_env_reset(observations={"x": zero, "y": zero})
    out.add_env_step({"x": zero + 1, "y": zero + 1}, {"x": 0, "y": 1}, {"x": 1.0, "y": 2.0})
    out.add_env_step({"x": zero + 2}, {"x": 1}, {"x": 3.0})
    return out


def test_pieces_called_by_hand_have_every_agents_rows() -> None:
    call = {"rl_module": None, "episodes": [two_agents()], "shared_data": {}}
    batch = AddColumnsFromEpisodesToTrainBatch()(batch={}, **call)
    assert {key[1]: items[0].tolist() for key, items in batch["rewards"].items()} == {"x": [1, 3], "y": [2]}
    batch = AddObservationsFromEpisodesToBatch(as_learner_connector=True)(batch=batch, **call)
    batch = AgentToModuleMapping(rl_module_specs={"m0", "m1"}, as_learner_connector=True)(batch=batch, **call)
    batch = NumpyToTensor()(batch=BatchIndividualItems(multi_agent=True)(batch=batch, **call), **call)
    assert {name: own["obs"].tolist() for name, own in batch.items()} == {"m0": [[0], [1]], "m1": [[0]]}


def test_advantages_of_several_agents_by_hand_are_those_of_the_pipeline() -> None:
    spec = RLModuleSpec(observation_space=BOX, action_space=TWO)
    module = MultiRLModuleSpec(rl_module_specs={"m0": spec, "m1": spec}).build()

    def pieces() -> list[Any]:
        return [
            AddOneTsToEpisodesAndTruncate(),
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(rl_module_specs={"m0": spec, "m1": spec}, as_learner_connector=True),
            BatchIndividualItems(multi_agent=True),
            NumpyToTensor(),
            GeneralAdvantageEstimation(),
        ]

    call: dict[str, Any] = {"rl_module": module, "episodes": [two_agents()], "shared_data": {}}
    expected = LearnerConnectorPipeline(connectors=pieces())(batch={}, **{**call, "shared_data": {}})
    found: dict[str, Any] = {}
    for piece in pieces():
        found = piece(batch=found, **call)
    for name, own in expected.items():
        assert own.keys() == found[name].keys()
        assert all(torch.equal(column, found[name][key]) for key, column in own.items())
