"""Specs of single modules."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module import DefaultActorCritic, MultiRLModuleSpec, RLModule, RLModuleSpec

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)


class Plain(RLModule):
    pass


def test_build_hands_everything_on_and_from_module_gets_it_back():
    spec = RLModuleSpec(Plain, BOX, CHOICE, inference_only=True, learner_only=False, model_config={"a": 1})
    module = spec.build()
    assert type(module) is Plain
    assert (module.observation_space, module.action_space) == (BOX, CHOICE)
    assert (module.inference_only, module.learner_only, module.model_config) == (True, False, {"a": 1})
    assert RLModuleSpec.from_module(module) == spec


def test_without_a_class_the_default_is_built():
    assert type(RLModuleSpec(observation_space=BOX, action_space=CHOICE).build()) is DefaultActorCritic
    with pytest.raises(SpaceError):
        RLModuleSpec().build()


@pytest.mark.parametrize("wrong", ["Plain", Plain(), int])
def test_wrong_classes(wrong):
    with pytest.raises(ConfigError, match="a subclass of RLModule"):
        RLModuleSpec(module_class=wrong).build()


def test_as_multi_rl_module_spec():
    spec = RLModuleSpec(Plain, BOX, CHOICE)
    multi = spec.as_multi_rl_module_spec()
    assert isinstance(multi, MultiRLModuleSpec)
    assert multi.rl_module_specs == {"default_policy": spec}
