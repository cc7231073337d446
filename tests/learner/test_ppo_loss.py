"""PPO's loss against its terms by hand, and its settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.core.distributions import Categorical, DiagGaussian
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.learner import PPOLoss, PPOSettings

SETTINGS = PPOSettings(clip_param=0.2, vf_clip_param=1.5, vf_loss_coeff=0.5, entropy_coeff=0.01)


def loss_of(batch, outputs, settings=SETTINGS, kind=Categorical, kl_coeff=0.3):
    return PPOLoss(settings)(batch, outputs, kind, {"kl_coeff": kl_coeff})


def columns(shape: tuple[int, ...], seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    rng = np.random.default_rng(seed)

    def floats(*more: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal((*shape, *more)))

    batch = {
        "actions": torch.from_numpy(rng.integers(0, 3, shape)),
        "action_dist_inputs": floats(3),
        "advantages": floats(),
        "value_targets": floats() * 2,
    }
    batch["action_logp"] = Categorical.from_logits(batch["action_dist_inputs"]).logp(batch["actions"])
    outputs = {"action_dist_inputs": floats(3).requires_grad_(), "vf_preds": floats().requires_grad_()}
    return batch, outputs


def by_hand(batch, outputs, mask, kl_coeff):
    """The same terms in NumPy, row after row."""
    data = {name: value.detach().numpy() for name, value in batch.items() if name != "loss_mask"}
    new_logits, vf = outputs["action_dist_inputs"].detach().numpy(), outputs["vf_preds"].detach().numpy()
    terms = []
    for row in zip(*np.nonzero(mask)):
        new = np.exp(new_logits[row]) / np.exp(new_logits[row]).sum()
        old = np.exp(data["action_dist_inputs"][row])
        old /= old.sum()
        ratio = new[data["actions"][row]] / np.exp(data["action_logp"][row])
        advantage = data["advantages"][row]
        surrogate = min(advantage * ratio, advantage * np.clip(ratio, 0.8, 1.2))
        squared = (vf[row] - data["value_targets"][row]) ** 2
        entropy = -np.sum(new * np.log(new))
        kl = np.sum(old * np.log(old / new))
        terms.append([-surrogate, min(squared, 1.5), squared, entropy, kl])
    policy, value, unclipped, entropy, kl = np.mean(terms, axis=0)
    total = policy + 0.5 * value - 0.01 * entropy + kl_coeff * kl
    return {
        "total_loss": total,
        "policy_loss": policy,
        "vf_loss": value,
        "vf_loss_unclipped": unclipped,
        "entropy": entropy,
        "mean_kl": kl,
    }


@pytest.mark.parametrize("shape", [(50,), (6, 9)])
@pytest.mark.parametrize("masked", [False, True])
def test_every_term_equals_the_one_computed_by_hand(shape, masked):
    batch, outputs = columns(shape)
    mask = np.ones(shape, bool)
    if masked:
        mask = np.random.default_rng(1).random(shape) < 0.6
        batch["loss_mask"] = torch.from_numpy(mask)
    loss, metrics = loss_of(batch, outputs)
    expected = by_hand(batch, outputs, mask, 0.3)
    assert loss.item() == pytest.approx(expected["total_loss"], rel=1e-9)
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(expected, rel=1e-9)
    assert not any(value.requires_grad for value in metrics.values())
    loss.backward()
    assert outputs["action_dist_inputs"].grad.abs().sum() > 0
    assert outputs["vf_preds"].grad.abs().sum() > 0


def test_masked_rows_leak_neither_into_the_loss_nor_into_gradients():
    batch, outputs = columns((4, 5))
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1, 3:] = mask[3] = False
    batch["loss_mask"] = mask
    loss, metrics = loss_of(batch, outputs)
    loss.backward()
    poisoned = {name: value.clone() for name, value in batch.items()}
    for name in ("action_dist_inputs", "advantages", "value_targets", "action_logp"):
        poisoned[name][~mask] = float("nan")
    poisoned["actions"][~mask] = 99
    bad = {name: value.detach().clone() for name, value in outputs.items()}
    for value in bad.values():
        value[~mask] = float("nan")
        value.requires_grad_()
    bad_loss, bad_metrics = loss_of(poisoned, bad)
    bad_loss.backward()
    assert bad_loss.item() == loss.item()
    assert all(torch.equal(metrics[name], bad_metrics[name]) for name in metrics)
    for name, value in bad.items():
        assert torch.equal(value.grad, outputs[name].grad)
        assert (value.grad[~mask] == 0).all()


def test_a_fully_masked_minibatch_costs_nothing():
    batch, outputs = columns((3,))
    batch["loss_mask"] = torch.zeros(3, dtype=torch.bool)
    loss, _ = loss_of(batch, outputs)
    loss.backward()
    assert loss.item() == 0 and (outputs["vf_preds"].grad == 0).all()


def test_without_kl_the_term_is_off():
    batch, outputs = columns((7,))
    _, metrics = loss_of(batch, outputs, PPOSettings(use_kl_loss=False, kl_coeff=9.0), kl_coeff=9.0)
    assert "mean_kl" not in metrics
    assert metrics["total_loss"].item() == pytest.approx((metrics["policy_loss"] + metrics["vf_loss"]).item())
    assert PPOLoss(PPOSettings(use_kl_loss=False)).adapt({"kl_coeff": 0.2}, {"mean_kl": 0.0}) == {"kl_coeff": 0.2}


def test_continuous_actions():
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((8, 4)))
    actions = torch.from_numpy(rng.standard_normal((8, 2)))
    batch = {
        "actions": actions,
        "action_dist_inputs": inputs,
        "action_logp": DiagGaussian.from_logits(inputs).logp(actions),
        "advantages": torch.ones(8, dtype=torch.float64),
        "value_targets": torch.zeros(8, dtype=torch.float64),
        "loss_mask": torch.tensor([True] * 7 + [False]),
    }
    outputs = {"action_dist_inputs": inputs.clone().requires_grad_(), "vf_preds": torch.zeros(8).double()}
    _, metrics = loss_of(batch, outputs, PPOSettings(), DiagGaussian)
    assert metrics["policy_loss"].item() == pytest.approx(-1.0)  # unchanged policy: ratio 1
    assert metrics["mean_kl"].item() == pytest.approx(0.0, abs=1e-12)
    log_stds = inputs[:7, 2:].numpy()
    expected = np.mean(np.sum(log_stds + 0.5 * np.log(2 * np.pi * np.e), axis=-1))
    assert metrics["entropy"].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mean_kl", "expected"), [(0.021, 0.3), (0.02, 0.2), (0.01, 0.2), (0.005, 0.2), (0.0049, 0.1), (0.0, 0.1)]
)
def test_kl_coefficient_follows_the_target(mean_kl, expected):
    loss = PPOLoss(PPOSettings())
    assert loss.initial_coefficients() == {"kl_coeff": 0.2}
    assert loss.adapt({"kl_coeff": 0.2}, {"mean_kl": mean_kl})["kl_coeff"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clip_param", 0.0),
        ("clip_param", float("inf")),
        ("vf_clip_param", -1.0),
        ("vf_clip_param", float("nan")),
        ("vf_loss_coeff", -0.1),
        ("entropy_coeff", "0.1"),
        ("use_kl_loss", 1),
        ("kl_coeff", -0.2),
        ("kl_target", 0),
        ("clip_param", True),
    ],
)
def test_settings_are_checked(option, value):
    with pytest.raises(ConfigError, match=rf"^PPOSettings\n(?s:.*)- {option}: input should be"):
        PPOSettings(**{option: value})


def test_settings_take_what_is_allowed():
    assert PPOSettings(vf_clip_param=float("inf"), entropy_coeff=0, kl_coeff=0).vf_clip_param == float("inf")


def test_a_missing_column_is_named():
    batch, outputs = columns((3,))
    del batch["advantages"]
    with pytest.raises(ColumnError, match=r"column 'advantages' of the train batch[\s\S]*GeneralAdvantageEstimation"):
        loss_of(batch, outputs)
    batch, outputs = columns((3,))
    del outputs["vf_preds"]
    with pytest.raises(ColumnError, match="column 'vf_preds' of the module's outputs"):
        loss_of(batch, outputs)
