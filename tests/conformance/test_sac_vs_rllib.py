"""Losses of SAC beside RLlib's, on the same tensors; errors are below 1, where RLlib's Huber loss is the square."""

from __future__ import annotations

import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.algorithms import SACConfig
from epibatch.core.rl_module import DefaultSoftActorCritic
from oracle.libraries import RLLIB

LEARNER = RLLIB.module("algorithms.sac.torch.sac_torch_learner").SACTorchLearner
SPACES = {"box": gym.spaces.Box(-1, 1, (2,), np.float32), "discrete": gym.spaces.Discrete(3)}
MODULE = "default_policy"


def rllibs_losses(space, batch, outputs, log_alpha, goal):
    """The losses of RLlib's learner by name, and the errors that it logs."""
    found = {}
    learner = SimpleNamespace(
        _module={MODULE: SimpleNamespace(action_space=space)},
        curr_log_alpha={MODULE: log_alpha},
        target_entropy={MODULE: goal},
        metrics=SimpleNamespace(
            log_value=lambda key, value, **_: found.setdefault(str(key), value), log_dict=lambda *_, **__: None
        ),
        _temp_losses={},
    )
    kind = "discrete" if isinstance(space, gym.spaces.Discrete) else "continuous"
    config = SimpleNamespace(twin_q=True, gamma=0.9)
    compute = getattr(LEARNER, f"_compute_loss_for_module_{kind}")
    compute(learner, module_id=MODULE, config=config, batch=batch, fwd_out=outputs)
    losses = {key[1]: value for key, value in learner._temp_losses.items()}
    return losses, next(value for key, value in found.items() if "td_error" in key)


def outputs_of(net, target, batch):
    """What RLlib's own networks put into a forward pass, with the draws of the rule."""
    now, after = ({"obs": batch[name]} for name in ("obs", "new_obs"))
    logits = [net.forward_train(part)["action_dist_inputs"] for part in (after, now)]
    if isinstance(net.action_space, gym.spaces.Discrete):
        first, second = net.compute_q_values(now)
        logp_next, logp = (part.log_softmax(-1) for part in logits)
        return {
            "action_probs_next": logp_next.exp(), "action_log_probs_next": logp_next, "action_probs": logp.exp(),
            "action_log_probs": logp, "q_target_next": target.compute_q_values(after).amin(0), "qf_preds": first,
            "qf_twin_preds": second,
        }  # fmt: skip
    made = net.get_train_action_dist_cls()
    later, policy = (made.from_logits(part) for part in logits)
    drawn, current = later.rsample(), policy.rsample()
    first, second = net.compute_q_values(now, batch["actions"])
    return {
        "qf_preds": first, "qf_twin_preds": second, "logp_next_resampled": later.logp(drawn),
        "q_target_next": target.compute_q_values(after, drawn).amin(0), "logp_resampled": policy.logp(current),
        "q_curr": net.compute_q_values(now, current).amin(0),
    }  # fmt: skip


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("seed", range(5))
def test_losses_and_errors_are_rllibs(space, seed):
    torch.manual_seed(seed)
    rng, count, action_space = np.random.default_rng(seed), 24, SPACES[space]
    box = gym.spaces.Box(-1, 1, (4,), np.float32)
    net, target = (
        DefaultSoftActorCritic(observation_space=box, action_space=action_space, model_config={"fcnet_hiddens": [8]})
        for _ in range(2)
    )
    discrete = space == "discrete"
    actions = torch.from_numpy(rng.integers(0, 3, count)) if discrete else torch.rand(count, 2) * 1.8 - 0.9
    steps = torch.from_numpy(rng.integers(1, 4, count))
    batch = {
        "obs": torch.rand(count, 4) / 10, "new_obs": torch.rand(count, 4) / 10, "actions": actions,
        "rewards": torch.randn(count) / 10, "terminateds": torch.from_numpy(rng.random(count) < 0.3),
        "weights": torch.rand(count) + 0.1, "n_step": steps, "discounts": 0.9**steps,
    }  # fmt: skip
    for head in (*net.q, *target.q):
        head.net[-1].weight.data *= 0.3
    own = nn.Module()
    own.target, own.log_alpha = target, nn.Parameter(torch.tensor(math.log(0.01)))
    goal = 0.98 * math.log(3) if discrete else -2.0
    rule = SACConfig.rule(SACConfig().training(gamma=0.9).settings.training)
    torch.manual_seed(seed + 100)
    made = rule.losses(batch, net, own, {})
    torch.manual_seed(seed + 100)
    outputs = outputs_of(net, target, batch)
    expected, errors = rllibs_losses(action_space, batch, outputs, own.log_alpha.detach()[None], goal)
    assert made.rows["td_error"].max() < 0.5  # the mean of two
    torch.testing.assert_close(made.rows["td_error"], errors.detach(), rtol=1e-5, atol=1e-5)
    critics = expected["qf_loss"] + expected["qf_twin_loss"]
    torch.testing.assert_close(made.losses["critic"], critics, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made.losses["actor"], expected["policy_loss"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made.losses["alpha"], expected["alpha_loss"], rtol=1e-5, atol=1e-5)
