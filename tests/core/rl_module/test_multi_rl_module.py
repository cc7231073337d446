"""Several modules under their ids, and their specs."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    ConfigError,
    NotAvailableError,
    UnknownNameError,
)
from epibatch.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec, TorchRLModule


class Net(TorchRLModule):
    def setup(self):
        self.layer = nn.Linear(4, 2)

    def get_initial_state(self):
        return {"h": torch.zeros(3)} if self.model_config.get("memory") else {}

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.layer(batch["obs"]), **kwargs}


class Fixed(RLModule):
    def _forward(self, batch, **kwargs):
        return {"actions": [0] * len(batch["obs"])}


class Plain(RLModule):
    pass


class Shared(MultiRLModule):
    pass


BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
LEFT = MultiRLModuleSpec(rl_module_specs={"left": RLModuleSpec(Plain)})


def spec(**options):
    return RLModuleSpec(Net, BOX, CHOICE, **options)


@pytest.fixture
def multi():
    return MultiRLModule(rl_module_specs={"p0": spec(), "p1": spec(), "fixed": RLModuleSpec(Fixed)})


def test_it_is_a_mapping(multi):
    assert "p0" in multi and "p9" not in multi and len(multi) == 3
    assert list(multi) == list(multi.keys()) == ["p0", "p1", "fixed"]
    assert list(multi.values()) == [module for _, module in multi.items()]
    assert multi.get("p0") is multi["p0"] and multi.get("p9") is None and multi.get("p9", multi["p1"]) is multi["p1"]
    assert bool(MultiRLModule()) and multi.as_multi_rl_module() is multi


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda multi: multi["fixd"], UnknownNameError, "did you mean 'fixed'"),
        (lambda multi: multi.remove_module("fixd"), UnknownNameError, "did you mean 'fixed'"),
        (lambda multi: multi.add_module("p1", Net()), ConfigError, "override=True"),
        (lambda multi: multi.add_module("p7", nn.Linear(1, 1)), ConfigError, "an RLModule"),
        (lambda multi: multi.forward_inference({"obs": torch.ones(3, 4)}), BatchLayoutError, "under their module id"),
        (lambda multi: multi.get_train_action_dist_cls(), NotAvailableError, r"multi_rl_module\[module_id\]"),
        (lambda multi: multi.set_state(None), CheckpointError, "a dict of states"),
        (lambda multi: multi.get_state("p5"), UnknownNameError, r"'p5'\n.*Known: fixed, p0, p1"),
        (lambda multi: multi.get_state(not_components=["p0", "p5"]), UnknownNameError, "'p5'"),
        (lambda multi: MultiRLModuleSpec(rl_module_specs={"a": Plain}), ConfigError, "an RLModuleSpec"),
        (lambda multi: LEFT["lef"], UnknownNameError, "did you mean 'left'"),
        (lambda multi: LEFT.remove_modules("lef"), UnknownNameError, "did you mean 'left'"),
        (lambda multi: LEFT.build("lef"), UnknownNameError, "did you mean 'left'"),
    ],
)
def test_wrong_uses(multi, call, error, message):
    with pytest.raises(error, match=message):
        call(multi)


def test_foreach_module(multi):
    names = multi.foreach_module(lambda module_id, module, end: module_id + type(module).__name__ + end, end="!")
    assert names == ["p0Net!", "p1Net!", "fixedFixed!"]
    assert multi.foreach_module(lambda module_id, module: len(module_id), return_dict=True) == {
        "p0": 2,
        "p1": 2,
        "fixed": 5,
    }


@pytest.mark.parametrize("situation", ["inference", "exploration", "train"])
def test_only_modules_with_a_batch_are_called(multi, situation):
    forward = getattr(multi, f"forward_{situation}")
    batch = {"p1": {"obs": torch.ones(3, 4)}, "fixed": {"obs": [1, 2]}, "a_column_beside_them": 5}
    out = forward(batch)
    assert list(out) == ["p1", "fixed"]
    torch.testing.assert_close(out["p1"]["action_dist_inputs"], multi["p1"].layer(torch.ones(3, 4)))
    assert out["p1"]["action_dist_inputs"].requires_grad is (situation == "train")
    assert out["fixed"] == {"actions": [0, 0]}
    assert forward({}) == {}
    assert forward({"p0": {"obs": torch.ones(1, 4)}}, t=4)["p0"]["t"] == 4


def test_parameters_are_reachable(multi):
    names = [name for name, _ in multi.named_parameters()]
    assert names == ["p0.layer.weight", "p0.layer.bias", "p1.layer.weight", "p1.layer.bias"]
    twin = copy.deepcopy(multi)
    assert next(twin.parameters()) is twin["p0"].layer.weight
    assert twin["p0"].layer.weight is not multi["p0"].layer.weight
    multi.eval()
    assert not multi["p0"].training


def test_adding_and_removing(multi):
    module = Net()
    multi.add_module("p0", module, override=True)
    assert multi["p0"] is module
    assert len(list(multi.parameters())) == 4
    multi.remove_module("p0")
    assert "p0" not in multi
    assert [name for name, _ in multi.named_parameters()] == ["p1.layer.weight", "p1.layer.bias"]
    multi.remove_module("p0", raise_err_if_not_found=False)
    multi.add_module("new", spec(model_config={"memory": True}).build())
    assert list(multi.rl_module_specs) == ["p1", "fixed", "new"]
    assert multi.rl_module_specs["new"] == spec(model_config={"memory": True})


@pytest.mark.parametrize("module_id", ["team.red", "forward", "p 0"])
def test_any_id_will_do(module_id):
    multi = MultiRLModule(rl_module_specs={module_id: spec()})
    assert multi.forward_train({module_id: {"obs": torch.ones(2, 4)}})[module_id]["action_dist_inputs"].shape == (2, 2)
    assert len(list(multi.parameters())) == 2
    multi.set_state(multi.get_state())


def test_state_of_memory():
    assert not MultiRLModule(rl_module_specs={"a": spec()}).is_stateful()
    multi = MultiRLModule(rl_module_specs={"a": spec(), "b": spec(model_config={"memory": True})})
    assert multi.is_stateful()
    assert multi.get_initial_state()["a"] == {}
    assert multi.get_initial_state()["b"]["h"].shape == (3,)
    multi.remove_module("b")
    assert not multi.is_stateful()


def test_parts_of_a_state(multi):
    assert list(multi.get_state("p1")) == ["p1"]
    assert list(multi.get_state(["p1", "p0"])) == ["p0", "p1"]
    assert list(multi.get_state(not_components="fixed")) == ["p0", "p1"]
    assert list(multi.get_state(["p0", "p1"], not_components=["p0"])) == ["p1"]
    before = multi.get_state()
    other = MultiRLModule(rl_module_specs={"p0": spec()})
    multi.set_state(other.get_state())
    np.testing.assert_equal(multi.get_state("p0"), other.get_state())
    np.testing.assert_equal(multi.get_state("p1"), {"p1": before["p1"]})
    with pytest.raises(CheckpointError, match="states of p1, fixed"):
        other.set_state(multi.get_state())


def test_a_state_that_does_not_fit_changes_no_module(multi):
    other = MultiRLModule(rl_module_specs={"p0": spec(), "p1": spec()})
    state, before = other.get_state(), multi.get_state()
    state["p1"]["layer.weight"] = np.zeros((3, 3))
    with pytest.raises(CheckpointError, match=r"^in module 'p1':[\s\S]*layer.weight has shape"):
        multi.set_state(state)
    np.testing.assert_equal(multi.get_state(), before)


def test_building_for_acting_only():
    specs = {"p0": spec(), "critic": spec(learner_only=True)}
    actor, learner = MultiRLModule(rl_module_specs=specs, inference_only=True), MultiRLModule(rl_module_specs=specs)
    assert list(actor) == ["p0"]
    assert actor["p0"].inference_only
    assert not specs["p0"].inference_only
    actor.set_state(learner.get_state(inference_only=True))
    actor.add_module("b", Net(inference_only=True))
    assert actor.inference_only
    actor.add_module("c", Net())
    assert not actor.inference_only, "a module that can be trained ends acting only"


def test_build_and_back():
    specs = {"a": RLModuleSpec(Plain, BOX, CHOICE, model_config={}), "b": RLModuleSpec(Plain, model_config={"x": 1})}
    spec = MultiRLModuleSpec(multi_rl_module_class=Shared, model_config={"y": 2}, rl_module_specs=specs)
    multi = spec.build()
    assert type(multi) is Shared
    assert list(multi.keys()) == ["a", "b"]
    assert multi["b"].model_config == {"x": 1}
    assert multi.model_config == {"y": 2}
    again = MultiRLModuleSpec.from_module(multi)
    assert again.multi_rl_module_class is Shared
    assert again.rl_module_specs["a"] == specs["a"]
    assert type(spec.build("a")) is Plain
    other = RLModuleSpec(Plain, model_config={"n": 1})
    spec.add_modules({"a": other, "c": other}, override=False)
    assert spec["a"] != other
    spec.add_modules({"a": other})
    assert spec["a"] is other
    spec.remove_modules("a")
    assert "a" not in spec
    spec.remove_modules(["b", "c"])
    assert len(spec.build()) == 0
    assert spec.as_multi_rl_module_spec() is spec
