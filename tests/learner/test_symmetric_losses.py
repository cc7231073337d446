"""Mirrored rows in train batches and minibatches, and the mirror loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.connectors.learner import SymmetricAugmentation
from epibatch.core import MaskedColumn
from epibatch.core.distributions import Categorical, DiagGaussian
from epibatch.core.errors import ColumnError, ConfigError, PieceOutputError, RegistryError
from epibatch.core.registry import build_piece
from epibatch.learner import PPOLoss, PPOSettings, SymmetricPPOLoss

KEY = "default_policy"
SETTINGS = PPOSettings(clip_param=0.2, entropy_coeff=0.01, desired_kl=0.01, target_kl=10.0)


def mirrored_obs(x):
    """Pendulum has cos, sin and speed of an angle."""
    return x * x.new_tensor([1.0, -1.0, -1.0])


def fourfold_obs(x):
    return torch.cat([x * x.new_tensor(signs) for signs in ([-1, 1, 1], [1, -1, 1], [-1, -1, 1])])


def fourfold_actions(x):
    return torch.cat([x * sign for sign in (-1, 1, -1)])


class Linear(torch.nn.Module):
    """A Gaussian policy without symmetry, and its values."""

    def __init__(self):
        super().__init__()
        self.policy, self.values = (
            torch.nn.Linear(3, 4, dtype=torch.float64),
            torch.nn.Linear(3, 1, dtype=torch.float64),
        )

    def outputs(self, obs):
        return {"action_dist_inputs": self.policy(obs), "vf_preds": self.values(obs).squeeze(-1)}


def batch_of(rows, masked=False):
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn((rows, *shape), generator=generator, dtype=torch.float64)

    batch = {"obs": numbers(3), "actions": numbers(2), "action_dist_inputs": numbers(4) / 3, "advantages": numbers()}
    batch |= {"value_targets": numbers(), "action_logp": numbers() / 9 - 2.5, "infos": [{} for _ in range(rows)]}
    if masked:
        batch["loss_mask"] = torch.rand(rows, generator=generator) < 0.7
        batch["obs"][~batch["loss_mask"]] = 9.0
    return batch


def loss_by_hand(module, batch, coeff, augments, obs=mirrored_obs, actions=torch.neg):
    """PPO's terms and the mirror loss, image by image: entropy and divergences of the originals alone."""
    mask = batch.get("loss_mask", torch.ones(len(batch["obs"]), dtype=torch.bool))
    images = [(batch["obs"], batch["actions"])]
    rows = len(batch["obs"])
    for start in range(0, len(obs(batch["obs"])), rows):
        images.append(tuple(f(batch[n])[start : start + rows] for f, n in ((obs, "obs"), (actions, "actions"))))
    surrogates, errors, asymmetries = [], [], []
    for i, (x, a) in enumerate(images):
        out = module.outputs(x)
        mean, log_std = out["action_dist_inputs"].chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.exp())
        ratio = (policy.log_prob(a).sum(-1) - batch["action_logp"]).exp()
        surrogate = torch.minimum(ratio * batch["advantages"], ratio.clamp(0.8, 1.2) * batch["advantages"])
        if i == 0:
            old_mean, old_log_std = batch["action_dist_inputs"].chunk(2, -1)
            old = torch.distributions.Normal(old_mean, old_log_std.exp())
            kl = torch.distributions.kl_divergence(old, policy).sum(-1)[mask].mean()
            entropy = policy.entropy().sum(-1)[mask].mean()
            goals = actions(mean.detach())
        else:
            goal = goals[(i - 1) * rows : i * rows]
            asymmetries.append((mean - goal).square().mean(-1)[mask])
        if i == 0 or augments:
            surrogates.append(surrogate[mask])
            errors.append((out["vf_preds"] - batch["value_targets"]).square().clamp(max=10.0)[mask])
    asymmetry = torch.cat(asymmetries).mean()
    total = -torch.cat(surrogates).mean() + torch.cat(errors).mean() - 0.01 * entropy + 0.3 * kl + coeff * asymmetry
    return total, kl.item(), entropy.item(), asymmetry.item()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("coeff", "augments"), [(0.0, True), (0.5, True), (0.5, False)])
