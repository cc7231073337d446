"""Several learners that share a batch, against one learner, for every loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixture_learners import Threads

from epibatch.algorithms import BCConfig, BCRule
from epibatch.core import MaskedColumn
from epibatch.core.distributions import DiagGaussian
from epibatch.core.rl_module import TorchRLModule
from epibatch.learner import (
    DistillationLoss,
    Learner,
    LearnerGroup,
    LearnerSettings,
    Losses,
    PPOLoss,
    PPOSettings,
    SymmetricPPOLoss,
    UpdateRule,
    frozen_copy,
)

KEY, ROWS, STEPS = "default_policy", 13, 5


class Policy(TorchRLModule):
    """A Gaussian policy of two actions, values, and three Q-values."""

    def setup(self):
        torch.manual_seed(0)
        self.policy, self.values, self.q = (torch.nn.Linear(3, size, dtype=torch.float64) for size in (4, 1, 3))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.policy(batch["obs"])}

    def compute_values(self, batch, embeddings=None):
        return self.values(batch["obs"]).squeeze(-1)

    def get_train_action_dist_cls(self):
        return DiagGaussian


class QRule(UpdateRule):
    """Q-learning with a target, whose TD errors are of the rows."""

    row_outputs = ("td_error",)

    def make_own(self, module):
        return frozen_copy(module)

    def losses(self, batch, module, own, coefficients):
        chosen = module.q(batch["obs"]).gather(-1, batch["choices"][..., None]).squeeze(-1)
        errors = chosen - batch["value_targets"] - own.q(batch["obs"]).amax(-1)
        loss = errors[batch["loss_mask"]].square().mean()
        return Losses({"total": loss}, {}, {"td_error": errors.detach()})


PPO = PPOSettings(entropy_coeff=0.01, standardize_advantages="minibatch")
MIRROR = {"observations": torch.neg, "actions": torch.neg, "mirror_loss_coeff": 0.5}
RULES = {
    "ppo": PPOLoss(PPO),
    "symmetric": SymmetricPPOLoss(PPO.with_changes(standardize_advantages=False), **MIRROR),
    "distillation": DistillationLoss(),
    "bc": BCRule(BCConfig.training_model(entropy_coeff=0.1)),
    "q": QRule(),
}


def batch_of(shape):
    """Rows [B], or sequences [B, T] with padding, of which learners get parts with unlike numbers of labels."""
    random = np.random.default_rng(1)

    def numbers(*entries):
        return torch.from_numpy(random.normal(size=(*shape, *entries)))

    lengths = random.integers(1, STEPS + 1, ROWS)
    mask = np.arange(STEPS) < lengths[:, None] if len(shape) > 1 else np.arange(ROWS) % 4 != 1
    batch = {"obs": numbers(3), "actions": numbers(2), "action_dist_inputs": numbers(4) / 3, "advantages": numbers()}
    batch |= {"value_targets": numbers(), "action_logp": numbers() / 9 - 2.5, "loss_mask": torch.from_numpy(mask)}
    batch |= {"choices": torch.from_numpy(random.integers(0, 3, shape)), "vf_preds": numbers()}
    labels = torch.from_numpy(random.random(shape) < np.linspace(0.1, 1.0, ROWS).reshape(-1, *[1] * (len(shape) - 1)))
    batch["teacher_actions"] = MaskedColumn(numbers(2), labels)
    return batch | ({"seq_lens": torch.from_numpy(lengths)} if len(shape) > 1 else {})


def learner(rule):
    settings = LearnerSettings(lr=1.0, optimizer="sgd", grad_clip=None, minibatch_size=None, num_epochs=1, seed=3)
    module = Policy(model_config={})
    return Learner(module=module, connector=None, settings=settings, loss=rule, check_first_update="off")


def weights(made):
    return np.concatenate([value.detach().numpy().ravel() for value in made.module[KEY].parameters()])


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, STEPS)], ids=["rows", "sequences"])
@pytest.mark.parametrize("name", RULES)
def test_gradients_of_every_loss_are_those_of_one_learner(name, shape, count):
    """With a learning rate of 1, and without momentum, the step is the gradient."""
    batch, alone, shared = batch_of(shape), learner(RULES[name]), learner(RULES[name])
    group, before = LearnerGroup(shared, num_learners=count, actor_group=Threads), weights(alone)
    expected, results = (made.update(batch={KEY: batch}) for made in (alone, group))
    gradient = before - weights(alone)
    gap = np.linalg.norm(before - weights(shared) - gradient)
    assert gap < 1e-6 * np.linalg.norm(gradient) and np.linalg.norm(gradient) > 0.1
    for metric, value in expected[KEY].items():
        assert results[KEY][metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric
    assert group.row_outputs.keys() == alone.row_outputs.keys() == ({KEY} if name == "q" else set())
    for values in alone.row_outputs.values():
        torch.testing.assert_close(group.row_outputs[KEY]["td_error"], values["td_error"], equal_nan=True)
    group.stop()
