"""Mistakes with several modules: in a learner, among modules, in their checkpoints and specs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.errors import CheckpointError, ConfigError, NonFiniteLossError, RegistryError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from epibatch.learner import Learner, LearnerSettings, MultiAgentSettings, PPOLoss

OBS, ACT = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
FUNCTION = {"fcnet_kernel_initializer": torch.nn.init.ones_}


def spec(hidden: int = 4, **options: Any) -> RLModuleSpec:
    return RLModuleSpec(observation_space=OBS, action_space=ACT, model_config={"fcnet_hiddens": [hidden]}, **options)


def modules(*names: str) -> MultiRLModule:
    return MultiRLModule(rl_module_specs=dict.fromkeys(names or ("red", "blue"), spec()))


def learner(batch: Any = None, module: Any = None, **several: Any) -> Learner:
    return Learner(
        module=module or modules(),
        connector=lambda **kwargs: batch,
        settings=LearnerSettings(),
        loss=PPOLoss(),
        multi_agent=MultiAgentSettings(**several),
    )


def nowhere(module_id: str) -> dict[str, Any]:
    """A batch in which nothing is a number."""
    nan = torch.full((3,), float("nan"))
    rows = dict.fromkeys(("action_logp", "advantages", "value_targets"), nan)
    return {
        module_id: {"obs": torch.zeros(3, 4), "actions": torch.zeros(3), "action_dist_inputs": torch.zeros(3, 2)} | rows
    }


def saved(folder: Any, *names: str) -> str:
    return modules(*names).save_to_path(folder / "league")


# fmt: off
MISTAKES: dict[str, Any] = {
    # settings
    "one id instead of a list": (ConfigError, lambda: learner(policies_to_train="red"), [
        "policies_to_train", "module ids", "['red']"]),
    "module to train that is not there": (UnknownNameError, lambda: learner(policies_to_train=["rde"]), [
        "policies_to_train", "'rde'", "did you mean 'red'"]),
    "function that does not say": (ConfigError, lambda: learner(
        nowhere("red"), policies_to_train=lambda *about: None).update(episodes=[1]), [
        "policies_to_train('red', batch)", "True or False", "None"]),
    "overrides of a module that is not there": (UnknownNameError, lambda: learner(
        overrides_per_module={"bleu": {"lr": 0.1}}), ["overrides_per_module", "'bleu'", "did you mean 'blue'"]),
    "overrides without module ids": (ConfigError, lambda: learner(overrides_per_module={"lr": 0.1}), [
        "overrides_per_module", "{'lr': 0.1}", '{"main": {"lr": 1e-4}}']),
    "override that no module has": (ConfigError, lambda: learner(overrides_per_module={"red": {"gamma": 0.9}}), [
        "overrides of module 'red'", "'gamma'", "Known: ", "clip_param"]),
    "override out of range": (ConfigError, lambda: learner(overrides_per_module={"red": {"lr": -1}}), [
        "overrides of module 'red'", "lr: input should be greater than 0", "-1"]),
    "loss that is none": (ConfigError, lambda: learner(overrides_per_module={"red": {"loss": 3}}), [
        "overrides of module 'red'", "a Loss, a class of one, or a function", "3"]),
    # updates
    "loss that is no number": (NonFiniteLossError, lambda: learner(nowhere("red")).update(episodes=[1]), [
        "module 'red'", "total_loss=nan", "the step was not applied"]),
    "batch of a module that is not there": (UnknownNameError, lambda: learner(nowhere("rde")).update(episodes=[1]), [
        "batch of the learner pipeline", "'rde'", "did you mean 'red'"]),
    # coming and going
    "id that is taken": (ConfigError, lambda: learner().add_module("red", spec()), ["'red'", "an id that is free"]),
    "module that is none": (ConfigError, lambda: learner().add_module("x", "DefaultActorCritic"), [
        "'x'", "an RLModule", "str"]),
    "removing what is not there": (UnknownNameError, lambda: learner().remove_module("bleu"), [
        "'bleu'", "did you mean 'blue'"]),
    "state of fewer modules": (CheckpointError, lambda: learner().set_state(
        learner(module=modules("red")).get_state()), ["learner state", "none of 'blue'", "remove_module"]),
    "state of more modules": (CheckpointError, lambda: learner(module=modules("red")).set_state(
        learner().get_state()), ["learner state", "'blue' too", "add_module"]),
    # states and checkpoints
    "state of other sizes": (CheckpointError, lambda: modules().set_state({"blue": spec(8).build().get_state()}), [
        "in module 'blue'", "has shape"]),
    "state that is none": (CheckpointError, lambda: modules().set_state(np.zeros(2)), ["MultiRLModule.set_state"]),
    "module that is not in a checkpoint": (CheckpointError, lambda folder: RLModule.from_checkpoint(
        saved(folder), component="bleu"), ["league", "'bleu'", "did you mean 'blue'"]),
    "module behind a path that is not there": (CheckpointError, lambda folder: modules()["red"].restore_from_path(
        saved(folder) + "/bleu"), ["league", "'bleu'", "did you mean 'blue'"]),
    "module to restore that is not there": (UnknownNameError, lambda folder: modules().restore_from_path(
        saved(folder), component="bleu"), ["'bleu'", "did you mean 'blue'"]),
    "checkpoint without a module": (CheckpointError, lambda folder: modules().restore_from_path(
        saved(folder, "red")), ["league", "none of 'blue'", "Known: red"]),
    "checkpoint with code": (CheckpointError, lambda folder: RLModule.from_checkpoint(RLModuleSpec(
        observation_space=OBS, action_space=ACT, model_config=FUNCTION).build().save_to_path(folder / "net")), [
        "net", "model_config with a function", "restore_from_path"]),
    # specs
    "spec with code": (ConfigError, lambda: RLModuleSpec(model_config=FUNCTION).to_dict(), [
        "RLModuleSpec.to_dict", "model_config with a function"]),
    "spec of an unknown class": (RegistryError, lambda: RLModuleSpec.from_dict({"module_class": "DefaultActor"}), [
        "RLModuleSpec.from_dict", "did you mean 'DefaultActorCritic'"]),
    "spec of a class to import": (RegistryError, lambda: RLModuleSpec.from_dict({"module_class": "os:path"}), [
        "'os:path'", "runs code", "allow_imports=True"]),
    "spec with an unknown entry": (ConfigError, lambda: MultiRLModuleSpec.from_dict({"rl_module_spec": {}}), [
        "MultiRLModuleSpec.from_dict", "did you mean 'rl_module_specs'"]),
    "modules to load from nowhere": (ConfigError, lambda: MultiRLModuleSpec(modules_to_load=["red"]), [
        "modules_to_load", "load_state_path"]),
    "module to load that is not in the checkpoint": (CheckpointError, lambda folder: MultiRLModuleSpec(
        rl_module_specs={"red": spec(), "blue": spec()}, load_state_path=saved(folder, "red")).build(), [
        "league", "none of 'blue'", "Known: red"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
