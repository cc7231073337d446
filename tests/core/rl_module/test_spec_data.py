"""Specs as JSON and back."""

from __future__ import annotations

import json
from collections import OrderedDict

import gymnasium as gym
import pytest
from torch import nn

from epibatch.core.errors import ConfigError, RegistryError, SpaceError
from epibatch.core.rl_module import (
    DefaultActorCritic,
    DefaultModelConfig,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
)

SPACE = gym.spaces.Dict({"at": gym.spaces.Box(-1, 1, (4,)), "goal": gym.spaces.Discrete(3, start=2)})
CHOICE = gym.spaces.MultiDiscrete([2, 3])


class OddSpace(gym.spaces.Box):
    pass


def again(spec, **options):
    return type(spec).from_dict(json.loads(json.dumps(spec.to_dict())), **options)


@pytest.mark.parametrize(
    "spec",
    [
        RLModuleSpec(),
        RLModuleSpec(DefaultActorCritic, SPACE, CHOICE, inference_only=True, model_config={"fcnet_hiddens": [8, 8]}),
        RLModuleSpec(None, SPACE, None, learner_only=True, load_state_path="folder/main"),
        MultiRLModuleSpec(),
        MultiRLModuleSpec(
            observation_space=SPACE,
            inference_only=True,
            model_config={"shared": {"size": 3}},
            rl_module_specs={"a": RLModuleSpec(None, SPACE, CHOICE), "b/c": RLModuleSpec(model_config={"x": None})},
            load_state_path="folder",
            modules_to_load=["a"],
        ),
    ],
)
def test_there_and_back(spec):
    assert again(spec) == spec


def test_options_become_dicts():
    config = DefaultModelConfig(fcnet_hiddens=[3], conv_filters=[[4, 3, 2]])
    found = again(RLModuleSpec(None, SPACE, CHOICE, model_config=config))
    assert DefaultModelConfig.from_dict(found.model_config) == config


def test_classes_by_import_path():
    spec = RLModuleSpec(module_class=RLModule)
    assert spec.to_dict()["module_class"] == "epibatch.core.rl_module.rl_module:RLModule"
    with pytest.raises(RegistryError, match=r"rl_module:RLModule'.*runs code[\s\S]*allow_imports=True"):
        again(spec)
    assert again(spec, allow_imports=True) == spec


def several(**spec):
    return MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(**spec)})


def local():
    class Local(RLModule):
        pass

    return Local


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (several(module_class=local()), ConfigError, r"'red'[\s\S]*Local, which is defined in a function"),
        (several(model_config={"init": nn.init.zeros_}), ConfigError, r"'red'[\s\S]*model_config with a function"),
        (several(model_config={1: 2}), ConfigError, r"'red'[\s\S]*keys that are not strings"),
        (several(action_space=OddSpace(0, 1)), SpaceError, r"'red'[\s\S]*action_space[\s\S]*OddSpace"),
        (
            MultiRLModuleSpec(model_config=object()),
            ConfigError,
            "model_config with a object",
        ),
    ],
)
def test_code_is_named(spec, error, message):
    with pytest.raises(error, match=message):
        spec.to_dict()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (3, ConfigError, "expected: a dict"),
        ({"model_cfg": {}}, ConfigError, "did you mean 'model_config'"),
        ({"module_class": "DefaultActorCritc"}, RegistryError, "did you mean 'DefaultActorCritic'"),
        ({"module_class": 3}, RegistryError, "found:    3"),
        ({"observation_space": {"type": "Bx"}}, SpaceError, "did you mean 'Box'"),
    ],
)
def test_data_that_is_no_spec(data, error, message):
    with pytest.raises(error, match=message):
        RLModuleSpec.from_dict(data)
    with pytest.raises(error, match=rf"^in rl_module_specs\['red'\]:[\s\S]*{message}"):
        MultiRLModuleSpec.from_dict({"rl_module_specs": {"red": data}})


def test_classes_that_cannot_be_found():
    with pytest.raises(RegistryError, match="module class 'no_such_module:Net'"):
        RLModuleSpec.from_dict({"module_class": "no_such_module:Net"}, allow_imports=True)


def test_tuples_become_lists():
    spec = RLModuleSpec(model_config=OrderedDict(sizes=(1, 2)))
    assert again(spec).model_config == {"sizes": [1, 2]}
    assert again(MultiRLModuleSpec()).multi_rl_module_class is MultiRLModule
