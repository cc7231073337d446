"""Sources and steps of algorithms that cannot work, each a named error; and what checkpoints say of other classes."""

from __future__ import annotations

import pytest
import torch

from epibatch.algorithms import Algorithm, AlgorithmConfig, PPOConfig, StepResult, TrainingSettings, register_algorithm
from epibatch.core.errors import CheckpointError, ConfigError, EpibatchWarning, RunnerError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.learner import Losses, UpdateRule


class Pull(UpdateRule):
    """Pulls the logits to 0."""

    def losses(self, batch, module, own, coefficients):
        return Losses({"total": module.forward_train(batch)["action_dist_inputs"].square().mean()})


class Drawing:
    """A source of no steps at all, or with something missing."""

    is_late, num_env_steps = False, 0

    def sample(self):
        return []

    def sample_ahead(self):
        """Prepare nothing."""

    def forget(self):
        """Forget nothing."""

    def learned(self, rows):
        """Learn nothing."""


@register_algorithm("pulling")
class PullConfig(AlgorithmConfig):
    """Pulls."""

    training_model, rule = TrainingSettings, Pull


def built(source, rule=Pull, minimum=0, **learners):
    kinds = {"make_source": lambda self, group: source, "rule": rule, "min_env_steps_per_iteration": minimum}
    kind = type("OtherConfig", (PullConfig,), kinds)
    return kind().environment("CartPole-v1").learners(**learners).debugging(seed=0).build_algo()


@pytest.mark.parametrize("name", ["sample", "sample_ahead", "forget", "is_late", "learned", "num_env_steps"])
def test_a_source_says_what_it_lacks_when_the_algorithm_is_built(name):
    kept = {key: value for key, value in vars(Drawing).items() if key != name and not key.startswith("__")}
    with pytest.raises(ConfigError, match=f"without {name}"):
        built(type("Lacking", (), kept)())
    with pytest.raises(ConfigError, match="NoneType without sample"):
        built(None)


def test_an_iteration_without_any_step_ends():
    algo = built(Drawing(), minimum=5)
    with pytest.raises(RunnerError, match="a training step without any"):
        algo.train()
    algo.stop()


@pytest.mark.parametrize("result", [None, {}, StepResult({}, -1)])
def test_a_training_step_returns_what_it_did(result):
    class Own(Algorithm):
        """Returns something."""

        def training_step(self):
            return result

    algo = Own(PullConfig().environment("CartPole-v1"))
    with pytest.raises(ConfigError, match=r"Own.training_step[\s\S]*StepResult\(results, num_env_steps\)"):
        algo.train()
    algo.stop()


class Sized(TorchRLModule):
    """A network with a setting of its own."""

    def setup(self):
        self.net = torch.nn.Linear(4, self.model_config["hidden"])
        self.head = torch.nn.Linear(self.model_config["hidden"], 2)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.head(self.net(batch["obs"]))}


@register_algorithm("sized_pulling")
class SizedConfig(PullConfig):
    """Has a network of its own."""

    def get_default_rl_module_spec(self):
        return RLModuleSpec(Sized, model_config={"hidden": 3})


def test_settings_of_an_algorithms_own_network():
    """From the spec, from the config, and from a file."""
    config = SizedConfig().environment("CartPole-v1")
    for given, expected in (({}, 3), ({"hidden": 7}, 7)):
        algo = config.copy().rl_module(model_config=given).build_algo()
        assert algo.get_module().net.out_features == expected
        algo.stop()
    text = "algorithm: sized_pulling\nenvironment: {env: CartPole-v1}\nrl_module: {model_config: {hidden: 5}}\n"
    assert SizedConfig.from_yaml(text).model_config == {"hidden": 5}


def test_a_checkpoint_of_another_algorithm_is_refused_with_a_config_too(tmp_path):
    algo = SizedConfig().environment("CartPole-v1").build_algo()
    algo.save_to_path(tmp_path / "saved")
    algo.stop()
    with pytest.raises(CheckpointError, match=r"'pulling'[\s\S]*'sized_pulling'"):
        Algorithm.from_checkpoint(tmp_path / "saved", config=PullConfig().environment("CartPole-v1"))


class OtherPPOConfig(PPOConfig):
    """PPO with a class of its own, and no name."""


def test_a_class_that_is_not_loaded_is_warned_of(tmp_path):
    algo = OtherPPOConfig().environment("CartPole-v1").build_algo()
    algo.save_to_path(tmp_path / "saved")
    algo.stop()
    with pytest.warns(EpibatchWarning, match=r"OtherPPOConfig[\s\S]*PPOConfig, since loading the other one runs code"):
        Algorithm.from_checkpoint(tmp_path / "saved").stop()


def test_an_algorithm_that_was_stopped_does_not_evaluate():
    algo = PullConfig().environment("CartPole-v1").build_algo()
    algo.stop()
    with pytest.raises(RunnerError, match="one that was stopped"):
        algo.evaluate()


def test_a_config_without_a_rule():
    class Nothing(PullConfig):
        """Has no rule."""

        rule = None

    with pytest.raises(ConfigError, match="set rule = MyRule on the class"):
        Nothing().environment("CartPole-v1").build_algo()
