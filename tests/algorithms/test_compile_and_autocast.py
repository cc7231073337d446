"""`torch.compile` of losses and acting, and losses in 16 bits."""

from __future__ import annotations

import copy
import pickle
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from fixture_cases import slow
from torch._dynamo.utils import counters

from epibatch.algorithms import DQNConfig, PPOConfig, SACConfig
from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule, ValueFunctionAPI
from epibatch.env_runner import SingleAgentEnvRunner

types: dict[str, set[torch.dtype]] = {}


class Small(TorchRLModule, ValueFunctionAPI):
    """One layer; notes the types that it computes and that losses get."""

    def setup(self) -> None:
        self.layer = torch.nn.Linear(4, 2)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        logits = self.layer(batch["obs"])
        if not torch.compiler.is_compiling():
            types.setdefault("layer", set()).add(logits.dtype)
        return {"action_dist_inputs": logits}

    def compute_values(self, batch: Any, embeddings: Any = None) -> torch.Tensor:
        return batch["obs"].sum(-1)


def small_loss(batch: Any, outputs: Any, distribution_class: Any) -> Any:
    if not torch.compiler.is_compiling():
        types.setdefault("loss", set()).add(outputs["action_dist_inputs"].dtype)
    policy = distribution_class.from_logits(outputs["action_dist_inputs"])
    return -(policy.logp(batch["actions"]) * batch["rewards"]).mean(), {}


def small(seed: int = 0) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=RLModuleSpec(Small)).debugging(seed=seed)
    return config.training(train_batch_size=40, minibatch_size=20, num_epochs=2, lr=0.01, loss=small_loss)


def weights_after(config: Any, updates: int = 1) -> tuple[Any, Any]:
    algo = config.build_algo()
    for _ in range(updates):
        algo.train()
    module = algo.get_module()
    algo.stop()
    return module, module.get_state()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    types.clear()


@pytest.mark.parametrize("side", ["learner", "worker"])
def test_a_compiled_side_computes_the_same(side):
    _, expected = weights_after(small())
    options = {f"torch_compile_{side}": True, f"torch_compile_{side}_dynamo_backend": "eager"}
    module, found = weights_after(small().framework("torch", **options))
    assert counters["frames"]["ok"]
    assert list(found) == list(expected) == ["layer.weight", "layer.bias"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    compiled = counters["frames"]["total"]
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # are not compiled, and are themselves
        twin.layer.weight.data.zero_()
        outputs = twin.forward_exploration({"obs": torch.ones(3, 4)}, t=0)["action_dist_inputs"]
        assert torch.equal(outputs, twin.layer.bias.detach().expand(3, 2))
    assert counters["frames"]["total"] == compiled


def test_what_cannot_be_compiled_is_named():
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    torch._dynamo.register_backend(broken, name="broken")
    for side, part in (("learner", "losses with module 'default_policy' (Small)"), ("worker", "Small._forward_")):
        for backend, found in (("broken", "no compiler here"), ("nonsense", "nonsense")):
            options = {f"torch_compile_{side}": True, f"torch_compile_{side}_dynamo_backend": backend}
            with pytest.raises(ConfigError) as caught:
                weights_after(small().framework("torch", **options))
            assert part in caught.value.where and found in str(caught.value)
            assert f"set torch_compile_{side}_dynamo_backend=" in caught.value.do


class PlainModule(torch.nn.Module):
    """Acts, and is no module of epibatch."""

    def forward_exploration(self, batch, **kwargs):
        return {"actions": torch.zeros(len(batch["obs"]), dtype=torch.int64)}

    forward_inference = forward_exploration


def test_a_module_that_is_not_compiled_is_named():
    settings = {"env": "CartPole-v1", "num_envs": 1, "seed": 0}
    SingleAgentEnvRunner(module=PlainModule(), **settings).stop()
    with pytest.raises(ConfigError, match=r"torch_compile_worker[\s\S]*PlainModule"):
        SingleAgentEnvRunner(module=PlainModule(), torch_compile_worker=True, **settings)


def test_autocast_computes_the_network_in_sixteen_bits_and_the_loss_in_thirty_two(monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(torch, "is_autocast_enabled", lambda: False)  # torch 2.3 asks of no device
        _, expected = weights_after(small())
    assert types == {"layer": {torch.float32}, "loss": {torch.float32}}
    _, found = weights_after(small().learners(autocast="bfloat16"))
    assert types == {"layer": {torch.float32, torch.bfloat16}, "loss": {torch.float32}}  # it acts in float32
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, atol=0.02)  # four steps of 0.01
    with pytest.raises(ConfigError, match="autocast"):
        small().learners(autocast="int8")


@pytest.mark.parametrize("config", [DQNConfig().environment("CartPole-v1"), SACConfig().environment("Pendulum-v1")])
def test_autocast_of_rules_with_several_losses(config):
    config.training(train_batch_size=32, num_steps_sampled_before_learning_starts=32).learners(autocast="bfloat16")
    config.training(replay_buffer_config={"capacity": 1000}).debugging(seed=0)
    algo = config.build_algo()
    for _ in range(4):
        results = algo.training_step().learner_results
    algo.stop()
    losses = {k: v for k, v in results["default_policy"].items() if k.endswith("loss")}
    assert losses and np.isfinite(list(losses.values())).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
@pytest.mark.parametrize("backend", [slow("aot_eager"), slow("inductor")])
def test_ppo_is_one_graph(backend):
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor needs a C++ compiler")
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.training(train_batch_size=120, minibatch_size=40, num_epochs=2)
    _, expected = weights_after(config)
    config.framework("torch", torch_compile_learner=True, torch_compile_learner_dynamo_backend=backend)
    _, found = weights_after(config)
    assert counters["frames"]["ok"] and not counters["graph_break"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6 if backend == "aot_eager" else 1e-4)
