"""Actions from distributions, and from the module's actions to those of the environment."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors import ConnectorV2
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import FlattenObservations
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
from epibatch.core.distributions import TorchDiagGaussian
from epibatch.core.errors import EpibatchError, PieceError
from epibatch.core.rl_module import default_module_spec
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import Lab

LOGITS = torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.5]])


def logp_of(actions):
    """Log-softmax by hand."""
    logits = LOGITS.double().numpy()
    table = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return table[np.arange(3), np.asarray(actions)]


def drawn(inputs=LOGITS, explore=True, module=None, piece=None, **columns):
    """What the piece adds to a module's outputs."""
    batch = {**({} if inputs is None else {"action_dist_inputs": inputs}), **columns}
    call = {"episodes": [Lab.episode(numpy=False)], "rl_module": module or Lab.module(), "explore": explore}
    return Lab.call(piece or GetActions(), batch, **call)


def test_exploration_samples_and_adds_logp():
    torch.manual_seed(0)
    results = [drawn() for _ in range(50)]
    for result in results:
        assert np.allclose(result["action_logp"].numpy(), logp_of(result["actions"]), atol=1e-6)
        assert result["action_dist_inputs"] is LOGITS
    assert len({tuple(result["actions"].tolist()) for result in results}) > 1


@pytest.mark.parametrize("explore", [False, None])
def test_without_exploration_actions_are_the_greedy_ones(explore):
    for _ in range(20):
        result = drawn(explore=explore)
        assert result["actions"].tolist() == [1, 0, 1] and result["actions"].dtype == torch.int64
        assert result["action_logp"].shape == (3,)


def test_supplied_actions_stay_and_get_their_logp():
    actions = torch.tensor([0, 0, 1])
    result = drawn(actions=actions)
    assert result["actions"] is actions
    assert np.allclose(result["action_logp"].numpy(), logp_of([0, 0, 1]), atol=1e-6)
    logp = torch.tensor([7.0, 8.0, 9.0])
    assert drawn(actions=actions, action_logp=logp)["action_logp"] is logp
    assert set(drawn(None, actions=torch.tensor([1]))) == {"actions"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_of_16_bits_give_actions_too(dtype):
    batch = drawn(torch.tensor([[0.0, 99.0]], dtype=dtype))
    assert batch["actions"].tolist() == [1] and float(batch["action_logp"]) == 0.0
    with pytest.raises(EpibatchError, match=r"NaN in rows \[0\]"):
        drawn(torch.full((1, 2), torch.nan, dtype=dtype))


def test_continuous_actions():
    module = Lab.module(dist_cls=TorchDiagGaussian)
    module.action_space = gym.spaces.Box(-5, 5, (2,))
    inputs = torch.tensor([[1.0, -1.0, 0.0, np.log(2.0)]])
    assert drawn(inputs, explore=False, module=module)["actions"].tolist() == [[1.0, -1.0]]
    sampled = drawn(inputs, module=module)
    x = sampled["actions"][0].double().numpy()
    mean, std = np.array([1.0, -1.0]), np.array([1.0, 2.0])
    expected = (-0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum()
    assert np.allclose(sampled["action_logp"].numpy(), [expected], atol=1e-5)


def test_distribution_inputs_of_another_number_than_the_space_takes_are_refused(lab):
    with pytest.raises(
        EpibatchError, match=r"action_dist_inputs[\s\S]*2 inputs per row for Discrete\(2\)[\s\S]*\[1, 5\]"
    ):
        lab.env_step([lab.episode("a", 0, numpy=False)], {"action_dist_inputs": torch.zeros(1, 5)}, [GetActions()])


def test_inputs_that_are_no_numbers_are_refused_and_arrays_are_taken():
    for explore in (True, False):
        with pytest.raises(EpibatchError, match=r"action_dist_inputs[\s\S]*NaN in rows \[1\]"):
            drawn(torch.tensor([[0.0, 1.0], [0.0, float("nan")]]), explore)
    assert drawn(np.array([[0.0, 99.0]], np.float32))["actions"].tolist() == [1]


def test_a_distribution_that_cannot_say_its_number_of_inputs_is_not_checked():
    """RLlib's partial classes raise a KeyError unless they were made with a space."""
    module = Lab.module()

    class Silent(module.get_inference_action_dist_cls()):
        @staticmethod
        def required_input_dim(space):
            raise KeyError("space")

    module.get_exploration_action_dist_cls = lambda: Silent
    piece = GetActions(None, gym.spaces.Discrete(2))
    assert drawn(torch.tensor([[0.0, 1.0, 99.0]]), module=module, piece=piece)["actions"].tolist() == [2]


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


class Fails(ConnectorV2):
    """Raises, unless it is told not to."""

    def __call__(self, *, batch, fails=True, **kwargs):
        if fails:
            raise ValueError("once")
        return batch


@pytest.mark.parametrize("end", [["raises"], ["is refused"], ["raises", "is refused", "raises"]])
@pytest.mark.parametrize("copied", [lambda pipeline: pipeline, copy.deepcopy])
def test_a_call_that_raises_and_an_edit_that_is_refused_leave_pieces_as_they_were(end, copied):
    plain = default_pipeline(None, gym.spaces.Discrete(2), normalize_actions=False)
    piece, episode = plain["normalize_and_clip_actions"], Lab.episode("e", 0, numpy=False)
    outputs = {"batch": {"actions": torch.tensor([1])}, "episodes": [episode], "rl_module": Lab.module()}

    def alone():
        return sorted(piece(rl_module=None, batch={"actions": {("e",): [1]}}, episodes=[episode]))

    def memory(**more):
        batch = plain(**{**outputs, "batch": {"actions": torch.tensor([1])}}, **more)
        return sorted(batch), np.shares_memory(batch["actions"], batch["actions_for_env"])

    assert alone() == ["actions", "actions_for_env"] and memory() == (["actions", "actions_for_env"], True)
    for how in end:
        if how == "raises":
            plain.insert_after("normalize_and_clip_actions", Fails())
            with pytest.raises(ValueError, match="once"):
                plain(**outputs)
            assert alone() == ["actions", "actions_for_env"]
            assert memory(fails=False)[0] == ["actions", "actions_for_env"]
            plain.remove("fails")
        else:
            with pytest.raises(PieceError):
                plain.replace_pieces([*plain.connectors, Fails(), FlattenObservations(as_learner_connector=True)])
        plain = copied(plain)
        piece = plain["normalize_and_clip_actions"]
        assert alone() == ["actions", "actions_for_env"] and memory() == (["actions", "actions_for_env"], True)


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