@pytest.mark.parametrize(
    ("obs", "actions"), [(mirrored_obs, torch.neg), (fourfold_obs, fourfold_actions)], ids=["two", "four"]
)
def test_loss_and_gradients_are_those_of_a_loop_over_images(coeff, augments, masked, obs, actions):
    torch.manual_seed(0)
    module, batch = Linear(), batch_of(20, masked)
    loss = SymmetricPPOLoss(
        SETTINGS, observations=obs, actions=actions, use_data_augmentation=augments, mirror_loss_coeff=coeff
    )
    augmented = loss.augment(dict(batch))
    value, metrics = loss(augmented, module.outputs(augmented["obs"]), DiagGaussian, {"kl_coeff": 0.3})
    expected, kl, entropy, asymmetry = loss_by_hand(module, batch, coeff, augments, obs, actions)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9) == metrics["total_loss"].item()
    assert metrics["mean_kl"].item() == pytest.approx(kl) and metrics["entropy"].item() == pytest.approx(entropy)
    assert ("mirror_loss" in metrics) == (coeff > 0)
    if coeff:
        assert metrics["mirror_loss"].item() == pytest.approx(asymmetry)
    left = torch.autograd.grad(value, list(module.parameters()))
    right = torch.autograd.grad(expected, list(module.parameters()))
    for one, two in zip(left, right):
        torch.testing.assert_close(one, two)


@dataclass(frozen=True)
class Swinging(SymmetricPPOLoss):
    """Left and right of a pendulum."""

    observations: Any = mirrored_obs
    actions: Any = torch.neg
    mirror_loss_coeff: float = 1e-9


@dataclass(frozen=True)
class SwingingEvenly(Swinging):
    mirror_loss_coeff: float = 100.0


@pytest.mark.slow
@pytest.mark.parametrize("network", [{}, {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 7}], ids=["", "lstm"])
def test_a_class_in_a_config_trains_and_the_mirror_loss_keeps_the_policy_symmetric(network):
    ratios = []
    for seed in range(3):
        losses = []
        for loss in (Swinging, SwingingEvenly):
            config = PPOConfig().environment("Pendulum-v1").debugging(seed=seed).training(loss=loss, desired_kl=0.01)
            config.training(train_batch_size=256, minibatch_size=64, num_epochs=10, lr=1e-3)
            algo = config.rl_module(model_config={"fcnet_hiddens": [16], **network}).build_algo()
            results = algo.train()["learners"][KEY]
            assert results["num_rows"] == 256, "mirrored rows do not count as rows"
            losses.append(results["mirror_loss"])
            algo.stop()
        ratios.append(losses[1] / losses[0])
    assert np.median(ratios) < 0.6


def test_the_piece_adds_rows_to_train_batches_and_minibatches_draw_from_all():
    config = PPOConfig().environment("Pendulum-v1").debugging(seed=0, check_first_update="error")
    config.training(train_batch_size=128, minibatch_size=64, num_epochs=2)
    algo = config.build_algo()
    algo.learner.connector.append(SymmetricAugmentation(observations=mirrored_obs, actions=torch.neg))
    assert algo.train()["learners"][KEY]["num_rows"] == 2 * 128
    episodes = algo.env_runner.sample(num_timesteps=64)
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)[KEY]
    rows = len(batch["obs"]) // 2
    assert batch["mirrored"].tolist() == [False] * rows + [True] * rows
    for name, column in batch.items():
        if name != "mirrored":
            sign = {"obs": torch.tensor([1.0, -1.0, -1.0]), "actions": -1.0}.get(name)
            torch.testing.assert_close(column[rows:], column[:rows] if sign is None else column[:rows] * sign)
    algo.stop()


