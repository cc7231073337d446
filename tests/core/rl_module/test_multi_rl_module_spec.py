"""Specs of several modules."""

from __future__ import annotations

import gymnasium as gym
import pytest

from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)


class Plain(RLModule):
    pass


class Shared(MultiRLModule):
    pass


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
    assert spec.as_multi_rl_module_spec() is spec


def test_adding_and_removing_specs():
    spec = MultiRLModuleSpec(rl_module_specs={"a": RLModuleSpec(Plain)})
    other = RLModuleSpec(Plain, model_config={"n": 1})
    spec.add_modules({"a": other, "b": other}, override=False)
    assert spec["a"] != other
    spec.add_modules({"a": other})
    assert spec["a"] is other
    spec.remove_modules("a")
    assert "a" not in spec
    spec.remove_modules(["b"])
    assert len(spec.build()) == 0


def test_wrong_uses():
    with pytest.raises(ConfigError, match="an RLModuleSpec"):
        MultiRLModuleSpec(rl_module_specs={"a": Plain})
    spec = MultiRLModuleSpec(rl_module_specs={"left": RLModuleSpec(Plain)})
    for call in (lambda: spec["lef"], lambda: spec.remove_modules("lef"), lambda: spec.build("lef")):
        with pytest.raises(UnknownNameError, match="did you mean 'left'"):
            call()
