"""PPO's update beside rsl_rl's: equal weights and learning rates after the same minibatches."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage as TheirStorage
from tensordict import TensorDict

from epibatch.core.distributions import DiagGaussian
from epibatch.core.rl_module import TorchRLModule, ValueFunctionAPI
from epibatch.learner import Learner, LearnerSettings, PPOLoss, PPOSettings, SymmetricPPOLoss

T, N, ACTIONS, SIZE, EPOCHS, NUMBER = 8, 16, 2, 4, 3, 4
GROUPS = {"actor": ["policy"], "critic": ["policy"]}
GAUSSIAN = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "init_std": 0.6}
KEY = "default_policy"
CASES = {
    "fixed": ({"schedule": "fixed"}, None),
    "adaptive, growing": ({"desired_kl": 0.02, "learning_rate": 1e-4}, None),
    "adaptive, shrinking": ({"desired_kl": 1e-4, "learning_rate": 5e-3}, None),
    "value loss": ({"schedule": "fixed", "use_clipped_value_loss": True}, None),
    "augmentation": ({"desired_kl": 2e-3}, {"use_data_augmentation": True}),
    "mirror loss": ({"desired_kl": 2e-3}, {"use_mirror_loss": True, "mirror_loss_coeff": 0.7}),
    "both": ({}, {"use_data_augmentation": True, "use_mirror_loss": True, "mirror_loss_coeff": 0.7}),
}


class TheirNetworks(TorchRLModule, ValueFunctionAPI):
    """rsl_rl's actor and critic as a module of ours."""

    def setup(self):
        self.actor, self.critic = (copy.deepcopy(self.model_config[name]) for name in ("actor", "critic"))

    def _forward_train(self, batch, **kwargs):
        mean = self.actor.mlp(batch["obs"])
        return {"action_dist_inputs": torch.cat([mean, self.actor.distribution.std_param.log().expand_as(mean)], -1)}

    def compute_values(self, batch, embeddings=None):
        return self.critic.mlp(batch["obs"])[:, 0]

    def get_train_action_dist_cls(self):
        return DiagGaussian


def mirrored_obs(x):
    return x * torch.tensor([1.0, -1.0, 1.0, -1.0])


def augmented(env, obs, actions):
    """The form of rsl_rl: rows and then their mirrored ones."""
    if obs is not None:
        obs = torch.cat([obs, TensorDict({"policy": mirrored_obs(obs["policy"])}, obs.batch_size)])
    return obs, None if actions is None else torch.cat([actions, -actions])


def trained_by_rsl_rl(settings, symmetry):
    """Their algorithm after a rollout, and before its update a copy of its networks and its rows."""
    torch.manual_seed(0)
    obs = TensorDict({"policy": torch.randn(N, SIZE)}, [N])
    actor = MLPModel(obs, GROUPS, "actor", ACTIONS, [8], distribution_cfg=GAUSSIAN)
    critic = MLPModel(obs, GROUPS, "critic", 1, [8])
    options = {"use_clipped_value_loss": False, "learning_rate": 1e-3, "max_grad_norm": 1e9, **settings}
    if symmetry is not None:
        options["symmetry_cfg"] = {"env": None, "data_augmentation_func": augmented, **symmetry}
    storage = TheirStorage("rl", N, T, obs, [ACTIONS])
    ppo = PPO(actor, critic, storage, EPOCHS, NUMBER, **options)
    for _ in range(T):
        with torch.no_grad():
            actions = ppo.act(obs)
        rewards = obs["policy"][:, 0] - actions.square().sum(-1)
        obs = TensorDict({"policy": torch.randn(N, SIZE)}, [N])
        ppo.process_env_step(obs, rewards, torch.rand(N) < 0.1, {})
    ppo.compute_returns(obs)
    module = TheirNetworks(model_config={"actor": actor, "critic": critic})
    flat = {"obs": storage.observations["policy"], "actions": storage.actions}
    flat |= {"vf_preds": storage.values[..., 0], "value_targets": storage.returns[..., 0]}
    flat |= {"advantages": storage.advantages[..., 0], "action_logp": storage.actions_log_prob[..., 0]}
    mean, std = storage.distribution_params
    flat["action_dist_inputs"] = torch.cat([mean, std.log()], -1)
    return ppo, module, {name: column.flatten(0, 1).clone() for name, column in flat.items()}


@pytest.mark.parametrize("case", CASES)
def test_weights_and_rates_after_the_same_minibatches(case):
    settings, symmetry = CASES[case]
    ppo, module, rows = trained_by_rsl_rl(settings, symmetry)
    before = [weight.detach().clone() for weight in module.parameters()]
    torch.manual_seed(3)
    ppo.update()
    torch.manual_seed(3)
    order = torch.randperm(T * N)  # they draw one order for all epochs
    rows = {name: column[order] for name, column in rows.items()}
    own = PPOSettings(
        clip_param=0.2,
        vf_clip_param=float("inf"),
        use_clipped_value_loss=settings.get("use_clipped_value_loss", False),
        entropy_coeff=0.01,
        use_kl_loss=False,
        desired_kl=None if settings.get("schedule") == "fixed" else settings.get("desired_kl", 0.01),
        standardize_advantages=False,
    )
    loss = PPOLoss(own)
    if symmetry is not None:
        loss = SymmetricPPOLoss(
            own,
            observations=mirrored_obs,
            actions=torch.neg,
            use_data_augmentation=symmetry.get("use_data_augmentation", False),
            mirror_loss_coeff=symmetry.get("mirror_loss_coeff", 0.0),
        )
    learner = Learner(
        module=module,
        connector=lambda **_: {KEY: rows},
        settings=LearnerSettings(
            lr=settings.get("learning_rate", 1e-3), minibatch_size=T * N // NUMBER, num_epochs=EPOCHS, shuffle=None
        ),
        loss=loss,
        check_first_update="off",
    )
    result = learner.update(episodes=[range(T * N)])[KEY]
    assert result["num_minibatches"] == EPOCHS * NUMBER
    assert result["lr"] == pytest.approx(ppo.learning_rate, rel=1e-6)
    assert ("adaptive" in case) <= (result["lr"] != settings.get("learning_rate", 1e-3))
    theirs = [*ppo.actor.parameters(), *ppo.critic.parameters()]
    ours = [*module.actor.parameters(), *module.critic.parameters()]
    assert all(not torch.equal(one, two) for one, two in zip(before, module.parameters()))
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), atol=2e-5, rtol=0)
