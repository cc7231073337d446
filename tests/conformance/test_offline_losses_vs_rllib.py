"""Losses of MARWIL, CQL and IQL beside RLlib's, on the same tensors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.algorithms import CQLConfig, IQLConfig, MARWILConfig
from epibatch.core.rl_module import DefaultActorCritic, DefaultImplicitQ, DefaultSoftActorCritic
from epibatch.learner import frozen_copy
from oracle.libraries import RLLIB

MARWIL = RLLIB.module("algorithms.marwil.torch.marwil_torch_learner").MARWILTorchLearner
CQL = RLLIB.module("algorithms.cql.torch.cql_torch_learner").CQLTorchLearner
IQL = RLLIB.module("algorithms.iql.torch.iql_torch_learner").IQLTorchLearner
MODULE = "default_policy"
BOX, ACTIONS = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Box(-1, 1, (2,), np.float32)
SMALL = {"fcnet_hiddens": [8]}
SEEDS = pytest.mark.parametrize("seed", range(5))


def close(made, expected):
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


def learner(**attributes):
    """What RLlib's losses need of their learner."""
    metrics = SimpleNamespace(
        log_value=lambda *_, **__: None, log_dict=lambda *_, **__: None, peek=lambda *_, **__: attributes.get("steps")
    )
    return SimpleNamespace(metrics=metrics, _temp_losses={}, **attributes)


def transitions(seed, count=24):
    torch.manual_seed(seed)
    return {
        "obs": torch.rand(count, 4), "new_obs": torch.rand(count, 4), "actions": torch.rand(count, 2) * 1.8 - 0.9,
        "rewards": torch.randn(count), "terminateds": torch.rand(count) < 0.3, "discounts": torch.full((count,), 0.9),
    }  # fmt: skip


@SEEDS
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("beta", "rate"), [(0.0, 0.5), (0.7, 1e-8), (2.0, 0.3)])
def test_the_loss_of_marwil_is_rllibs(beta, rate, masked, seed):
    torch.manual_seed(seed)
    net = DefaultActorCritic(observation_space=BOX, action_space=gym.spaces.Discrete(3), model_config=SMALL)
    batch = {"obs": torch.rand(24, 4), "actions": torch.randint(3, (24,)), "value_targets": torch.randn(24)}
    if masked:
        batch["loss_mask"] = torch.rand(24) < 0.6
    names = {"beta": beta, "vf_coeff": 0.6, "moving_average_sqd_adv_norm_update_rate": rate}
    theirs = learner(
        module={MODULE: SimpleNamespace(unwrapped=lambda: net)}, moving_avg_sqd_adv_norms_per_module={MODULE: 2.0},
        config=SimpleNamespace(burnin_len=0),
    )  # fmt: skip
    expected = MARWIL.compute_loss_for_module(
        theirs, module_id=MODULE, config=SimpleNamespace(bc_logstd_coeff=0.0, **names), batch=batch,
        fwd_out=net.forward_train(batch),
    )  # fmt: skip
    config = MARWILConfig().training(moving_average_sqd_adv_norm_start=2.0, **names)
    rule = MARWILConfig.rule(config.settings.training)
    made = rule.losses(batch, net, None, rule.initial_coefficients())
    if beta == 0:  # without a value function there
        close(made.metrics["policy_loss"], expected.detach())
        return
    close(made.losses["total"], expected)
    norm = rule.adapt(rule.initial_coefficients(), {name: value.item() for name, value in made.metrics.items()})
    assert norm["moving_average_sqd_adv_norm"] == pytest.approx(
        float(theirs.moving_avg_sqd_adv_norms_per_module[MODULE]), rel=1e-5
    )


def drawn(net, obs, count):
    """Actions at each observation, repeated, with their log-probabilities."""
    logits = net.forward_train({"obs": obs})["action_dist_inputs"].repeat_interleave(count, 0)
    return net.get_train_action_dist_cls().from_logits(logits).rsample_and_logp()


