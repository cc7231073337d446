"""Modules as data: specs as JSON and back, and modules in folders."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.core import save_state
from epibatch.core.errors import CheckpointError, ConfigError, RegistryError, SpaceError, UnknownNameError
from epibatch.core.rl_module import (
    DefaultActorCritic,
    DefaultLSTMActorCritic,
    DefaultModelConfig,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
)

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
SIGHT = gym.spaces.Dict(near=gym.spaces.Box(0, 9, (2, 3)), kind=gym.spaces.Discrete(5, start=1))
MOVES = gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (1,))])
PACKAGE = """
from torch import nn
from epibatch.core.rl_module import MultiRLModule, TorchRLModule


class Net(TorchRLModule):
    def setup(self):
        self.layer = nn.Linear(self.model_config["size"], 2)


class League(MultiRLModule):
    pass
"""


def default(hidden=8, **options):
    return RLModuleSpec(observation_space=BOX, action_space=CHOICE, model_config={"fcnet_hiddens": [hidden], **options})


def several():
    """Two alike, and one with spaces and a size of its own."""
    other = RLModuleSpec(observation_space=SIGHT, action_space=MOVES, model_config={"fcnet_hiddens": [16]})
    return MultiRLModule(rl_module_specs={"main": default(), "past": default(), "wide/left": other})


def same(one, other):
    np.testing.assert_equal(one.get_state(), other.get_state())


def first_weight(module):
    return next(iter(module.get_state().values()))


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "league_modules.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("league_modules")
    del sys.modules["league_modules"]


def test_all_modules_of_a_checkpoint(tmp_path):
    multi = several()
    path = multi.save_to_path(tmp_path / "all")
    again = MultiRLModule.from_checkpoint(path)
    assert list(again) == list(multi) == ["main", "past", "wide/left"]
    assert type(again["main"]) is DefaultActorCritic and again["main"].observation_space == BOX
    assert (again["wide/left"].observation_space, again["wide/left"].action_space) == (SIGHT, MOVES)
    same(again, multi)
    batch = {name: {"obs": torch.ones(3, 4)} for name in ("main", "past")}
    batch["wide/left"] = {"obs": {"near": torch.ones(2, 2, 3), "kind": torch.tensor([1, 5])}}
    torch.testing.assert_close(again.forward_inference(batch), multi.forward_inference(batch))
    other = several()
    other.restore_from_path(path)
    same(other, multi)
    assert {file.name for file in (tmp_path / "all").iterdir()} == {"state.json", "arrays.npz", "COMPLETE"}


@pytest.mark.parametrize("module_id", ["main", "wide/left"])
def test_one_module_out_of_several(tmp_path, module_id):
    multi = several()
    path = multi.save_to_path(tmp_path / "all")
    for found in (
        RLModule.from_checkpoint(path, component=module_id),
        DefaultActorCritic.from_checkpoint(f"{path}/{module_id}"),
    ):
        same(found, multi[module_id])
    into = several()
    into.restore_from_path(path, component=module_id)
    same(into[module_id], multi[module_id])
    others = [key for key in multi if key != module_id]
    assert not any(np.array_equal(first_weight(into[key]), first_weight(multi[key])) for key in others)
    league = several()  # self-play: the frozen one gets what the trained one was
    league["past"].restore_from_path(path, component="main")
    league["main"].restore_from_path(multi["past"].save_to_path(tmp_path / "alone"))
    same(league["past"], multi["main"])
    same(league["main"], multi["past"])


def test_specs_load_states_when_they_build(tmp_path):
    multi = several()
    path = multi.save_to_path(tmp_path / "all")
    spec = default()
    spec.load_state_path = tmp_path / "all" / "main"
    same(spec.build(), multi["main"])
    league = MultiRLModuleSpec(rl_module_specs={"main": default(), "past": spec}).build()
    same(league["past"], multi["main"])
    specs = {name: RLModuleSpec.from_module(module) for name, module in multi.items()}
    same(MultiRLModuleSpec(rl_module_specs=specs, load_state_path=path).build(), multi)
    some = MultiRLModuleSpec(
        rl_module_specs={**specs, "new": default(32)}, load_state_path=path, modules_to_load={"past"}
    ).build()
    same(some["past"], multi["past"])
    assert not np.array_equal(first_weight(some["main"]), first_weight(multi["main"]))
    again = MultiRLModuleSpec.from_dict(
        json.loads(json.dumps(MultiRLModuleSpec(rl_module_specs={"a": spec}, load_state_path=path).to_dict()))
    )
    assert again.load_state_path == path and again["a"].load_state_path == str(spec.load_state_path)


def test_classes_of_ones_own_are_imported_with_leave_only(tmp_path, package):
    spec = RLModuleSpec(package.Net, BOX, CHOICE, model_config={"size": 3})
    multi = package.League(rl_module_specs={"main": spec, "past": default()})
    path = multi.save_to_path(tmp_path / "all")
    with pytest.raises(CheckpointError, match=r"'league_modules:Net'.*runs code[\s\S]*allow_imports=True"):
        MultiRLModule.from_checkpoint(path)
    same(RLModule.from_checkpoint(path, component="past"), multi["past"])
    again = MultiRLModule.from_checkpoint(path, allow_imports=True)
    assert type(again) is package.League and type(again["main"]) is package.Net
    same(again, multi)

    class Local(package.Net):
        pass

    local = Local(model_config={"size": 3})
    with pytest.raises(CheckpointError, match=r"Local, which is defined in a function[\s\S]*restore_from_path"):
        RLModule.from_checkpoint(local.save_to_path(tmp_path / "net"))
    multi["main"].restore_from_path(tmp_path / "net")
    same(multi["main"], local)


def test_states_without_a_description(tmp_path):
    """What `save_state(path, module.get_state())` wrote; and what holds a module's state further down."""
    multi, other = several(), several()
    other.restore_from_path(save_state(tmp_path / "bare", multi.get_state()))
    same(other, multi)
    nested = save_state(tmp_path / "run", {"state": {"learner": {"module": multi.get_state()}}, "n": 3})
    into = several()
    into["past"].restore_from_path(nested, component="state/learner/module/main")
    same(into["past"], multi["main"])


