"""The loss of a student against its teacher's actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.core import MaskedColumn
from epibatch.core.distributions import Categorical, DiagGaussian
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module import TorchRLModule
from epibatch.learner import DistillationLoss, Learner, LearnerSettings


def values(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(12,), (4, 5)])
@pytest.mark.parametrize("kind", ["mse", "huber"])
def test_means_are_compared_on_rows_with_loss(kind, shape):
    inputs, teacher = values((*shape, 6)).requires_grad_(), values((*shape, 3), 1) * 2
    mask = values(shape, 2) > -0.5
    teacher[~mask] = np.nan
    loss, metrics = DistillationLoss(loss_type=kind)(
        {"teacher_actions": teacher, "loss_mask": mask}, {"action_dist_inputs": inputs}, DiagGaussian, {}
    )
    terms = []
    for row in zip(*np.nonzero(mask.numpy())):
        gaps = np.abs((inputs[row][:3] - teacher[row]).detach().numpy())
        terms.append(np.mean(gaps**2 if kind == "mse" else np.where(gaps < 1, gaps**2 / 2, gaps - 0.5)))
    assert loss.item() == pytest.approx(np.mean(terms)) == metrics["behavior_loss"].item()
    loss.backward()
    assert torch.isfinite(inputs.grad).all() and not inputs.grad[..., 3:].any(), "deviations are not trained"


def test_discrete_actions_have_the_negative_log_likelihood():
    inputs, teacher = values((9, 4)).requires_grad_(), torch.arange(9) % 4
    loss, _ = DistillationLoss()({"teacher_actions": teacher}, {"action_dist_inputs": inputs}, Categorical, {})
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(inputs, teacher).item())


def test_wrong_columns_and_types_are_named():
    outputs = {"action_dist_inputs": torch.zeros(3, 4, requires_grad=True)}
    with pytest.raises(ColumnError, match="dagger_actions"):
        DistillationLoss(column="dagger_actions")({"teacher_actions": 1}, outputs, DiagGaussian, {})
    with pytest.raises(ColumnError, match="same action space"):
        DistillationLoss()({"teacher_actions": torch.zeros(3)}, outputs, DiagGaussian, {})
    with pytest.raises(ConfigError, match="loss_type"):
        DistillationLoss(loss_type="l1")


class Student(TorchRLModule):
    """A linear policy without values."""

    def setup(self):
        self.policy = torch.nn.Linear(3, 4)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.policy(batch["obs"])}

    def get_train_action_dist_cls(self):
        return DiagGaussian


def test_a_student_learns_its_teachers_actions():
    torch.manual_seed(0)
    teacher = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.3, 1.0]])
    obs = torch.randn(512, 3)
    rows = {"obs": obs, "teacher_actions": obs @ teacher.T}
    learner = Learner(
        module=(student := Student()),
        connector=lambda **_: {"default_policy": dict(rows)},
        settings=LearnerSettings(lr=0.05, minibatch_size=64, num_epochs=5, seed=0),
        loss=DistillationLoss(),
    )
    for _ in range(5):
        result = learner.update(episodes=[range(4)])["default_policy"]
    assert result["behavior_loss"] < 1e-3
    torch.testing.assert_close(student.policy.weight[:2], teacher, rtol=0, atol=0.05)


def test_rows_without_teacher_actions_do_not_count():
    actions = MaskedColumn(torch.tensor([[1.0], [math.nan], [3.0]]), torch.tensor([True, False, True]))
    outputs = {"action_dist_inputs": torch.zeros(3, 2)}
    batch = {"teacher_actions": actions}
    assert DistillationLoss()(batch, outputs, DiagGaussian, {})[0] == 5.0
    batch["loss_mask"] = torch.tensor([True, True, False])
    assert DistillationLoss()(batch, outputs, DiagGaussian, {})[0] == 1.0


def test_it_is_named_in_a_config_file():
    text = PPOConfig().environment("Pendulum-v1").to_yaml()
    path = "epibatch.learner:DistillationLoss"
    config = PPOConfig.from_yaml(text.replace("training:\n", f"training:\n  loss: {path}\n"), allow_imports=True)
    assert config.loss == path


def test_outputs_without_inputs_of_the_distribution_are_named():
    with pytest.raises(ColumnError, match=r"DistillationLoss: column 'action_dist_inputs' of the module's outputs"):
        DistillationLoss()({"teacher_actions": torch.zeros(2, 1)}, {"embeddings": torch.zeros(2, 1)}, DiagGaussian, {})
