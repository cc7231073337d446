"""Several modules updated by one batch: the same weights come out of both libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learners.several import SeveralModules, net_spec, ppo_batch
from oracle.libraries import EPIBATCH, RLLIB

LIBRARIES = (EPIBATCH, RLLIB)
IDS = ("red", "blue", "green")

# RLlib's names of what both report
METRICS = {
    "total_loss": "total_loss",
    "policy_loss": "policy_loss",
    "vf_loss": "vf_loss",
    "vf_loss_unclipped": "vf_loss_unclipped",
    "entropy": "entropy",
    "mean_kl_loss": "mean_kl",
    "vf_explained_var": "explained_variance",
    "default_optimizer_learning_rate": "lr",
}


def some_overrides(rng: np.random.Generator) -> dict[str, Any]:
    """Settings of its own for a module, each of them or not."""
    choices = {
        "lr": float(rng.uniform(1e-3, 0.1)),
        "clip_param": float(rng.uniform(0.05, 0.5)),
        "vf_clip_param": float(rng.uniform(0.1, 5.0)),
        "vf_loss_coeff": float(rng.uniform(0.0, 2.0)),
        "entropy_coeff": float(rng.uniform(0.0, 0.5)),
        "kl_coeff": float(rng.uniform(0.01, 1.0)),
        "kl_target": float(rng.uniform(0.001, 0.1)),
        "grad_clip": float(rng.uniform(0.05, 2.0)),
        "grad_clip_by": str(rng.choice(["value", "norm", "global_norm"])),
    }
    return {name: value for name, value in choices.items() if rng.random() < 0.5}


@pytest.mark.parametrize("seed", range(12))
def test_weights_and_metrics_after_several_updates(seed):
    """Modules of any number, some untrained, some absent from a batch, with settings of their own."""
    rng = np.random.default_rng(seed)
    ids = IDS[: rng.integers(2, 4)]
    trained = [name for name in ids if rng.random() < 0.7] or [ids[0]]
    rule = [None, trained, lambda module_id, batch: module_id in trained][seed % 3]
    overrides = {name: some_overrides(rng) for name in ids if rng.random() < 0.6}
    sides = [SeveralModules(library, ids, rule, overrides, num_epochs=1 + seed % 2) for library in LIBRARIES]
    for step in range(3):
        present = [name for name in ids if rng.random() < 0.8]
        if rule is not None and not set(present) & set(trained):
            present.append(trained[0])
        batches = {name: ppo_batch(12, 100 * step + index) for index, name in enumerate(present or ids)}
        ours, theirs = (side.update(dict(batches)) for side in sides)
        updated = set(batches) if rule is None else set(batches) & set(trained)
        assert set(ours) - {"__all_modules__"} == updated
        for name in updated if step == 0 and seed % 2 == 0 else ():  # with several epochs means are taken otherwise
            for key, own in METRICS.items():
                assert ours[name][own] == pytest.approx(float(theirs[name][key]), rel=1e-4, abs=1e-5), (name, key)
        mine, other = (side.weights() for side in sides)
        for name in ids:
            for key, value in mine[name].items():
                np.testing.assert_allclose(value, other[name][key], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("rule", "updated"),
    [
        (None, ["blue", "red"]),
        (["blue"], ["blue"]),
        (("red",), ["red"]),
        ({"red", "blue"}, ["blue", "red"]),
        (lambda module_id, batch: module_id != "red", ["blue"]),
    ],
)
def test_which_modules_are_updated(rule, updated):
    for library in LIBRARIES:
        side = SeveralModules(library, policies_to_train=rule)
        assert side.moved({"red": ppo_batch(6, 0), "blue": ppo_batch(9, 1)}) == updated, library
        names = [name for name in ("blue", "red") if side.learner.should_module_be_updated(name, None)]
        assert names == updated, library


def test_modules_that_are_added_and_removed():
    for library in LIBRARIES:
        side = SeveralModules(library, policies_to_train=["red", "blue"])
        batches = {name: ppo_batch(6, index) for index, name in enumerate(IDS)}
        added = side.learner.add_module(module_id="green", module_spec=net_spec(library, 5))
        assert set(added.rl_module_specs) == set(side.learner.module.keys()) == set(IDS)
        assert side.moved(batches) == ["blue", "red"]
        removed = side.learner.remove_module("blue", new_should_module_be_updated=["red", "green"])
        assert set(removed.rl_module_specs) == {"red", "green"}
        del batches["blue"]
        assert side.moved(batches) == ["green", "red"]
        side.learner.add_module(
            module_id="late",
            module_spec=net_spec(library, 6),
            config_overrides={"lr": 0.5},
            new_should_module_be_updated=["late"],
        )
        before = side.weights()["late"]
        assert side.moved({"late": ppo_batch(6, 3)}) == ["late"]
        steps = [np.abs(before[key] - value).max() for key, value in side.weights()["late"].items()]
        assert max(steps) == pytest.approx(0.5, rel=1e-3)  # Adam's first step is the learning rate


def test_a_module_that_is_not_there():
    for library in LIBRARIES:
        with pytest.raises(KeyError, match="grey"):
            SeveralModules(library).update({"red": ppo_batch(6, 0), "grey": ppo_batch(6, 0)})
