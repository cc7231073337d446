"""Losses of DQN beside RLlib's, on the same tensors."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import DQNConfig
from epibatch.core.rl_module import DefaultQNetwork
from oracle.libraries import RLLIB

SPACES = {"observation_space": gym.spaces.Box(-1, 1, (4,), np.float32), "action_space": gym.spaces.Discrete(3)}
LEARNER = RLLIB.module("algorithms.dqn.torch.dqn_torch_learner").DQNTorchLearner


class Rows:
    """RLlib's learner, as far as its loss needs it: the errors that it logs, and a module without memory."""

    def __init__(self):
        self.errors, self.metrics = None, self
        self.module = {"default_policy": SimpleNamespace(unwrapped=lambda: SimpleNamespace(is_stateful=lambda: False))}

    def log_value(self, key, value, **_):
        self.errors = value

    def log_dict(self, *_, **__):
        pass


def outputs_of(net, target, batch, atoms):
    """What RLlib's own network puts into a forward pass."""
    now, after, later = (
        module.compute_q_distribution({"obs": batch[name]})[0]
        for module, name in ((net, "obs"), (net, "new_obs"), (target, "new_obs"))
    )
    if atoms == 1:
        return {"qf_preds": now[..., 0], "qf_next_preds": after[..., 0], "qf_target_next_preds": later[..., 0]}
    means = [(logits.softmax(-1) * net.atoms).sum(-1) for logits in (now, after, later)]
    names = ("qf_preds", "qf_next_preds", "qf_target_next_preds")
    more = {"qf_logits": now, "qf_probs": now.softmax(-1), "qf_target_next_probs": later.softmax(-1)}
    return {**dict(zip(names, means)), **more, "atoms": net.atoms}


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("atoms", [1, 7])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_losses_and_errors_are_rllibs(double_q, loss, atoms, dueling, seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    settings = {"num_atoms": atoms, "v_min": -2.0, "v_max": 3.0}
    options = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [6], "dueling": dueling, **settings}
    net, target = (DefaultQNetwork(**SPACES, model_config=options) for _ in range(2))
    for parameter in (*net.parameters(), *target.parameters()):
        parameter.data = torch.randn(parameter.shape)
    count, gamma = 32, 0.9
    steps = torch.from_numpy(rng.integers(1, 4, count))
    batch = {
        "obs": torch.randn(count, 4),
        "new_obs": torch.randn(count, 4),
        "actions": torch.from_numpy(rng.integers(0, 3, count)),
        "rewards": torch.randn(count),
        "terminateds": torch.from_numpy(rng.random(count) < 0.3),
        "weights": torch.rand(count) + 0.1,
        "n_step": steps,
        "discounts": gamma**steps,
    }
    config = DQNConfig().training(double_q=double_q, td_error_loss_fn=loss, gamma=gamma, **settings)
    made = DQNConfig.rule(config.settings.training).losses(batch, net, {"target": target}, {})
    learner, wanted = Rows(), SimpleNamespace(double_q=double_q, td_error_loss_fn=loss, gamma=gamma, **settings)
    outputs = outputs_of(net, target, batch, atoms)
    expected = LEARNER.compute_loss_for_module(
        learner, module_id="default_policy", config=wanted, batch=batch, fwd_out=outputs
    )
    torch.testing.assert_close(made.losses["total"], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made.rows["td_error"].abs(), learner.errors.detach(), rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(value, list(net.parameters()), retain_graph=True)
                 for value in (made.losses["total"], expected)]  # fmt: skip
    for left, right in zip(*gradients):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
