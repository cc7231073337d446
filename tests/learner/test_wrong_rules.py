"""What update rules return that cannot be used, each a named error; and minibatches of which a loss takes no row."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core import MaskedColumn
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import DefaultActorCritic
from epibatch.learner import DistillationLoss, Learner, LearnerSettings, Losses, UpdateRule

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


def module_of():
    torch.manual_seed(0)
    return DefaultActorCritic(
        observation_space=BOX, action_space=gym.spaces.Discrete(2), model_config={"fcnet_hiddens": [4]}
    )


class Returning(UpdateRule):
    """Returns what a test says."""

    row_outputs = ("x",)

    def __init__(self, make):
        super().__init__()
        self.make = make

    def losses(self, batch, module, own, coefficients):
        loss = module.forward_train(batch)["action_dist_inputs"].square().mean()
        return self.make(loss, batch["obs"].sum(-1))


def updated(rule, rows=6):
    learner = Learner(module=module_of(), connector=None, settings=LearnerSettings(lr=0.1), loss=rule)
    learner.update(batch={"default_policy": {"obs": torch.arange(3.0 * rows).reshape(rows, 3)}})
    return learner


WRONG = {
    "rows that are left out": (lambda loss, x: Losses({"total": loss}), r"no values of the rows \['x'\]"),
    "one row for all": (lambda loss, x: Losses({"total": loss}, {}, {"x": x[:1]}), r"'x' of 6 rows: shape \(1,\)"),
    "a scalar": (lambda loss, x: Losses({"total": loss}, {}, {"x": x.sum()}), r"'x' of 6 rows: shape \(\)"),
    "an array": (lambda loss, x: Losses({"total": loss}, {}, {"x": x.numpy()}), "'x' of 6 rows: ndarray"),
    "too few": (lambda loss, x: Losses({"total": loss}, {}, {"x": x[:5]}), r"'x' of 6 rows: shape \(5,\)"),
    "a number as loss": (lambda loss, x: Losses({"total": 1.0}, {}, {"x": x}), "loss 'total': float"),
    "a loss per row": (lambda loss, x: Losses({"total": loss + x}, {}, {"x": x}), r"loss 'total': shape \(6,\)"),
    "no gradient": (lambda loss, x: Losses({"total": loss.detach()}, {}, {"x": x}), "no gradient comes from"),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_named(case):
    make, found = WRONG[case]
    with pytest.raises(ConfigError, match=found):
        updated(Returning(make))


def test_values_of_rows():
    learner = updated(Returning(lambda loss, x: Losses({"total": loss}, {}, {"x": x})))
    assert learner.row_outputs["default_policy"]["x"].tolist() == [3.0 + 9 * i for i in range(6)]


def test_a_target_is_a_copy():
    class Same(Returning):
        """Keeps the module itself."""

        def make_own(self, module):
            return torch.nn.ModuleDict({"target": module})

    with pytest.raises(ConfigError, match=r"Same.make_own[\s\S]*frozen_copy\(module\)"):
        updated(Same(lambda loss, x: Losses({"total": loss}, {}, {"x": x})))


def test_a_minibatch_without_a_teachers_action_changes_nothing():
    module = module_of()
    learner = Learner(module=module, connector=None, settings=LearnerSettings(lr=0.1), loss=DistillationLoss())
    before = [parameter.clone() for parameter in module.parameters()]
    nothing = MaskedColumn(torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool))
    batch = {"obs": torch.randn(4, 3), "teacher_actions": nothing}
    results = learner.update(batch={"default_policy": batch})["default_policy"]
    assert results["num_rows"] == 0 and all(np.isfinite(value) for value in results.values())
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters()))


def test_weights_that_lie_apart_in_memory_are_compared():
    module = module_of()
    module.register_buffer("scale", torch.zeros(4, 2)[:, 0])
    learner = Learner(module=module, connector=None, settings=LearnerSettings(), loss=DistillationLoss())
    first = learner.state_version()
    assert learner.state_version() == first
    module.scale[2] = 1.0
    assert learner.state_version() != first
