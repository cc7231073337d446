"""Faults of RLlib that are not there, where no other test holds it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.connectors.module_to_env import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from epibatch.core.errors import SpaceError
from epibatch.core.rl_module import RLModuleSpec
from epibatch.episodes import InfiniteLookbackBuffer, SingleAgentEpisode

BOX = gym.spaces.Box(-9, 9, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def walk(id_="a", steps=3, first=0):
    """An episode whose observation at step t is [first + t, 0]."""
    episode = SingleAgentEpisode(id_=id_)
    episode.add_env_reset(np.array([first, 0], np.float32))
    for t in range(1, steps + 1):
        episode.add_env_step(np.array([first + t, 0], np.float32), t % 3, float(t))
    return episode


@pytest.mark.parametrize("steps", [0, 1, 99, 100, 200])
def test_observations_are_checked_at_every_step(steps):
    """O22: RLlib leaves the steps out whose number is a multiple of 100."""
    episode = SingleAgentEpisode(observation_space=BOX)
    episode.add_env_reset(np.zeros(2, np.float32))
    for _ in range(steps):
        episode.add_env_step(np.zeros(2, np.float32), 0, 0.0)
    with pytest.raises(SpaceError, match=rf"t={steps + 1}"):
        episode.add_env_step(np.zeros(3, np.float32), 0, 0.0)
    assert len(episode) == steps


@pytest.mark.parametrize("indices", [slice(0, -1), slice(None), slice(-1, None), slice(0, 5), []])
def test_slices_of_an_empty_column_are_empty(indices):
    """O59."""
    assert len(InfiniteLookbackBuffer().get(indices)) == 0
    assert len(SingleAgentEpisode().get_rewards(indices)) == 0


class Repeat(ConnectorV2):
    """Sets its attribute after the base constructor, as ported pieces do."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, times=2, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.times = times

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-9, 9, (self.times * input_observation_space.shape[0],), np.float32)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def test_spaces_may_be_given_before_attributes_are_set():
    """O7."""
    assert Repeat(BOX, DISCRETE, times=3).observation_space.shape == (6,)
    assert Repeat(BOX, DISCRETE).action_space == DISCRETE


def test_chunks_of_an_episode_with_an_underscore_stay_apart():
    """O12: here RLlib puts the rows of both chunks under one key, in front of the other episode's."""
    first = walk("my_x", steps=2)
    second = first.cut()
    second.add_env_step(np.array([3, 0], np.float32), 0, 3.0)
    pipeline = LearnerConnectorPipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            BatchIndividualItems(),
        ]
    )
    batch = pipeline(rl_module=None, batch={}, episodes=[first, walk("other", steps=1, first=50), second])
    assert batch["obs"][:, 0].tolist() == [0.0, 1.0, 50.0, 2.0]
    assert batch["rewards"].tolist() == [1.0, 2.0, 1.0, 3.0]
    assert (first.id_, second.id_) == ("my_x", "my_x")


def act(outputs, pieces, space, **keywords):
    """What a module-to-env pipeline makes of a module's outputs for two environments."""
    pipeline = ModuleToEnvPipeline(BOX, space, connectors=pieces)
    return pipeline(batch=outputs, episodes=[walk("a", steps=0), walk("b", steps=0)], **keywords)


def test_unchanged_actions_are_not_copied():
    """O41."""
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), NormalizeAndClipActions(), ListifyDataForVectorEnv()]
    actions = torch.tensor([2, 0])
    result = act({"actions": actions}, pieces, DISCRETE)
    assert np.shares_memory(result["actions"], result["actions_for_env"])
    assert np.shares_memory(result["actions"], actions.numpy())
    assert result["actions_for_env"].tolist() == [2, 0]


@pytest.mark.parametrize(("space", "width"), [(DISCRETE, 3), (gym.spaces.Box(-1, 1, (2,)), 4)])
def test_greedy_actions_have_one_logp_per_row(space, width):
    """RLlib's have the form of the action."""
    module = RLModuleSpec(observation_space=BOX, action_space=space).build()
    inputs = torch.arange(2 * width, dtype=torch.float32).reshape(2, width)
    result = act(
        {"action_dist_inputs": inputs}, [GetActions(), TensorToNumpy()], space, rl_module=module, explore=False
    )
    assert result["action_logp"].tolist() == [0.0, 0.0]
    assert len(result["actions"]) == 2


class Tag(ConnectorV2):
    """Adds a column that is no part of any contract."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_n_batch_items(batch, "tag", np.arange(len(episode)), len(episode), episode)
        return batch


def test_a_column_of_ones_own_travels_under_the_default_module():
    """O46."""
    from epibatch.connectors.learner import NumpyToTensor

    modules = RLModuleSpec(observation_space=BOX, action_space=DISCRETE).build().as_multi_rl_module()
    pieces = [
        Tag(),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        BatchIndividualItems(),
        NumpyToTensor(as_learner_connector=True),
    ]
    batch = LearnerConnectorPipeline(BOX, DISCRETE, connectors=pieces)(rl_module=modules, batch={}, episodes=[walk()])
    assert list(batch) == ["default_policy"]
    assert batch["default_policy"]["tag"].tolist() == [0, 1, 2]
    assert isinstance(batch["default_policy"]["tag"], torch.Tensor)


@pytest.mark.parametrize("name", ["get_sample_batch", "add_temporary_timestep_data", "get_temporary_timestep_data"])
def test_old_stack_methods_are_absent(name):
    assert not hasattr(SingleAgentEpisode(), name)
