"""Spaces of columns are known before anything runs, and are those that batches then have."""

from __future__ import annotations

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.column_spaces import FLAG, ColumnSpace, number, retyped
from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.connectors.common import AgentToModuleMapping, FrameStacking, StackAgents
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import ModuleToEnvPipeline
from epibatch.core.errors import SpaceError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.episodes import MultiAgentEpisode

Box, Dict, Discrete = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete


class Halves(ColumnTransform):
    columns = "rewards"

    def transform(self, x):
        return (x / 2).astype(np.float32)


class Undeclared(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


class Ones(ColumnarPiece):
    """Adds flags that are True, and observations under another name."""

    pipelines = ("learner",)
    reads = ("obs",)
    writes = ("ones", "copies", "unsaid")
    written_spaces: ClassVar = {"ones": FLAG, "copies": "obs"}

    def run(self, batch, call):
        return batch


def spelled(spaces):
    return {name: (tuple(own.space.shape or ()), str(own.space.dtype), own.axes) for name, own in spaces.items()}


def found(batch, axes):
    """The same of a batch of tensors."""
    shapes = {name: len(axes[name]) for name in batch if name in axes}
    return {
        name: (tuple(batch[name].shape[leading:]), str(batch[name].dtype).removeprefix("torch."), axes[name])
        for name, leading in shapes.items()
    }


@pytest.mark.parametrize("state", [0, 3])
@pytest.mark.parametrize("ppo", [False, True])
def test_a_train_batch_is_as_it_was_known_to_be(lab, state, ppo):
    pieces = [Halves(), AddNextObservationsFromEpisodesToTrainBatch(), ComputeReturnsToGo(gamma=0.5)]
    pipeline = LearnerConnectorPipeline(
        lab.obs_space, lab.act_space, connectors=[*pieces, *lab.defaults("learner", ppo)]
    )
    module = lab.module(state=state)
    known = pipeline.column_spaces_for(module)
    batch = pipeline(rl_module=module, episodes=[lab.episode("a", 5, state=state), lab.episode("b", 2, state=state)])
    states, expected = ([own.pop(name, None) for name in ("state_in", "next_state_in")] for own in (batch, known))
    assert batch.keys() - {"action_logp"} == known.keys()
    axes = {name: own.axes for name, own in known.items()}
    assert spelled(known) == found(batch, axes)
    assert axes["obs"] == (("batch", "time") if state else ("batch",))
    assert all(own.layout == "tensors" for own in known.values())
    if state:
        space = Dict(h=Box(-np.inf, np.inf, (3,), np.float32))
        assert axes["seq_lens"] == ("batch",) and expected == [ColumnSpace(space, ("batch",), "tensors")] * 2
        assert [own["h"].shape[1:] for own in states] == [(3,)] * 2


def test_observations_through_pieces_that_change_them(lab):
    space = Box(0, 255, (8, 8, 1), np.uint8)
    pieces = lab.defaults("env_to_module")
    stacked = EnvToModulePipeline(
        space, lab.act_space, connectors=[FrameStacking(num_frames=4), *pieces[:0], pieces[3]]
    )
    assert stacked.column_spaces == {"obs": ColumnSpace(stacked.observation_space, ("batch",), "arrays")}
    assert stacked.observation_space.shape == (8, 8, 4)
    pieces = [MeanStdFilter(), *lab.defaults("env_to_module")]
    filtered = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    assert filtered.column_spaces == {"obs": ColumnSpace(Box(-10, 10, (2,), np.float32), ("batch",), "tensors")}


def test_nothing_is_known_where_nothing_is_declared(lab):
    spaces, learner = (lab.obs_space, lab.act_space), LearnerConnectorPipeline
    assert learner(*spaces, connectors=[*lab.defaults("learner"), Undeclared()]).column_spaces == {}
    assert learner(*spaces, connectors=[Undeclared(), *lab.defaults("learner")]).column_spaces == {}
    without = learner(connectors=lab.defaults("learner")).column_spaces
    assert set(without) == {"rewards", "terminateds", "truncateds"}


def test_what_a_class_says_of_the_columns_it_writes(lab):
    pieces = lab.defaults("learner")
    pipeline = LearnerConnectorPipeline(lab.obs_space, lab.act_space, connectors=[*pieces[:1], Ones()])
    spaces = pipeline.column_spaces
    assert list(spaces) == ["obs", "ones", "copies"]
    assert spaces["ones"].space is FLAG and spaces["copies"].space is lab.obs_space
    assert str(spaces["ones"]) == "[batch] of Box(False, True, (), bool), episodes"


def test_on_the_way_to_the_environment(lab):
    pipeline = ModuleToEnvPipeline(lab.obs_space, lab.act_space, connectors=lab.defaults("module_to_env"))
    assert list(pipeline.column_spaces) == ["actions_for_env"]
    module = lab.module(state=2)
    module.action_space = Discrete(2)
    assert {name: (own.space, own.axes) for name, own in pipeline.column_spaces_for(module).items()} == {
        "actions": (Discrete(2), ("batch",)),
        "actions_for_env": (Discrete(2), ("batch",)),
    }


def agents(lab, mapping, at=5):
    small, large = Box(0, 1, (2,), np.float32), Box(0, 1, (5,), np.float32)
    spaces = Dict(x=small, y=small, z=large), Dict(x=lab.act_space, y=lab.act_space, z=lab.act_space)
    pieces = [Halves(), *lab.defaults("learner")]
    pieces.insert(at, mapping)
    return LearnerConnectorPipeline(*spaces, connectors=pieces), small, large


def modules(lab, small, large):
    def spec(space, state):
        return RLModuleSpec(
            module_class=type(lab.module()), observation_space=space, action_space=lab.act_space,
            model_config={"state": state, "max_seq_len": 3},
        )  # fmt: skip

    return MultiRLModule(rl_module_specs={"p": spec(small, 0), "q": spec(large, 2)})


def test_several_agents(lab):
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=lambda agent, *_: "q" if agent == "z" else "p")
    pipeline, small, large = agents(lab, mapping)
    known = pipeline.column_spaces_for(modules(lab, small, large))
    assert known["p/obs"].space == small and known["q/obs"].space == large
    assert known["p/rewards"].space == known["q/rewards"].space == number(np.float32)
    assert known["p/obs"].axes == ("batch",) and known["q/obs"].axes == ("batch", "time")
    states = Dict(h=Box(-np.inf, np.inf, (2,), np.float32))
    assert known["q/state_in"] == ColumnSpace(states, ("batch",), "tensors") and "p/state_in" not in known
    assert known["q/seq_lens"].axes == ("batch",) and "p/seq_lens" not in known
    pipeline.insert_after("batch_individual_items", StackAgents(agent_ids=["x", "y"], module_ids=["p"]))
    stacked = pipeline.column_spaces_for(modules(lab, small, large))
    assert stacked["p/obs"].space == Box(np.stack([small.low] * 2), np.stack([small.high] * 2))
    assert stacked["p/rewards"].space.shape == stacked["p/agent_mask"].space.shape == (2,)
    assert stacked["q/obs"].space == large and "q/agent_mask" not in stacked


