"""Actions from distributions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.module_to_env import GetActions
from epibatch.core.distributions import TorchDiagGaussian
from epibatch.core.errors import EpibatchError
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
