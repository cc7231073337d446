"""What modules, losses and pieces give the learner has to fit; what would be broadcast in silence is an error."""

from __future__ import annotations

import re

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.learner import Learner, LearnerSettings, PPOLoss

ROW_MAP = 8
INPUTS = "action_dist_inputs"


class Net(TorchRLModule, ValueFunctionAPI):
    """A policy whose outputs go through the functions `outputs` and `values` of its model_config."""

    def setup(self):
        self.pi, self.vf = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

    def _forward(self, batch, **kwargs):
        return self.model_config.get("outputs", lambda out: out)({INPUTS: self.pi(batch["obs"])})

    def compute_values(self, batch, embeddings=None):
        return self.model_config.get("values", lambda out: out)(self.vf(batch["obs"]).squeeze(-1))


def train_batch(**changes):
    generator = torch.Generator().manual_seed(0)
    columns = {
        "obs": torch.randn(ROW_MAP, 4, generator=generator),
        "actions": torch.randint(0, 2, (ROW_MAP,), generator=generator),
        "action_logp": torch.full((ROW_MAP,), -0.7),
        INPUTS: torch.zeros(ROW_MAP, 2),
        "advantages": torch.randn(ROW_MAP, generator=generator),
        "value_targets": torch.randn(ROW_MAP, generator=generator),
        "loss_mask": torch.ones(ROW_MAP, dtype=torch.bool),
    }
    return {**columns, **{name: change(columns[name]) for name, change in changes.items()}}


def update(loss=None, columns=None, **model_config):
    spaces = {"observation_space": gym.spaces.Box(-1, 1, (4,)), "action_space": gym.spaces.Discrete(2)}
    torch.manual_seed(0)
    module = RLModuleSpec(module_class=Net, model_config=model_config, **spaces).build().as_multi_rl_module()
    learner = Learner(
        module=module,
        connector=lambda **kwargs: {"default_policy": train_batch(**(columns or {}))},
        settings=LearnerSettings(lr=0.1, minibatch_size=ROW_MAP, seed=0),
        loss=loss or PPOLoss(),
    )
    return learner.update(episodes=[None])["default_policy"]


def changed(change):
    """PPO's loss, and what a function makes of it."""
    return lambda *args: change(*PPOLoss()(*args, {"kl_coeff": 0.2}))


SHAPES = {
    "one axis too many": lambda x: x[:, None],
    "one row": lambda x: x[:1].expand(1, ROW_MAP)[0][None].expand(ROW_MAP, ROW_MAP),
    "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("advantages", shape) for shape in SHAPES),
        *((name, "one axis too many") for name in ("action_logp", "value_targets", "actions", "loss_mask")),
        ("actions", "one row"),
        *((name, "numpy") for name in ("action_logp", "value_targets", "actions")),
    ],
)
def test_columns_of_another_shape_are_named(name, shape):
    match = f"column '{name}'( of the train batch)?|actions of a categorical distribution"
    with pytest.raises(ColumnError, match=match):
        update(columns={name: SHAPES[shape]})


@pytest.mark.parametrize("name", ["advantages", "value_targets", "action_logp"])
@pytest.mark.parametrize("value", [torch.tensor(2.0), torch.tensor([2.0])])
def test_scalars_are_not_broadcast(name, value):
    module = Net(observation_space=gym.spaces.Box(-1, 1, (4,)), action_space=gym.spaces.Discrete(2))
    batch = train_batch()
    outputs = {**module.forward_train(batch), "vf_preds": module.compute_values(batch)}
    args = outputs, module.get_train_action_dist_cls(), {"kl_coeff": 0.2}
    PPOLoss()(batch, *args)
    with pytest.raises(ColumnError, match=rf"column '{name}'[\s\S]*the rows have shape \[8\]"):
        PPOLoss()({**batch, name: value}, *args)


def test_masks_of_zeros_and_ones_are_masks():
    def half(mask):
        return (torch.arange(ROW_MAP) < 4) & mask

    expected = update(columns={"loss_mask": half})
    for kind in (torch.int64, torch.float32, torch.uint8):
        assert update(columns={"loss_mask": lambda mask, kind=kind: half(mask).to(kind)}) == expected


@pytest.mark.parametrize("action", [7, -1, float("nan")])
def test_actions_outside_the_space_are_named(action):
    with pytest.raises(ColumnError, match=r"integers from 0 to 1"):
        update(columns={"actions": lambda x: torch.full_like(x, action, dtype=torch.float32)})


VALUES = r"'vf_preds' of the module's outputs[\s\S]*"