@pytest.mark.parametrize("at", [3, 4, 5])
def test_a_batch_of_several_agents_is_as_it_was_known_to_be(lab, at):
    def which(agent, *_, **__):
        return "q" if agent == "z" else "p"

    pipeline, small, large = agents(lab, AgentToModuleMapping(agent_to_module_mapping_fn=which), at)
    module = modules(lab, small, large)
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=which)
    observations = {agent: np.ones(5 if agent == "z" else 2, np.float32) for agent in "xyz"}
    episode.add_env_reset(observations=observations)
    for _ in range(4):
        outputs = {"z": {"state_out": {"h": np.ones(2, np.float32)}}}
        actions, rewards = dict.fromkeys("xyz", 0), dict.fromkeys("xyz", 1.0)
        episode.add_env_step(observations, actions, rewards, extra_model_outputs=outputs)
    batch = pipeline(rl_module=module, episodes=[episode])
    known = pipeline.column_spaces_for(module)
    flat = {f"{one}/{name}": column for one, columns in batch.items() for name, column in columns.items()}
    states, space = flat.pop("q/state_in"), known.pop("q/state_in")
    assert states["h"].shape == (2, 2) and space.space["h"].shape == (2,) and space.axes == ("batch",)
    assert flat.keys() - {"q/state_out"} == known.keys() and {"q/seq_lens", "q/loss_mask"} < known.keys()
    assert spelled(known) == found(flat, {name: own.axes for name, own in known.items()})


def test_a_space_that_a_piece_refuses_names_the_piece(lab):
    pipeline = EnvToModulePipeline(connectors=[FrameStacking(num_frames=4)])
    pipeline.input_observation_space = Discrete(3)
    with pytest.raises(SpaceError, match=r"(?s)piece 0 \(FrameStacking\), the spaces of its columns:.*last axis"):
        pipeline.column_spaces  # noqa: B018


def test_other_types():
    assert retyped(Box(-1, 1, (2,), np.float32), np.dtype(np.float64)) == Box(-1, 1, (2,), np.float64)
    assert retyped(Box(0, 9, (2,), np.int64), np.dtype(np.float32)) == Box(-np.inf, np.inf, (2,), np.float32)
    assert retyped(number(np.float64), np.dtype(np.int32)) == number(np.int32)
    assert retyped(Discrete(3), np.dtype(np.int32)) is None