@SEEDS
@pytest.mark.parametrize("bc_iters", [0, 10])
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_losses_of_cql_are_rllibs(deterministic, bc_iters, seed):
    batch, count = transitions(seed), 5
    net, target = (
        DefaultSoftActorCritic(observation_space=BOX, action_space=ACTIONS, model_config=SMALL) for _ in range(2)
    )
    settings = {
        "bc_iters": bc_iters, "min_q_weight": 3.0, "temperature": 0.7, "deterministic_backup": deterministic,
        "gamma": 0.9,
    }  # fmt: skip
    rule = CQLConfig.rule(CQLConfig().training(num_actions=count, **settings).settings.training)
    own = rule.make_own(net)
    own.target, own.log_alpha = target, nn.Parameter(torch.tensor(math.log(0.2)))
    torch.manual_seed(seed + 100)
    made = rule.losses(batch, net, own, {})
    torch.manual_seed(seed + 100)
    now, after = {"obs": batch["obs"]}, {"obs": batch["new_obs"]}
    later, current = drawn(net, batch["new_obs"], 1), drawn(net, batch["obs"], 1)
    uniform = torch.empty(24 * count, 2).uniform_(-1, 1)
    everywhere = [(uniform, None), drawn(net, batch["obs"], count), drawn(net, batch["new_obs"], count)]
    outputs = {
        "action_dist_inputs": net.forward_train(now)["action_dist_inputs"], "logp_resampled": current[1],
        "q_curr": net.compute_q_values(now, current[0]).amin(0), "logp_next_resampled": later[1],
        "q_target_next": target.compute_q_values(after, later[0]).amin(0), "actions_curr_repeat": everywhere[1][0],
    }  # fmt: skip
    outputs["qf_preds"], outputs["qf_twin_preds"] = net.compute_q_values(now, batch["actions"])
    repeated = {"obs": batch["obs"].repeat_interleave(count, 0)}
    for name, (actions, logp) in zip(("rand", "curr", "next"), everywhere):
        values = net.compute_q_values(repeated, actions.detach()).reshape(2, 24, count)
        outputs[f"q_{name}_repeat"], outputs[f"q_twin_{name}_repeat"] = values
        outputs[f"logps_{name}_repeat"] = None if logp is None else logp.reshape(24, count)
    theirs = learner(
        module={MODULE: net}, curr_log_alpha={MODULE: own.log_alpha.detach()[None]}, target_entropy={MODULE: -2.0},
        steps=1,
    )  # fmt: skip
    config = SimpleNamespace(twin_q=True, **settings)
    CQL.compute_loss_for_module(theirs, module_id=MODULE, config=config, batch=batch, fwd_out=outputs)
    expected = {key[1]: value for key, value in theirs._temp_losses.items()}
    close(made.losses["critic"], (expected["qf_loss"] + expected["qf_twin_loss"]) / 2)
    close(made.losses["actor"], expected["policy_loss"])
    close(made.losses["alpha"], expected["alpha_loss"])


@SEEDS
def test_the_losses_of_iql_are_rllibs(seed):
    batch = transitions(seed)
    net = DefaultImplicitQ(observation_space=BOX, action_space=ACTIONS, model_config=SMALL)
    target = DefaultImplicitQ(observation_space=BOX, action_space=ACTIONS, model_config=SMALL)
    now, after = {"obs": batch["obs"]}, {"obs": batch["new_obs"]}
    outputs = {
        "action_dist_inputs": net.forward_train(now)["action_dist_inputs"], "vf_preds": net.compute_values(now),
        "qf_target_preds": target.compute_q_values(now, batch["actions"]).amin(0),
        "vf_preds_next": net.compute_values(after),
    }  # fmt: skip
    outputs["qf_preds"], outputs["qf_twin_preds"] = net.compute_q_values(now, batch["actions"])
    names = RLLIB.module("algorithms.iql.iql_learner")
    outputs[names.QF_TARGET_PREDS], outputs[names.VF_PREDS_NEXT] = outputs["qf_target_preds"], outputs["vf_preds_next"]
    theirs = learner(_module={MODULE: net}, expectile={MODULE: 0.8}, temperature={MODULE: 5.0}, device="cpu")
    theirs._expectile_loss = lambda difference, expectile: IQL._expectile_loss(theirs, difference, expectile)
    config = SimpleNamespace(twin_q=True, gamma=0.9)
    total = IQL.compute_loss_for_module(theirs, module_id=MODULE, config=config, batch=batch, fwd_out=outputs)
    rule = IQLConfig.rule(IQLConfig().training(beta=5.0, expectile=0.8).settings.training)
    made = rule.losses(batch, net, nn.ModuleDict({"target": frozen_copy(target)}), {})
    close(made.losses["critic"] + made.losses["actor"], total)
    expected = {key[1]: value for key, value in theirs._temp_losses.items()}
    close(made.losses["critic"], expected["qf_loss"] + expected["qf_twin_loss"])
