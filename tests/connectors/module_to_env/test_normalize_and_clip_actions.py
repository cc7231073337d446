"""From the module's actions to those of the environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.module_to_env import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    TensorToNumpy,
    UnBatchToIndividualItems,
    default_pipeline,
)
from epibatch.core.rl_module import default_module_spec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

BOX = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([4, 1], np.float32))


HALF = gym.spaces.Box(np.array([-np.inf, 0], np.float32), np.array([4, np.inf], np.float32))


INT_BOX = gym.spaces.Box(-2, 5, (2,), np.int64)


def to_env(lab, space, actions, **switches):
    count = len(actions) if isinstance(actions, torch.Tensor) else 2
    episodes = [lab.episode(f"e{i}", 0, numpy=False) for i in range(count)]
    pieces = [
        GetActions(),
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        NormalizeAndClipActions(**switches),
        ListifyDataForVectorEnv(),
    ]
    return lab.env_step(episodes, {"actions": actions}, pieces, spaces=(lab.obs_space, space))


@pytest.mark.parametrize(
    ("space", "normalize", "clip", "actions", "expected"),
    [
        (BOX, True, False, [[-1.0, 3.0], [0.5, -0.5]], [[-2.0, 1.0], [2.5, 0.25]]),
        (BOX, True, True, [[-1.0, 3.0], [0.5, -0.5]], [[-2.0, 1.0], [2.5, 0.25]]),
        (BOX, False, True, [[-1.0, 3.0], [9.0, -0.5]], [[-1.0, 1.0], [4.0, 0.0]]),
        (BOX, False, False, [[-1.0, 3.0], [9.0, -0.5]], [[-1.0, 3.0], [9.0, -0.5]]),
        (HALF, True, False, [[5.0, -1.0], [-5.0, 7.0]], [[4.0, 0.0], [-5.0, 7.0]]),
        (HALF, False, True, [[5.0, -1.0], [-5.0, 7.0]], [[4.0, 0.0], [-5.0, 7.0]]),
        (INT_BOX, True, False, [[1, 3], [0, 7]], [[-1, 1], [-2, 5]]),
        (INT_BOX, False, True, [[9, -9], [0, 5]], [[5, -2], [0, 5]]),
        (INT_BOX, False, False, [[1, 3], [0, 7]], [[1, 3], [0, 7]]),
        (gym.spaces.Discrete(5), True, False, [3, 4], [3, 4]),
        (gym.spaces.Discrete(5), False, True, [3, 4], [3, 4]),
        (gym.spaces.MultiDiscrete([3, 4]), True, False, [[2, 3], [0, 0]], [[2, 3], [0, 0]]),
    ],
)
def test_switches_and_spaces(lab, space, normalize, clip, actions, expected):
    tensor = torch.tensor(actions)
    result = to_env(lab, space, tensor.clone(), normalize_actions=normalize, clip_actions=clip)
    # with nothing to do there may be no second column: the environment then gets the module's actions
    assert np.asarray(result.get("actions_for_env", result["actions"])).tolist() == expected
    assert np.asarray(result["actions"]).tolist() == tensor.tolist()


def test_the_modules_actions_do_not_share_memory_with_rescaled_ones(lab):
    result = to_env(lab, BOX, torch.zeros(2, 2), normalize_actions=True, clip_actions=False)
    result["actions_for_env"][:] = 77.0
    assert np.asarray(result["actions"]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


class Overwriting(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        actions = batch["actions_for_env"]
        for rows in [actions] if isinstance(actions, np.ndarray) else actions.values():
            rows[0][...] = 1
        return batch


class OverwritingTransform(ColumnTransform):
    columns = "actions_for_env"

    def transform(self, x):
        x[...] = 1
        return x


@pytest.mark.parametrize(("position", "piece"), [(3, Overwriting), (4, Overwriting), (3, OverwritingTransform)])
def test_what_a_piece_writes_to_unchanged_actions_for_the_environment_is_not_recorded(lab, position, piece):
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), NormalizeAndClipActions(), ListifyDataForVectorEnv()]
    pieces.insert(position, piece())
    episodes, space = [lab.episode(f"e{i}", 0, numpy=False) for i in range(2)], gym.spaces.MultiDiscrete([3, 4])
    result = lab.env_step(episodes, {"actions": torch.zeros(2, 2, dtype=torch.int64)}, pieces, spaces=(None, space))
    assert result["actions"].tolist() == [[0, 0], [0, 0]] and result["actions_for_env"][0].tolist() == [1, 1]


def test_nested_action_spaces(lab):
    space = gym.spaces.Dict(move=BOX, fire=gym.spaces.Discrete(2))
    actions = {"move": torch.tensor([[0.5, 0.5], [-1.0, -1.0]]), "fire": torch.tensor([1, 0])}
    result = to_env(lab, space, actions, normalize_actions=True, clip_actions=False)
    for_env = result["actions_for_env"]
    assert np.asarray(for_env["move"]).tolist() == [[2.5, 0.75], [-2.0, 0.0]]
    assert np.asarray(for_env["fire"]).tolist() == [1, 0]


def test_agents_of_one_module_have_actions_of_their_own_bounds_and_types():
    agents = {
        "a": gym.spaces.Box(-2, 2, (1,), np.float32),
        "b": gym.spaces.Box(0, 8, (1,), np.float64),
        "c": gym.spaces.Box(-2, 2, (1,), np.float32),
    }
    spaces = gym.spaces.Dict(dict.fromkeys(agents, gym.spaces.Discrete(2))), gym.spaces.Dict(agents)
    episodes = [MultiAgentEpisode(observation_space=spaces[0], action_space=spaces[1]) for _ in range(2)]
    for episode, order in zip(episodes, ("cba", "ab")):
        episode.add_env_reset(observations=dict.fromkeys(order, 0))
    pieces = [
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        ModuleToAgentUnmapping(),
        NormalizeAndClipActions(),
        ListifyDataForVectorEnv(),
    ]
    given = torch.tensor([[0.5], [-0.5], [1.0], [0.25], [0.75]])
    found = ModuleToEnvPipeline(*spaces, connectors=pieces)(
        batch={"default_policy": {"actions": given}}, episodes=episodes, rl_module=None
    )
    told = [{agent: row.tolist() for agent, row in each.items()} for each in found["actions_for_env"]]
    assert told == [{"c": [1.0], "b": [2.0], "a": [2.0]}, {"a": [0.5], "b": [7.0]}]
    for each in found["actions_for_env"]:
        assert all(agents[agent].contains(row) for agent, row in each.items())


@pytest.mark.parametrize(
    "switches", [{}, {"normalize_actions": False}, {"normalize_actions": False, "clip_actions": True}]
)
def test_drawn_actions_of_integer_boxes_are_members(switches):
    """Choices are counted from the lower bound, whether a module's own actions are or not."""
    space = gym.spaces.Dict(a=gym.spaces.Box(5, 8, (1,), np.int32), b=gym.spaces.Discrete(2))
    observations = gym.spaces.Box(-1, 1, (4,), np.float32)
    module = default_module_spec(observations, space).build()
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(4, np.float32))
    call = {"rl_module": module, "episodes": [episode], "explore": True}
    inputs = torch.tensor([[0.0, 0.0, 50.0, 0.0, 0.0, 50.0]])  # the third of four, the second of two
    columns = default_pipeline(observations, space, **switches)(batch={"action_dist_inputs": inputs}, **call)
    assert columns["actions"]["a"].tolist() == [[2]] and columns["actions_for_env"]["a"].tolist() == [[7]]
    assert columns["actions_for_env"]["b"].tolist() == [1]


def test_a_modules_own_action_is_not_shifted_after_a_drawn_one():
    """Also where one `shared_data` dict serves several steps."""
    space, observations = gym.spaces.Box(-7, 9, (1,), np.int32), gym.spaces.Box(-1, 1, (4,), np.float32)
    module = default_module_spec(observations, space).build()
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(4, np.float32))
    call = {"rl_module": module, "episodes": [episode], "explore": False, "shared_data": {}}
    pipeline = default_pipeline(observations, space, normalize_actions=False)
    drawn = pipeline(batch={"action_dist_inputs": torch.eye(17)[3:4]}, **call)
    assert drawn["actions_for_env"].tolist() == [[3 - 7]]
    own = pipeline(batch={"actions": torch.tensor([[3]])}, **call)
    assert own["actions_for_env"].tolist() == [[3]]