def loaded(names=("main", "new"), **options):
    """Build a spec of several modules that loads states."""
    return MultiRLModuleSpec(rl_module_specs={name: default() for name in names}, **options).build()


UNREADABLE = [
    (lambda multi, path: multi.restore_from_path(path, component="mian"), UnknownNameError, "did you mean 'main'"),
    (lambda multi, path: multi["main"].restore_from_path(path, component="mian"), CheckpointError, "mean 'main'"),
    (lambda multi, path: multi["main"].restore_from_path(f"{path}/mian"), CheckpointError, "did you mean 'main'"),
    (lambda multi, path: multi["main"].restore_from_path(path, component="wide/left"), CheckpointError, "shape|is "),
    (lambda multi, path: multi["main"].restore_from_path(path), CheckpointError, "main is unknown"),
    (lambda multi, path: multi.restore_from_path(f"{path}none"), CheckpointError, "no such folder"),
    (lambda multi, path: DefaultLSTMActorCritic.from_checkpoint(f"{path}/main"), CheckpointError, "DefaultActorCritic"),
    (lambda multi, path: MultiRLModule.from_checkpoint(f"{path}/main"), CheckpointError, "a MultiRLModule"),
    (lambda multi, path: RLModule.from_checkpoint(path, component="mian"), CheckpointError, "did you mean 'main'"),
    (lambda multi, path: RLModule.from_checkpoint(f"{path}/../bare"), CheckpointError, "without a description"),
    (lambda multi, path: multi["past"].restore_from_path(f"{path}/../bare/n"), CheckpointError, r"a module[\s\S]*int"),
    (lambda multi, path: multi["past"].restore_from_path(f"{path}/../bare/moin"), CheckpointError, "mean 'main'"),
    (lambda multi, path: loaded(load_state_path=path), CheckpointError, r"none of 'new'[\s\S]*Known: main, past, wide"),
    (lambda multi, path: loaded(["main"], load_state_path=path), CheckpointError, r"states of past, wide/left"),
    (lambda multi, path: loaded(load_state_path=path, modules_to_load=["mai"]), UnknownNameError, "mean 'main'"),
    (lambda multi, path: loaded(modules_to_load=["main"]), ConfigError, "load_state_path"),
    (
        lambda multi, path: RLModuleSpec(None, BOX, CHOICE, load_state_path=f"{path}none").build(),
        CheckpointError,
        "no such",
    ),
]