@pytest.mark.parametrize(
    ("method", "change", "found"),
    [
        ("outputs", lambda out: None, "NoneType"),
        ("outputs", lambda out: [out], "list"),
        ("outputs", lambda out: out[INPUTS], "Tensor"),
        ("outputs", lambda out: {"other": out[INPUTS]}, INPUTS),
        ("outputs", lambda out: {INPUTS: None}, "NoneType"),
        ("outputs", lambda out: {INPUTS: out[INPUTS].detach().numpy()}, "ndarray"),
        ("outputs", lambda out: {INPUTS: out[INPUTS][:-1]}, r"\[7, 2\]"),
        ("outputs", lambda out: {INPUTS: out[INPUTS][None]}, r"\[1, 8, 2\]"),
        ("outputs", lambda out: {INPUTS: out[INPUTS].sum()}, r"\[\]"),
        ("outputs", lambda out: {INPUTS: out[INPUTS].long()}, "int64"),
        ("outputs", lambda out: {INPUTS: out[INPUTS][:, :1]}, "from 0 to 1"),
        ("values", lambda out: None, VALUES + "NoneType"),
        ("values", lambda out: out.detach().numpy(), VALUES + "ndarray"),
        ("values", lambda out: out[:, None], VALUES + r"\[8, 1\]"),
        ("values", lambda out: out[:-1], VALUES + r"\[7\]"),
        ("values", lambda out: 1.0, VALUES + "float"),
    ],
)
def test_outputs_that_do_not_fit_are_named(method, change, found):
    with pytest.raises(ColumnError, match=found):
        update(**{method: change})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda loss, metrics: None, "NoneType"),
        (lambda loss, metrics: (1.0, metrics), "float as the loss"),
        (lambda loss, metrics: (loss.expand(3), metrics), r"a loss of shape \[3\]"),
        (lambda loss, metrics: (loss.detach(), metrics), "no gradient"),
        (lambda loss, metrics: (torch.tensor(loss.item(), requires_grad=True), metrics), "no gradient"),
        (lambda loss, metrics: (loss.long(), metrics), "int64"),
        (lambda loss, metrics: (loss, metrics, 1), "tuple of Tensor, dict, int"),
        (lambda loss, metrics: {"loss": loss}, "dict"),
        (lambda loss, metrics: (loss, {"a": "text"}), "str as the metric 'a'"),
        (lambda loss, metrics: (loss, {"a": torch.ones(3)}), r"shape \[3\] as the metric 'a'"),
    ],
)
def test_losses_that_return_something_else_are_named(change, found):
    with pytest.raises(ConfigError, match=found):
        update(changed(change))


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        (lambda loss, metrics: loss, None),
        (lambda loss, metrics: [loss[None], None], None),
        (lambda loss, metrics: (loss, {"a": 1.5}), 1.5),
        (lambda loss, metrics: (loss, {"a": np.float32(1.5)}), 1.5),
        (lambda loss, metrics: (loss, {"a": torch.tensor([1.5])}), 1.5),
    ],
)
def test_losses_alone_and_numbers_as_metrics_are_taken(change, metric):
    results = update(changed(change))
    assert results["total_loss"] == update()["total_loss"]
    assert results.get("a") == metric


def test_a_loss_of_zero_needs_no_gradient():
    """Losses return it for a minibatch that has nothing to learn from."""
    results = update(changed(lambda loss, metrics: torch.zeros((), requires_grad=True)))
    assert (results["total_loss"], results["grad_norm"]) == (0, 0)


def test_a_loss_that_looks_up_another_name_is_told_the_columns_and_the_outputs():
    with pytest.raises(KeyError) as caught:
        update(lambda batch, outputs, distribution: batch["advantage"])
    batch = (
        f"If the batch was meant: it has no column 'advantage' at this place. Its columns: {', '.join(train_batch())}."
    )
    outputs = f"If `outputs` was meant: it has no column 'advantage' at this place. Its columns: {INPUTS}, vf_preds."
    assert str(caught.value) == f"'advantage'. {batch} {outputs}"


def test_an_error_in_the_module_says_what_it_was_given():
    def fail(out):
        raise RuntimeError("sizes differ")

    for name, method in {"outputs": "forward_train", "values": "compute_values"}.items():
        with pytest.raises(RuntimeError, match="sizes differ") as caught:
            update(**{name: fail})
        assert f"in Net.{method}, with obs [8, 4], actions [8]" in str(caught.value)


def runner_config(**model_config):
    spec = RLModuleSpec(module_class=Net, model_config=model_config)
    config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=spec)
    return config.training(train_batch_size=16, minibatch_size=16, num_epochs=1).debugging(seed=0)


@pytest.mark.parametrize(
    ("method", "change", "error", "found"),
    [
        ("outputs", lambda out: None, ColumnError, "NoneType"),
        ("outputs", lambda out: {INPUTS: "text"}, ColumnError, "str"),
        ("outputs", lambda out: {INPUTS: out[INPUTS].tolist()}, ColumnError, "list"),
        ("outputs", lambda out: {INPUTS: out[INPUTS].long()}, ColumnError, "int64"),
        ("values", lambda out: None, ColumnError, "NoneType"),
        ("values", lambda out: out.detach().numpy(), ColumnError, "ndarray"),
        (
            "values",
            lambda out: out @ out.new_ones(3),
            RuntimeError,
            r"in Net\.compute_values, with [\s\S]*obs \[\d+, 4\]",
        ),
    ],
)
def test_outputs_to_act_by_and_values_for_advantages_are_named(method, change, error, found):
    algo = runner_config(**{method: change}).build_algo()
    with pytest.raises(error) as caught:
        algo.env_runner.sample(num_timesteps=2) if method == "outputs" else algo.train()
    assert re.search(found, str(caught.value))
    algo.stop()