def test_sequences_and_structs_are_mirrored_whole():
    """A function sees rows of steps, whatever the batch is made of."""
    seen = []

    def swap(obs):
        seen.append({name: tuple(part.shape) for name, part in obs.items() if name != "ref"})
        reference = MaskedColumn(-obs["ref"].value, obs["ref"].mask)
        return {"left": obs["right"], "right": obs["left"], "rest": obs["rest"] * 2, "ref": reference}

    obs = {"left": torch.rand(3, 5, 2), "right": torch.rand(3, 5, 2), "rest": torch.rand(3, 5)}
    obs["ref"] = MaskedColumn(torch.rand(3, 5), torch.rand(3, 5) > 0.5)
    batch = {
        "obs": obs,
        "actions": torch.rand(3, 5, 1),
        "state_in": {"h": torch.rand(3, 4)},
        "seq_lens": torch.tensor([5, 2, 5]),
        "loss_mask": torch.rand(3, 5) > 0.5,
        "weights_seq_no": torch.tensor(7),
    }
    loss = SymmetricPPOLoss(observations=swap, actions=torch.neg)
    out = loss.augment(batch)
    assert seen == [{"left": (15, 2), "right": (15, 2), "rest": (15,)}]
    torch.testing.assert_close(out["obs"]["left"], torch.cat([obs["left"], obs["right"]]))
    torch.testing.assert_close(out["obs"]["rest"], torch.cat([obs["rest"], obs["rest"] * 2]))
    assert isinstance(out["obs"]["ref"], MaskedColumn) and torch.equal(out["obs"]["ref"].mask[3:], obs["ref"].mask)
    torch.testing.assert_close(out["obs"]["ref"].value, torch.cat([obs["ref"].value, -obs["ref"].value]))
    torch.testing.assert_close(out["state_in"]["h"], torch.cat([batch["state_in"]["h"]] * 2))
    assert out["seq_lens"].tolist() == [5, 2, 5] * 2
    assert out["weights_seq_no"].tolist() == 7, "a number of the whole batch stays one"
    assert out["mirrored"].shape == (6, 5) and out["mirrored"][3:].all() and not out["mirrored"][:3].any()


@pytest.mark.parametrize(
    ("obs", "found"),
    [
        (lambda x: x[:, :2], "shape"),
        (lambda x: x[:-1], "shape"),
        (lambda x: {"x": x}, "x: leaf"),
        (lambda x: None, "NoneType"),
    ],
)
def test_functions_that_give_other_rows_are_named(obs, found):
    loss = SymmetricPPOLoss(observations=obs, actions=torch.neg)
    with pytest.raises(PieceOutputError) as error:
        loss.augment(batch_of(4))
    assert error.value.where == "the function of obs" and found in error.value.found


def test_bad_arguments_are_named():
    with pytest.raises(PieceOutputError, match="as many symmetries"):
        SymmetricPPOLoss(observations=fourfold_obs, actions=torch.neg).augment(batch_of(4))
    with pytest.raises(ConfigError, match="use_data_augmentation"):
        SymmetricPPOLoss(observations=mirrored_obs, actions=torch.neg, use_data_augmentation=False)
    with pytest.raises(ConfigError, match=r"SymmetricPPOLoss\.observations"):
        SymmetricPPOLoss()
    with pytest.raises(RegistryError, match="no_such"):
        build_piece(
            {"piece": "symmetric_augmentation", "observations": "torch:no_such", "actions": "torch:neg"},
            allow_imports=True,
        )
    loss = SymmetricPPOLoss(observations=torch.neg, actions=torch.flip, mirror_loss_coeff=0.1)
    inputs = torch.zeros(4, 3, requires_grad=True)
    batch = {"obs": torch.zeros(4, 1), "actions": torch.zeros(4, dtype=torch.int64), "action_logp": torch.zeros(4)}
    batch |= {"action_dist_inputs": inputs.detach(), "advantages": torch.zeros(4), "value_targets": torch.zeros(4)}
    batch["mirrored"] = torch.tensor([False, False, True, True])
    with pytest.raises(ConfigError, match="a mean"):
        loss(batch, {"action_dist_inputs": inputs, "vf_preds": torch.zeros(4)}, Categorical, {"kl_coeff": 0.2})


def test_the_piece_is_data_with_import_paths():
    spec = {"piece": "symmetric_augmentation", "observations": "torch:neg", "actions": "torch:neg"}
    piece = build_piece(spec, allow_imports=True)
    assert piece == SymmetricAugmentation(observations="torch:neg", actions="torch:neg")


def test_rows_that_are_not_mirrored_count_as_before():
    """A column of False changes nothing."""
    torch.manual_seed(0)
    module, batch = Linear(), batch_of(20, masked=True)
    values = [
        PPOLoss(SETTINGS)(each, module.outputs(batch["obs"]), DiagGaussian, {"kl_coeff": 0.3})[0].item()
        for each in (batch, {**batch, "mirrored": torch.zeros(20, dtype=torch.bool)})
    ]
    assert values[0] == values[1] and np.isfinite(values[0])


@pytest.mark.parametrize("name", ["obs", "actions"])
def test_a_minibatch_without_what_is_mirrored_is_named(name):
    loss, batch = SymmetricPPOLoss(observations=torch.neg, actions=torch.neg), batch_of(3)
    del batch[name]
    with pytest.raises(ColumnError, match=rf"SymmetricPPOLoss: column '{name}' of the train batch"):
        loss.augment(batch)
