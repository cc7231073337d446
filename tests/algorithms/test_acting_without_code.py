"""A checkpoint of a stranger's algorithm acts where its package is not, as networks and own pieces are in it."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from epibatch.algorithms import Policy
from epibatch.cli import app
from epibatch.core.errors import CheckpointError
from epibatch.env_runner import make_multi_agent
from fixture_configs import weights

NETWORK = '''
from torch.nn.functional import one_hot

from epibatch.connectors.views import View

from epibatch.core.rl_module import DefaultActorCritic


class Negated(DefaultActorCritic):
    """Prefers what the default network likes least, and repeats nothing: it knows its last action."""

    view_requirements = {"last": View("actions", shift=-1)}

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch, **kwargs)
        last = one_hot(batch["last"].long(), 2).reshape(outputs["action_dist_inputs"].shape)
        return {**outputs, "action_dist_inputs": -outputs["action_dist_inputs"] - 0.01 * last}
'''

ALGORITHM = '''
from stranger_network import Negated

from epibatch.algorithms import AlgorithmConfig, register_algorithm
from epibatch.connectors.observations import Clip
from epibatch.core.rl_module import RLModuleSpec
from epibatch.learner import Losses, UpdateRule


class Rule(UpdateRule):
    """Logits follow the rewards."""

    def losses(self, batch, module, own, coefficients):
        return Losses({"total": (module.forward_train(batch)["action_dist_inputs"].sum(-1) - batch["rewards"]).mean()})


class Acting(AlgorithmConfig):
    """Clips observations before and after the user's pieces."""

    rule = Rule

    def build_env_to_module_connector(self, env=None, spaces=None, device=None):
        pipeline = super().build_env_to_module_connector(env, spaces, device)
        pipeline.prepend(Clip(low=-0.5, high=0.5))
        pipeline.insert_before("add_observations_from_episodes_to_batch", Clip(low=-0.1, high=0.2))
        return pipeline


@register_algorithm("stranger_plain")
class Plain(Acting):
    """Acts with the default network."""


@register_algorithm("stranger_network")
class WithNetwork(Acting):
    """Acts with a network of its own."""

    def get_default_rl_module_spec(self):
        return RLModuleSpec(Negated)
'''

OBSERVATIONS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The modules of a stranger's algorithm; `uninstall` forgets one of them."""
    for name, text in {"stranger_network": NETWORK, "stranger_algorithm": ALGORITHM}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("stranger_algorithm")
    for name in ("stranger_network", "stranger_algorithm"):
        sys.modules.pop(name, None)


def uninstall(folder, *names):
    for name in names:
        (folder / f"{name}.py").unlink()
        del sys.modules[name]
        with pytest.raises(ImportError):
            importlib.import_module(name)


def small(config):
    config.environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32, lr=0.01).debugging(seed=1)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.env_runners(env_to_module_connector=[{"piece": "clip", "low": -0.3, "high": 0.4}])


def trained(config, path):
    """A checkpoint, and the greedy actions of the algorithm that wrote it."""
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(path)
    actions, _ = algo.act(OBSERVATIONS)
    expected = weights(algo)
    algo.stop()
    return expected, actions


def test_own_pieces_are_among_the_users_where_the_package_is_not(package, tmp_path):
    expected, actions = trained(small(package.Plain()), tmp_path / "saved")
    uninstall(tmp_path, "stranger_algorithm", "stranger_network")
    policy = Policy.from_checkpoint(tmp_path / "saved")
    np.testing.assert_array_equal(policy.act(OBSERVATIONS)[0], actions)
    clipped = np.clip(OBSERVATIONS, -0.1, 0.2)  # the narrowest of the three
    np.testing.assert_array_equal(policy.act(clipped)[0], actions)
    np.testing.assert_equal({name: value.numpy() for name, value in policy.module.state_dict().items()}, expected)
    played = CliRunner().invoke(app, ["play", str(tmp_path / "saved"), "--episodes", "1", "--seed", "3"])
    assert played.exit_code == 0 and "CartPole-v1" in played.output, played.output


def test_a_network_that_can_be_imported_acts_without_its_algorithm(package, tmp_path):
    _, actions = trained(small(package.WithNetwork()), tmp_path / "saved")
    uninstall(tmp_path, "stranger_algorithm")
    with pytest.raises(CheckpointError, match=r"(?s)stranger_network:Negated.*allow_imports=True"):
        Policy.from_checkpoint(tmp_path / "saved")
    policy = Policy.from_checkpoint(tmp_path / "saved", allow_imports=True)
    assert type(policy.module).__module__ == "stranger_network"
    np.testing.assert_array_equal(policy.act(OBSERVATIONS)[0], actions)


def test_several_modules_are_those_that_were_trained(package, tmp_path):
    config = small(package.WithNetwork()).environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    mapping = {"0": "left", "1": "right"}
    config.multi_agent(policies={"left": {"model_config": {"fcnet_hiddens": [3]}}, "right": None})
    algo = config.multi_agent(policy_mapping_fn=mapping).build_algo()
    observations = dict(enumerate(OBSERVATIONS[:2]))
    actions, _ = algo.act(observations)
    algo.save_to_path(tmp_path / "saved")
    algo.stop()
    uninstall(tmp_path, "stranger_algorithm")
    policy = Policy.from_checkpoint(tmp_path / "saved", allow_imports=True)
    assert policy.act(observations)[0] == actions
    sizes = {key: module.model_config["fcnet_hiddens"] for key, module in policy.module.items()}
    assert sizes == {"left": [3], "right": [8]}


def test_what_the_default_pieces_cannot_be_made_of_needs_the_config(package, tmp_path):
    class Unclipped(package.Plain):
        def build_module_to_env_connector(self, env=None, spaces=None):
            pipeline = super().build_module_to_env_connector(env, spaces)
            pipeline.remove("normalize_and_clip_actions")
            return pipeline

    config = small(Unclipped())
    _, actions = trained(config, tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"(?s)added\.module_to_env.*normalize_and_clip_actions is missing"):
        Policy.from_checkpoint(tmp_path / "saved")
    policy = Policy.from_checkpoint(tmp_path / "saved", config=config)
    np.testing.assert_array_equal(policy.act(OBSERVATIONS)[0], actions)
