"""The learning rate that follows the KL divergence, and PPO2's value loss."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from fixture_cases import slow
from fixture_together import learners_in_threads, together
from torch.distributions import Normal, kl_divergence

from epibatch.algorithms import Algorithm, PPOConfig
from epibatch.core.distributions import DiagGaussian
from epibatch.core.errors import CheckpointError, ColumnError, ConfigError
from epibatch.learner import Learner, Loss, PPOLoss, PPOSettings

KEY = "default_policy"


@dataclass(frozen=True)
class Recording(PPOLoss):
    """PPO's loss, which keeps the minibatches, the module's outputs and the metrics of each step."""

    seen: list[Any] = field(default_factory=list)

    def __call__(self, batch, outputs, distribution_class, coefficients):
        loss, metrics = super().__call__(batch, outputs, distribution_class, coefficients)
        self.seen.append((dict(batch), outputs["action_dist_inputs"].detach(), float(metrics["mean_kl"])))
        return loss, metrics


def config(**training) -> PPOConfig:
    options = {"train_batch_size": 256, "minibatch_size": 64, "num_epochs": 3, "lr": 2e-3, **training}
    return PPOConfig().environment("Pendulum-v1").training(**options).debugging(seed=0)


def expected_lrs(lr, divergences, desired):
    """The rule, step by step."""
    rates = []
    for kl in divergences:
        if kl > 2 * desired:
            lr = max(1e-5, lr / 1.5)
        elif 0 < kl < desired / 2:
            lr = min(1e-2, lr * 1.5)
        rates.append(lr)
    return rates


def kl_by_torch(batch, inputs):
    """The mean divergence of the recorded policy from the current one, over rows with loss, by torch's formula."""
    old, new = (
        Normal(mean, log_std.exp()) for mean, log_std in (x.chunk(2, -1) for x in (batch["action_dist_inputs"], inputs))
    )
    return float(kl_divergence(old, new).sum(-1)[batch["loss_mask"]].mean())


@pytest.mark.parametrize("use_kl_loss", [slow(False), True])
def test_steps_are_those_of_a_loop_that_adapts_its_rate_before_each(use_kl_loss):
    settings = {"desired_kl": 0.003, "use_kl_loss": use_kl_loss}
    loss = Recording(settings=PPOSettings(**settings))
    algo = config(loss=loss, optimizer="sgd", **settings).build_algo()
    alone, lr, results = copy.deepcopy(algo.get_module(KEY)), 2e-3, []
    optimizer = torch.optim.SGD(alone.parameters(), lr=lr)
    for _ in range(3):
        loss.seen.clear()
        results.append(algo.train()["learners"][KEY])
        rates = []
        for batch, inputs, kl in loss.seen:
            assert kl == pytest.approx(kl_by_torch(batch, inputs), rel=1e-3, abs=1e-7)
            outputs = {**alone.forward_train(batch), "vf_preds": alone.compute_values(batch)}
            assert torch.allclose(outputs["action_dist_inputs"], inputs, atol=1e-4)
            value, _ = PPOLoss(loss.settings)(batch, outputs, DiagGaussian, {"kl_coeff": results[-1]["kl_coeff"]})
            optimizer.zero_grad()
            value.backward()
            lr = expected_lrs(lr, [kl], 0.003)[0]
            rates.append(lr)
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
        assert results[-1]["lr"] == pytest.approx(lr) and len(set(rates)) > 1
    for one, two in zip(alone.parameters(), algo.get_module(KEY).parameters()):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    algo.stop()


@pytest.mark.parametrize(
    ("lr", "kl", "expected"),
    [
        (3e-4, 0.0201, 2e-4),
        (3e-4, 0.02, 3e-4),
        (3e-4, 0.005, 3e-4),
        (3e-4, 0.0049, 4.5e-4),
        (3e-4, 0.0, 3e-4),
        (1.2e-5, 1.0, 1e-5),
        (9e-3, 1e-6, 1e-2),
    ],
)
def test_the_rate_shrinks_above_twice_and_grows_below_half_within_its_bounds(lr, kl, expected):
    loss = PPOLoss(PPOSettings(desired_kl=0.01))
    assert loss.adapted_lr(lr, {"mean_kl": kl}) == pytest.approx(expected)
    assert PPOLoss().adapted_lr(lr, {}) == lr and not PPOLoss().adapts_lr()


@pytest.mark.slow
def test_a_restored_run_goes_on_with_its_rate(tmp_path):
    whole = config(desired_kl=1e-4).build_algo()
    first = whole.train()["learners"][KEY]["lr"]
    path = whole.save_to_path(tmp_path / "saved")
    restored = Algorithm.from_checkpoint(path)
    state = whole.learner_group.learner.get_state()
    assert state["learning_rates"] == {KEY: first} != {KEY: 2e-3}
    np.testing.assert_equal(restored.learner_group.learner.get_state()["learning_rates"], {KEY: first})
    episodes = list(whole.env_runner.sample(num_timesteps=256))
    results = [one.learner_group.learner.update(episodes=episodes)[KEY] for one in (whole, restored)]
    assert results[0] == results[1]
    del state["learning_rates"]  # of a run without desired_kl
    whole.learner_group.learner.set_state(state)
    assert whole.learner_group.learner.get_state()["learning_rates"] == {KEY: 2e-3}
    for rate in (-1.0, float("nan"), "fast"):
        with pytest.raises(CheckpointError, match="learning rate"):
            whole.learner_group.learner.set_state({**state, "learning_rates": {KEY: rate}})
    whole.stop(), restored.stop()


