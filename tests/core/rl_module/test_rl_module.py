"""The contract of RLModule, without torch and with it, and its spec."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.algorithms import PPOConfig
from epibatch.core.distributions import Categorical, DiagGaussian
from epibatch.core.errors import CheckpointError, ColumnError, ConfigError, NotAvailableError, RunnerError, SpaceError
from epibatch.core.rl_module import (
    MultiRLModule,
    RLModule,
    RLModuleSpec,
    TorchRLModule,
    ValueFunctionAPI,
)

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)


class Recording(RLModule):
    framework = "numpy"
    built = 0

    def setup(self):
        self.built += 1
        self.seen = self.model_config

    def _forward(self, batch, **kwargs):
        return {"how": "any", **kwargs}

    def _forward_exploration(self, batch, **kwargs):
        return {"how": "exploration"}


def test_setup_runs_once_after_the_fields_are_set():
    module = Recording(observation_space=BOX, model_config={"a": 1})
    assert module.built == 1
    assert module.seen == {"a": 1}
    assert module.observation_space is BOX
    assert module.action_space is None
    assert (module.inference_only, module.learner_only) == (False, False)
    assert module.forward_inference({}, t=1) == {"how": "any", "t": 1}
    assert module.forward_train({}) == {"how": "any"}
    assert module.forward_exploration({}) == {"how": "exploration"}


class Built(TorchRLModule):
    """Its model_config is a function that sets it up."""

    def setup(self):
        self.model_config(self)


def built_by_a_config(module_class):
    spec = RLModuleSpec(module_class=module_class)
    return PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=spec).build_algo()


def layer(frozen=False):
    return nn.Linear(2, 2).requires_grad_(not frozen)


@pytest.mark.parametrize(
    ("set_up", "name"),
    [
        (lambda module: setattr(module, "layers", [layer()]), "layers"),
        (lambda module: setattr(module, "heads", {"pi": (nn.ReLU(), layer())}), "heads"),
        (lambda module: setattr(module, "_scales", [nn.Parameter(torch.zeros(2))]), "_scales"),
        (lambda module: setattr(module, "net", Built(model_config=lambda m: setattr(m, "ls", [layer()]))), "net.ls"),
        (lambda module: setattr(module, "layers", nn.ModuleList([layer()])), None),
        (lambda module: (setattr(module, "net", layer()), setattr(module, "known", [module.net, nn.ReLU(), 1])), None),
        (lambda module: setattr(module, "teacher", [layer(frozen=True)]), None),
    ],
)
def test_layers_that_torch_does_not_see_are_warned_of(set_up, name):
    """A list hides layers from `parameters()`, so they would neither be trained nor saved."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = RLModuleSpec(module_class=Built, model_config=set_up).build()
    assert isinstance(module, Built)
    assert [f"attribute {name!r}" in str(each.message) for each in caught] == [True] * (name is not None)


