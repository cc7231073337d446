"""Losses of IMPALA and APPO, V-trace included, and their settings, beside RLlib's."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import APPOConfig, IMPALAConfig
from epibatch.connectors.learner import VTrace, default_pipeline
from epibatch.core import KEPT_BY_RULES
from epibatch.core.rl_module import DefaultActorCritic
from epibatch.episodes import SingleAgentEpisode
from oracle.libraries import RLLIB

LEARNERS = {
    "impala": RLLIB.module("algorithms.impala.torch.impala_torch_learner").IMPALATorchLearner,
    "appo": RLLIB.module("algorithms.appo.torch.appo_torch_learner").APPOTorchLearner,
}
CONFIGS = {
    "impala": RLLIB.module("algorithms.impala").IMPALAConfig, "appo": RLLIB.module("algorithms.appo").APPOConfig,
}  # fmt: skip
OURS = {"impala": IMPALAConfig, "appo": APPOConfig}
BOX, ACTIONS, MODULE, STEPS = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3), "default_policy", 6


def networks(seed):
    torch.manual_seed(seed)
    return [
        DefaultActorCritic(observation_space=BOX, action_space=ACTIONS, model_config={"fcnet_hiddens": [8]})
        for _ in range(2)
    ]


def chunks(rng):
    """Chunks of one length, since RLlib cuts a batch by the length of fragments."""
    return [
        SingleAgentEpisode(
            observations=rng.uniform(-1, 1, (STEPS + 1, 4)).astype(np.float32), actions=rng.integers(0, 3, STEPS),
            rewards=rng.normal(size=STEPS), terminated=bool(i % 2), len_lookback_buffer=0,
            extra_model_outputs={"action_logp": np.log(rng.uniform(0.1, 1, STEPS)).astype(np.float32)},
        )
        for i in range(4)
    ]  # fmt: skip


class Theirs:
    """Our network, with a target, as RLlib's losses ask for it."""

    def __init__(self, net, target):
        self.compute_values = net.compute_values
        self.get_train_action_dist_cls = net.get_train_action_dist_cls
        self.forward_target = lambda batch: {
            "target_network_action_dist_inputs": target.forward_train(batch)["action_dist_inputs"]
        }
        self.unwrapped = lambda: self


for api in ("TargetNetworkAPI", "ValueFunctionAPI"):
    getattr(RLLIB.module("core.rl_module.apis"), api).register(Theirs)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("name", ["impala", "appo"])
def test_losses_are_rllibs(name, kl, seed):
    net, target = networks(seed)
    training = {"gamma": 0.9, "vf_loss_coeff": 0.3, "entropy_coeff": 0.02, "vtrace_clip_pg_rho_threshold": 1.5}
    training |= {"use_kl_loss": kl, "kl_coeff": 0.7, "clip_param": 0.2} if name == "appo" else {}
    rule = OURS[name].rule(OURS[name]().training(**training).settings.training)
    own = rule.make_own(net)
    pipeline = default_pipeline(BOX, ACTIONS)
    pipeline.remove("GeneralAdvantageEstimation")
    kept, options = {}, {}
    if own is not None:
        own["target"].load_state_dict(target.state_dict())
        kept, options = {KEPT_BY_RULES: {MODULE: own}}, {"target": "target"}
    pipeline.append(VTrace(gamma=0.9, clip_pg_rho_threshold=1.5, **options))
    batch = pipeline(rl_module=net, batch={}, episodes=chunks(np.random.default_rng(seed)), shared_data=kept)
    coefficients = {**rule.initial_coefficients(), **rule.scheduled_coefficients(0)}
    made = rule.losses(batch, net, own, coefficients).losses["total"]

    config = SimpleNamespace(
        get_rollout_fragment_length=lambda: STEPS + 1, vtrace_clip_rho_threshold=1.0, kl_target=0.01,
        **{"use_kl_loss": False, "kl_coeff": 0.0, "clip_param": 0.0, **training},
    )  # fmt: skip
    coefficient = SimpleNamespace(get_current_value=lambda: 0.02)
    learner = SimpleNamespace(
        module={MODULE: Theirs(net, target)}, metrics=SimpleNamespace(log_dict=lambda *_, **__: None),
        entropy_coeff_schedulers_per_module={MODULE: coefficient}, curr_kl_coeffs_per_module={MODULE: 0.7},
    )  # fmt: skip
    batch = {key: column for key, column in batch.items() if key not in ("advantages", "value_targets")}
    bootstraps = ~batch["loss_mask"]  # else RLlib corrects their values, too, towards a reward of 0
    batch["rewards"][bootstraps] = net.compute_values(batch).detach()[bootstraps]
    expected = LEARNERS[name].compute_loss_for_module(
        learner, module_id=MODULE, config=config, batch=batch, fwd_out=net.forward_train(batch)
    )
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_settings_have_the_names_and_defaults_of_rllib(name):
    training, theirs = OURS[name]().settings.training, CONFIGS[name]()
    own = {key: value for key, value in training if hasattr(theirs, key)}
    others = {key for key, _ in training} - own.keys()
    assert others == {"loss"}
    assert {key for key, value in own.items() if getattr(theirs, key) != value} == {
        "optimizer",
        "shuffle_batch_per_epoch",
    }