def test_several_learners_use_the_divergence_of_all_rows():
    algo = config(desired_kl=1e-4, train_batch_size=300).build_algo()
    parts = algo.learner_group.learner.parts()
    losses = [Recording(settings=parts["loss"].settings) for _ in range(2)]

    def member(loss, learners):
        own = {name: copy.deepcopy(parts[name]) for name in ("module", "connector")}
        return Learner(**{**parts, **own, "loss": loss}, learners=learners)

    members = [member(loss, learners) for loss, learners in zip(losses, learners_in_threads(2))]
    chunks = list(algo.env_runner.sample(num_timesteps=200)) + list(algo.env_runner.sample(num_timesteps=100))
    shares = [chunks[:1], chunks[1:]]
    results = together([lambda own=own, share=share: own.update(episodes=share) for own, share in zip(members, shares)])
    lr = 2e-3
    for parts_of_step in zip(*(loss.seen for loss in losses), strict=True):
        rows = [int(batch["loss_mask"].sum()) for batch, _, _ in parts_of_step]
        kl = sum(kl * count for (_, _, kl), count in zip(parts_of_step, rows)) / sum(rows)
        lr = expected_lrs(lr, [kl], 1e-4)[0]
    assert results[0][KEY]["lr"] == results[1][KEY]["lr"] == pytest.approx(lr) != 2e-3
    np.testing.assert_equal(members[0].get_state(), members[1].get_state())
    algo.stop()


def test_a_schedule_beside_it_is_refused():
    with pytest.raises(ConfigError) as error:
        config(desired_kl=0.01, lr=[[0, 1e-3], [1000, 1e-4]]).build_algo()
    assert "lr of module" in error.value.where and "schedule" in error.value.found


def test_it_is_a_setting_of_files_and_of_single_modules():
    saved = config(desired_kl=0.02, use_clipped_value_loss=True).to_yaml()
    assert "desired_kl: 0.02" in saved and "use_clipped_value_loss: true" in saved
    loss = PPOLoss().with_settings(desired_kl=0.02)
    assert loss.adapts_lr()
    with pytest.raises(ConfigError):
        config(desired_kl=0.0)


def test_a_loss_without_the_metric_is_named():
    class Silent(PPOLoss):
        def __call__(self, *args):
            return super().__call__(*args)[0], {}

    algo = config(desired_kl=0.01, loss=Silent).build_algo()
    with pytest.raises(ConfigError, match="mean_kl"):
        algo.train()
    algo.stop()


def test_any_loss_can_adapt_the_rate(points):
    class Halving(Loss):
        def __call__(self, batch, outputs, distribution_class, coefficients):
            return (outputs["at"] - batch["x"]).square().mean(), {}

        def adapts_lr(self):
            return True

        def adapted_lr(self, lr, metrics):
            return lr / 2

    loss = Halving()
    learner = points.learner(points.modules(a=(0, 0)), {"a": points.batch("a", 4)}, loss=loss, num_epochs=3)
    assert learner.update(episodes=[range(1)])["a"]["lr"] == pytest.approx(0.1 / 8)
    assert learner.update(episodes=[range(1)])["a"]["lr"] == pytest.approx(0.1 / 64)


# ------------------------------------------------------------------------------------------ value loss


def test_the_clipped_value_loss_is_ppo2s():
    rng = np.random.default_rng(0)
    new, old, target = rng.standard_normal((3, 40))
    mask = rng.random(40) < 0.7
    old[~mask] = np.nan
    inputs, zeros = torch.zeros(40, 2), torch.zeros(40)
    batch = {
        "actions": torch.zeros(40, 1),
        "action_dist_inputs": inputs,
        "action_logp": DiagGaussian.from_logits(inputs).logp(torch.zeros(40, 1)),
        "advantages": zeros,
        "value_targets": torch.tensor(target),
        "vf_preds": torch.tensor(old),
        "loss_mask": torch.tensor(mask),
    }
    outputs = {"action_dist_inputs": inputs.clone().requires_grad_(), "vf_preds": torch.tensor(new).requires_grad_()}
    loss = PPOLoss(PPOSettings(clip_param=0.2, vf_clip_param=0.1, use_clipped_value_loss=True))
    value, metrics = loss(batch, outputs, DiagGaussian, {"kl_coeff": 0.0})
    rows = [
        max((n - t) ** 2, (o + min(max(n - o, -0.2), 0.2) - t) ** 2) for n, o, t, m in zip(new, old, target, mask) if m
    ]
    assert float(metrics["vf_loss"]) == pytest.approx(np.mean(rows))
    value.backward()
    assert torch.isfinite(outputs["vf_preds"].grad).all()
    del batch["vf_preds"]
    with pytest.raises(ColumnError, match="use_clipped_value_loss"):
        loss(batch, outputs, DiagGaussian, {"kl_coeff": 0.0})


def test_the_clipped_value_loss_has_the_values_before_the_update_if_the_module_recorded_none():
    algo = config(use_clipped_value_loss=True).build_algo()
    episodes = algo.env_runner.sample(num_timesteps=64)
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)
    (rows,) = [part if isinstance(part, dict) else batch for part in [batch.get("default_policy", batch)]]
    with torch.no_grad():
        values = algo.learner.module["default_policy"].compute_values(rows)
    assert torch.allclose(rows["vf_preds"], values, atol=1e-6)
    assert np.isfinite(algo.train()["learners"]["default_policy"]["vf_loss"])
    algo.stop()