@pytest.mark.parametrize(("load", "error", "message"), UNREADABLE)
def test_what_cannot_be_read_is_named_and_changes_nothing(tmp_path, load, error, message):
    multi, path = several(), several().save_to_path(tmp_path / "all")
    save_state(tmp_path / "bare", {**multi.get_state(), "n": 3})
    before = multi.get_state()
    with pytest.raises(error, match=message):
        load(multi, path)
    np.testing.assert_equal(multi.get_state(), before)


PLACE = gym.spaces.Dict({"at": gym.spaces.Box(-1, 1, (4,)), "goal": gym.spaces.Discrete(3, start=2)})
PAIRS = gym.spaces.MultiDiscrete([2, 3])


class OddSpace(gym.spaces.Box):
    pass


def again(spec, **options):
    return type(spec).from_dict(json.loads(json.dumps(spec.to_dict())), **options)


@pytest.mark.parametrize(
    "spec",
    [
        RLModuleSpec(),
        RLModuleSpec(DefaultActorCritic, PLACE, PAIRS, inference_only=True, model_config={"fcnet_hiddens": [8, 8]}),
        RLModuleSpec(None, PLACE, None, learner_only=True, load_state_path="folder/main"),
        MultiRLModuleSpec(),
        MultiRLModuleSpec(
            observation_space=PLACE,
            inference_only=True,
            model_config={"shared": {"size": 3}},
            rl_module_specs={"a": RLModuleSpec(None, PLACE, PAIRS), "b/c": RLModuleSpec(model_config={"x": None})},
            load_state_path="folder",
            modules_to_load=["a"],
        ),
    ],
)
def test_there_and_back(spec):
    assert again(spec) == spec
    config = DefaultModelConfig(fcnet_hiddens=[3], conv_filters=[[4, 3, 2]])
    found = again(RLModuleSpec(None, PLACE, PAIRS, model_config=config))
    assert DefaultModelConfig.from_dict(found.model_config) == config
    assert again(RLModuleSpec(model_config=OrderedDict(sizes=(1, 2)))).model_config == {"sizes": [1, 2]}


def red(**spec):
    return MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(**spec)})


def local():
    class Local(RLModule):
        pass

    return Local


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (red(module_class=local()), ConfigError, r"'red'[\s\S]*Local, which is defined in a function"),
        (red(model_config={"init": nn.init.zeros_}), ConfigError, r"'red'[\s\S]*model_config with a function"),
        (red(action_space=OddSpace(0, 1)), SpaceError, r"'red'[\s\S]*action_space[\s\S]*OddSpace"),
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
        (
            {"module_class": "epibatch.core.rl_module.rl_module:RLModule"},
            RegistryError,
            r"runs code(.|\n)*allow_imports",
        ),
        ({"observation_space": {"type": "Bx"}}, SpaceError, "did you mean 'Box'"),
    ],
)
def test_data_that_is_no_spec(data, error, message):
    with pytest.raises(error, match=message):
        RLModuleSpec.from_dict(data)
    with pytest.raises(error, match=rf"^in rl_module_specs\['red'\]:[\s\S]*{message}"):
        MultiRLModuleSpec.from_dict({"rl_module_specs": {"red": data}})
