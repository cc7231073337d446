"""MultiRLModule and the specs of modules, call by call in both libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learners.several import BOX, CHOICE, net_class, net_spec
from oracle.libraries import EPIBATCH, RLLIB
from oracle.probes import plain, tried

LIBRARIES = (EPIBATCH, RLLIB)
BATCH = {"red": {"obs": torch.ones(2, 4)}, "late": {"obs": torch.zeros(3, 4)}}


def outcome(call: Any) -> Any:
    """What a call gives, or only that it raises a ValueError or KeyError: messages are each library's own."""
    found = tried(call)
    return "refused" if isinstance(found, ValueError | KeyError) else plain(found)


def both(act: Any, *names: str) -> Any:
    """What a function of a library and its MultiRLModule returns, if it is the same in both."""
    outcomes = []
    for library in LIBRARIES:
        specs = {name: net_spec(library, seed) for seed, name in enumerate(names)}
        multi = library.MultiRLModule(rl_module_specs=specs)
        outcomes.append(outcome(lambda library=library, multi=multi: act(library, multi)))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def as_mapping(library: Any, multi: Any) -> Any:
    return [
        list(multi.keys()),
        [name for name, _ in multi.items()],
        len(multi.values()),
        len(multi),
        "red" in multi,
        "grey" in multi,
        multi.get("grey"),
        multi.get("red") is multi["red"],
        multi.get("grey", multi["blue"]) is multi["blue"],
        multi.foreach_module(lambda name, module, end: name + end, end="!"),
        multi.foreach_module(lambda name, module: module.model_config["seed"], return_dict=True),
    ]


def adding_and_removing(library: Any, multi: Any) -> Any:
    multi.add_module("late", net_spec(library, 7).build())
    multi.remove_module("red")
    multi.add_module("blue", net_spec(library, 8).build(), override=True)
    specs = {name: spec.model_config for name, spec in multi.rl_module_specs.items()}
    again = library.MultiRLModuleSpec.from_module(multi).build()
    return [list(multi.keys()), specs, {name: module.model_config for name, module in again.items()}]


def forwards(library: Any, multi: Any) -> Any:
    multi.add_module("late", net_spec(library, 7).build())
    return [
        {name: columns["action_dist_inputs"].detach().numpy().round(5) for name, columns in forward(BATCH).items()}
        for forward in (multi.forward_inference, multi.forward_exploration, multi.forward_train)
    ]


@pytest.mark.parametrize("act", [as_mapping, adding_and_removing, forwards])
def test_a_container(act):
    assert both(act, "red", "blue") != "refused"


@pytest.mark.parametrize(
    "act",
    [
        lambda library, multi: multi["grey"],
        lambda library, multi: multi.remove_module("grey"),
        lambda library, multi: multi.add_module("red", net_spec(library, 3).build()),
    ],
)
def test_what_both_refuse(act):
    assert both(act, "red") == "refused"


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        ({}, ["blue", "green", "red"]),
        ({"components": "blue"}, ["blue"]),
        ({"components": ["red", "blue"]}, ["blue", "red"]),
        ({"not_components": ["red"]}, ["blue", "green"]),
        ({"components": ["red", "blue"], "not_components": "blue"}, ["red"]),
        ({"inference_only": True}, ["blue", "green", "red"]),
    ],
)
def test_parts_of_a_state(chosen, ids):
    """Taken, and given to modules with other weights."""

    def act(library: Any, multi: Any) -> Any:
        state = multi.get_state(**chosen)
        other = library.MultiRLModule(
            rl_module_specs={name: net_spec(library, 50 + seed) for seed, name in enumerate(multi.keys())}
        )
        other.set_state({key: value for key, value in state.items() if key in other})
        weights = {name: module.pi.weight.detach().numpy().round(5) for name, module in sorted(other.items())}
        return sorted(key for key in state if key in multi), weights

    assert both(act, "red", "blue", "green")[0] == ids


def flags(*modules: Any) -> list[bool]:
    return [bool(module.inference_only) for module in modules]


@pytest.mark.parametrize("given", [None, True, False])
@pytest.mark.parametrize("specs", [(), (True,), (True, True), (True, False), (False,)])
def test_when_all_are_for_acting_only(given, specs):
    """The flag of a container and of its modules, before and after others are added."""
    outcomes = []
    for library in LIBRARIES:

        def spec(inference_only: bool, library: Any = library) -> Any:
            return library.RLModuleSpec(
                module_class=net_class(library),
                observation_space=BOX,
                action_space=CHOICE,
                inference_only=inference_only,
                model_config={"seed": 0},
            )

        whole = library.MultiRLModuleSpec(
            inference_only=given, rl_module_specs={f"m{index}": spec(flag) for index, flag in enumerate(specs)}
        )
        seen = flags(whole)
        multi = whole.build()
        seen += flags(multi, *multi.values())
        for name, flag in (("acting", True), ("learning", False)):
            multi.add_module(name, spec(flag).build())
            whole.add_modules({name: spec(flag)})
            seen += flags(multi, whole)
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


def test_specs_as_dicts():
    """The same entries, but for the catalogs that only RLlib has; RLlib's classes and spaces are pickled."""
    ours, theirs = (net_spec(library, 3) for library in LIBRARIES)
    ours.module_class, names = None, set(theirs.to_dict()) - {"catalog_class"}
    assert set(ours.to_dict()) == names
    plainly = {"inference_only", "learner_only", "model_config"}
    assert {key: ours.to_dict()[key] for key in plainly} == {key: theirs.to_dict()[key] for key in plainly}
    for spec in (ours, theirs):
        again = type(spec).from_dict(spec.to_dict())
        assert (again.observation_space, again.action_space) == (BOX, CHOICE)


def test_one_modules_weights_for_another():
    def act(library: Any, multi: Any) -> Any:
        multi["blue"].set_state(multi["red"].get_state())
        multi.set_state({"green": multi["red"].get_state()})
        first = multi["red"].pi.weight.detach()
        return multi.foreach_module(lambda name, module: np.array_equal(module.pi.weight.detach(), first))

    assert both(act, "red", "blue", "green") == [True, True, True]