class Bare(RLModule):
    def get_initial_state(self):
        return np.zeros(3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Recording(inference_only=True).forward_train({}), RunnerError, "inference_only=False"),
        (lambda: RLModule().forward_inference({}), NotAvailableError, "implement _forward"),
        (lambda: Recording(observation_spac=1), ConfigError, "'observation_space'"),
        (lambda: Recording(size=1), ConfigError, "model_config"),
        (lambda: Bare().is_stateful(), ColumnError, "a dict of unbatched arrays"),
        (lambda: RLModuleSpec(module_class="Recording").build(), ConfigError, "a subclass of RLModule"),
        (lambda: RLModuleSpec(module_class=int).build(), ConfigError, "a subclass of RLModule"),
        (lambda: built_by_a_config(Built(model_config=lambda module: None)), ConfigError, "not an instance"),
        (lambda: Built(model_config=lambda module: module.size), AttributeError, r"in Built.setup:[\s\S]*'size'"),
    ],
)
def test_wrong_uses(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("config", [{"state_dim": 3}, None, "anything"])
def test_a_spec_hands_everything_on_and_is_made_of_a_module(config):
    spec = RLModuleSpec(Recording, BOX, CHOICE, inference_only=True, learner_only=False, model_config=config)
    module = spec.build()
    assert type(module) is Recording
    assert (module.observation_space, module.action_space) == (BOX, CHOICE)
    assert (module.inference_only, module.learner_only) == (True, False)
    assert module.model_config == ({} if config is None else config)
    assert RLModuleSpec.from_module(module).build().model_config == module.model_config
    assert config is None or RLModuleSpec.from_module(module) == spec
    assert spec.as_multi_rl_module_spec().rl_module_specs == {"default_policy": spec}
    multi = module.as_multi_rl_module()
    assert isinstance(multi, MultiRLModule) and multi["default_policy"] is module and module.unwrapped() is module


def test_is_stateful_asks_once():
    calls = []

    class Stateful(RLModule):
        def get_initial_state(self):
            calls.append(1)
            return {"h": np.zeros(3)}

    module = Stateful()
    assert module.is_stateful()
    assert module.is_stateful()
    assert calls == [1]
    assert not RLModule().is_stateful()


@pytest.mark.parametrize(("space", "cls"), [(gym.spaces.Discrete(2), Categorical), (BOX, DiagGaussian)])
@pytest.mark.parametrize("situation", ["inference", "exploration", "train"])
def test_distributions_follow_the_action_space(space, cls, situation):
    assert getattr(RLModule(action_space=space), f"get_{situation}_action_dist_cls")() is cls
    with pytest.raises(SpaceError):
        getattr(RLModule(), f"get_{situation}_action_dist_cls")()


class Net(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        self.pi = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
        self.vf = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["obs"] - self.mean)}

    def compute_values(self, batch, embeddings=None):
        return self.vf(batch["obs"]).squeeze(-1)

    def get_non_inference_attributes(self):
        return ["vf"]


@pytest.fixture
def batch():
    return {"obs": torch.ones(3, 4)}


def test_acting_computes_no_gradients(batch):
    net = Net()
    for forward in (net.forward_inference, net.forward_exploration):
        assert not forward(batch)["action_dist_inputs"].requires_grad
        with torch.no_grad():
            assert not forward(batch)["action_dist_inputs"].requires_grad
    assert torch.is_grad_enabled()
    weight = torch.ones(2, requires_grad=True)
    (net.forward_exploration(batch)["action_dist_inputs"] * weight).sum().backward()
    assert weight.grad is not None, "what acting gives can be trained on"
    assert net.forward_train(batch)["action_dist_inputs"].requires_grad
    assert net(batch)["action_dist_inputs"].requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_acting_leaves_the_mode_alone(batch, training):
    net = Net().train(training)
    zeros = (net.forward_exploration({"obs": torch.ones(200, 4)})["action_dist_inputs"] == 0).any()
    assert bool(zeros) is training
    assert net.training is training


def test_state_round_trip(batch):
    one, other = Net(), Net()
    one.mean += 1.0
    state = one.get_state()
    assert {type(value) for value in state.values()} == {np.ndarray}
    other.set_state(state)
    torch.testing.assert_close(other.compute_values(batch), one.compute_values(batch))
    assert torch.equal(other.mean, one.mean)
    assert (Net().device, Net().to("meta").device) == (torch.device("cpu"), torch.device("meta"))
    assert TorchRLModule().device == torch.device("cpu")


