"""Mistakes with several modules: in a learner, among modules, in their checkpoints and specs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.errors import CheckpointError, ConfigError, NonFiniteLossError
from epibatch.core.rl_module import MultiRLModule, RLModuleSpec
from epibatch.learner import Learner, LearnerSettings, MultiAgentSettings, PPOLoss

OBS, ACT = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)


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


# fmt: off
MISTAKES: dict[str, Any] = {
    # settings
    "overrides without module ids": (ConfigError, lambda: learner(overrides_per_module={"lr": 0.1}), [
        "overrides_per_module", "{'lr': 0.1}", '{"main": {"lr": 1e-4}}']),
    "loss that is none": (ConfigError, lambda: learner(overrides_per_module={"red": {"loss": 3}}), [
        "overrides of module 'red'", "a Loss, a class of one, or a function", "3"]),
    # updates
    "loss that is no number": (NonFiniteLossError, lambda: learner(nowhere("red")).update(episodes=[1]), [
        "module 'red'", "total_loss=nan", "the step was not applied"]),
    # coming and going
    "module that is none": (ConfigError, lambda: learner().add_module("x", "DefaultActorCritic"), [
        "'x'", "an RLModule", "str"]),
    # states and checkpoints
    "state that is none": (CheckpointError, lambda: modules().set_state(np.zeros(2)), ["MultiRLModule.set_state"]),
}
# fmt: on


@pytest.mark.parametrize(("error", "mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(error, mistake, words, named):
    named(error, mistake, words)