def test_states_are_copies_and_parameters_stay_the_same_objects():
    net = Net()
    weight, state = net.vf.weight, net.get_state()
    before = state["vf.weight"].copy()
    with torch.no_grad():
        weight += 1.0
    np.testing.assert_array_equal(state["vf.weight"], before)
    for array in state.values():
        array.flags.writeable = False
    net.set_state(state)
    assert net.vf.weight is weight
    np.testing.assert_array_equal(weight.detach().numpy(), before)
    net.set_state({name: torch.from_numpy(array.copy()) for name, array in state.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("vf.bias"), "vf.bias is missing"),
        (lambda state: state.update(extra=np.zeros(1)), "extra is unknown"),
        (lambda state: state.update(mean=np.zeros(3)), r"mean has shape \(3,\), not \(4,\)"),
    ],
)
def test_states_that_do_not_fit(change, message):
    state = Net().get_state()
    net = Net()
    before = net.get_state()
    change(state)
    with pytest.raises(CheckpointError, match=message):
        net.set_state(state)
    np.testing.assert_equal(net.get_state(), before)
    actor, state = Net(inference_only=True), Net().get_state(inference_only=True)
    assert sorted(state) == ["mean", "pi.0.bias", "pi.0.weight"]
    actor.set_state(state)
    actor.set_state(before)
    torch.testing.assert_close(actor.pi[0].weight, net.pi[0].weight)
    with pytest.raises(CheckpointError, match=r"vf\.weight is missing"):
        net.set_state(state)


@pytest.mark.parametrize("name", ["float64", "float16", "bfloat16", "complex64", "int8", "uint8", "bool"])
def test_buffers_of_every_type_that_can_be_saved(tmp_path, name):
    one, other = Net(), Net()
    for net in (one, other):
        net.register_buffer("extra", torch.zeros(3, dtype=getattr(torch, name)))
    one.extra.copy_(torch.tensor([1, 0, 1]))
    other.restore_from_path(one.save_to_path(tmp_path / "net"))
    assert torch.equal(other.extra, one.extra)


class Counting(Net):
    def setup(self):
        super().setup()
        self.register_buffer("count", torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("vf.bias", np.ones(1, int), True),
        ("vf.bias", [1], True),
        ("vf.bias", np.ones(1, bool), True),
        ("count", [3.0, 4.0], True),
        ("count", [0.5, 1], False),
        ("count", [np.nan, 1], False),
        ("vf.bias", [1j], False),
        ("vf.bias", ["1"], False),
    ],
)
def test_numbers_of_another_type_are_converted_if_none_is_changed(name, value, fits):
    net = Counting()
    before = net.get_state()
    if fits:
        net.set_state({**before, name: value})
        np.testing.assert_array_equal(net.get_state()[name], value)
        return
    with pytest.raises(CheckpointError):
        net.set_state({**before, "mean": np.full(4, 7.0), name: value})
    np.testing.assert_equal(net.get_state(), before)


def test_a_module_with_a_constructor_of_its_own_is_told_of_setup():
    class Net(TorchRLModule):
        def __init__(self, size=4):
            super().__init__()
            self.layer = nn.Linear(size, 2)

    with pytest.raises(ConfigError, match=r"Net\.__init__\(size=4\)[\s\S]*write setup\(self\)"):
        RLModuleSpec(module_class=Net).build()


@pytest.mark.parametrize("own_error", [False, True])
def test_a_state_with_a_batch_axis_is_named_if_sizes_are_wrong(own_error):
    class Net(TorchRLModule, ValueFunctionAPI):
        def setup(self):
            self.gru = nn.GRU(4, 8, batch_first=True)

        def get_initial_state(self):
            return {"h": torch.zeros(1, 8)}

        def _forward(self, batch, **kwargs):
            if own_error:
                raise RuntimeError("of another kind")
            out, state = self.gru(batch["obs"], batch["state_in"]["h"][None])
            return {"action_dist_inputs": out[..., :2], "state_out": {"h": state[0]}}

        def compute_values(self, batch, embeddings=None):
            return batch["obs"].sum(-1)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Net, model_config={"max_seq_len": 4}))
    )
    algo = config.training(train_batch_size=4, minibatch_size=4).build_algo()
    with pytest.raises(RuntimeError) as caught:
        algo.env_runner.sample(num_timesteps=2)
    message = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "state_in" in message and ("batch axis" in message) is not own_error
    assert own_error or "if the 1 in state_in is a batch axis" in message
    algo.stop()
