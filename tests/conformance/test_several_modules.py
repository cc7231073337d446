"""Containers of modules call by call, and several modules updated by one batch, in both libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracle.learners import BOX, CHOICE, SeveralModules, net_spec, nets, ppo_batch
from oracle.libraries import BOTH
from oracle.probes import plain, tried

IDS = ("red", "blue", "green")

# RLlib's names of what both report
METRICS = {
    "total_loss": "total_loss",
    "policy_loss": "policy_loss",
    "vf_loss": "vf_loss",
    "vf_loss_unclipped": "vf_loss_unclipped",
    "entropy": "entropy",
    "mean_kl_loss": "mean_kl",
    "vf_explained_var": "explained_variance",
    "default_optimizer_learning_rate": "lr",
}
RANGES = {
    "lr": (1e-3, 0.1),
    "clip_param": (0.05, 0.5),
    "vf_clip_param": (0.1, 5.0),
    "vf_loss_coeff": (0.0, 2.0),
    "entropy_coeff": (0.0, 0.5),
    "kl_coeff": (0.01, 1.0),
    "kl_target": (0.001, 0.1),
    "grad_clip": (0.05, 2.0),
}


def some_overrides(rng: np.random.Generator) -> dict[str, Any]:
    """Settings of its own for a module, each of them or not."""
    choices = {name: float(rng.uniform(*bounds)) for name, bounds in RANGES.items()}
    choices["grad_clip_by"] = str(rng.choice(["value", "norm", "global_norm"]))
    return {name: value for name, value in choices.items() if rng.random() < 0.5}


@pytest.mark.parametrize("seed", range(12))
def test_weights_and_metrics_after_several_updates(seed):
    """Modules of any number, some untrained, some absent from a batch, with settings of their own."""
    rng = np.random.default_rng(seed)
    ids = IDS[: rng.integers(2, 4)]
    trained = [name for name in ids if rng.random() < 0.7] or [ids[0]]
    rule = [None, trained, lambda module_id, batch: module_id in trained][seed % 3]
    overrides = {name: some_overrides(rng) for name in ids if rng.random() < 0.6}
    sides = [SeveralModules(library, ids, rule, overrides, num_epochs=1 + seed % 2) for library in BOTH]
    for step in range(3):
        present = [name for name in ids if rng.random() < 0.8]
        if rule is not None and not set(present) & set(trained):
            present.append(trained[0])
        batches = {name: ppo_batch(12, 100 * step + index) for index, name in enumerate(present or ids)}
        theirs, ours = (side.update(dict(batches)) for side in sides)
        updated = set(batches) if rule is None else set(batches) & set(trained)
        assert set(ours) - {"__all_modules__"} == updated
        for name in updated if step == 0 and seed % 2 == 0 else ():  # with several epochs means are taken otherwise
            for key, own in METRICS.items():
                assert ours[name][own] == pytest.approx(float(theirs[name][key]), rel=1e-4, abs=1e-5), (name, key)
        other, mine = (side.weights() for side in sides)
        for name in ids:
            for key, value in mine[name].items():
                np.testing.assert_allclose(value, other[name][key], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("rule", "updated"),
    [
        (None, ["blue", "red"]),
        (["blue"], ["blue"]),
        (("red",), ["red"]),
        ({"red", "blue"}, ["blue", "red"]),
        (lambda module_id, batch: module_id != "red", ["blue"]),
    ],
)
def test_which_modules_are_updated(rule, updated):
    for library in BOTH:
        side = SeveralModules(library, policies_to_train=rule)
        assert side.moved({"red": ppo_batch(6, 0), "blue": ppo_batch(9, 1)}) == updated, library
        assert [name for name in ("blue", "red") if side.learner.should_module_be_updated(name, None)] == updated


def test_modules_that_are_added_and_removed():
    for library in BOTH:
        side = SeveralModules(library, policies_to_train=["red", "blue"])
        batches = {name: ppo_batch(6, index) for index, name in enumerate(IDS)}
        added = side.learner.add_module(module_id="green", module_spec=net_spec(library, 5))
        assert set(added.rl_module_specs) == set(side.learner.module.keys()) == set(IDS)
        assert side.moved(batches) == ["blue", "red"]
        removed = side.learner.remove_module("blue", new_should_module_be_updated=["red", "green"])
        assert set(removed.rl_module_specs) == {"red", "green"}
        del batches["blue"]
        assert side.moved(batches) == ["green", "red"]
        settings = {"config_overrides": {"lr": 0.5}, "new_should_module_be_updated": ["late"]}
        side.learner.add_module(module_id="late", module_spec=net_spec(library, 6), **settings)
        before = side.weights()["late"]
        assert side.moved({"late": ppo_batch(6, 3)}) == ["late"]
        steps = [np.abs(before[key] - value).max() for key, value in side.weights()["late"].items()]
        assert max(steps) == pytest.approx(0.5, rel=1e-3)  # Adam's first step is the learning rate
        with pytest.raises(KeyError, match="grey"):
            SeveralModules(library).update({"red": ppo_batch(6, 0), "grey": ppo_batch(6, 0)})


BATCH = {"red": {"obs": torch.ones(2, 4)}, "late": {"obs": torch.zeros(3, 4)}}


def both(act: Any, *names: str) -> Any:
    """What a function of a library and its MultiRLModule returns, if it is the same in both.

    Of a ValueError or KeyError only that it is raised: messages are each library's own.
    """
    found = [tried(lambda library=library: act(library, nets(library, *names))) for library in BOTH]
    theirs, ours = ("refused" if isinstance(own, ValueError | KeyError) else plain(own) for own in found)
    assert theirs == ours
    return ours


def weights(modules: Any) -> Any:
    return {name: module.pi.weight.detach().numpy().round(5) for name, module in sorted(modules.items())}


def as_mapping(library: Any, multi: Any) -> Any:
    return [
        list(multi.keys()),
        [name for name, _ in multi.items()],
        [len(multi.values()), len(multi), "red" in multi, "grey" in multi, multi.get("grey")],
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


def weights_for_another(library: Any, multi: Any) -> Any:
    multi["blue"].set_state(multi["red"].get_state())
    multi.set_state({"green": multi["red"].get_state()})
    return weights(multi)


REFUSED = [
    lambda library, multi: multi["grey"],
    lambda library, multi: multi.remove_module("grey"),
    lambda library, multi: multi.add_module("red", net_spec(library, 3).build()),
]


@pytest.mark.parametrize("act", [as_mapping, adding_and_removing, forwards, weights_for_another, *REFUSED])
def test_a_container(act):
    assert (both(act, "red", "blue", "green") == "refused") is (act in REFUSED)


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
        state, other = multi.get_state(**chosen), nets(library, *multi.keys(), first=50)
        other.set_state({key: value for key, value in state.items() if key in other})
        return sorted(key for key in state if key in multi), weights(other)

    assert both(act, "red", "blue", "green")[0] == ids


@pytest.mark.parametrize("given", [None, True, False])
@pytest.mark.parametrize("specs", [(), (True,), (True, True), (True, False), (False,)])
def test_when_all_are_for_acting_only(given, specs):
    """The flag of a container and of its modules, before and after others are added."""
    outcomes = []
    for library in BOTH:
        own = {f"m{i}": net_spec(library, 0, inference_only=flag) for i, flag in enumerate(specs)}
        whole = library.MultiRLModuleSpec(inference_only=given, rl_module_specs=own)
        multi, seen = whole.build(), [bool(whole.inference_only)]
        seen += [bool(module.inference_only) for module in (multi, *multi.values())]
        for name, flag in (("acting", True), ("learning", False)):
            multi.add_module(name, net_spec(library, 0, inference_only=flag).build())
            whole.add_modules({name: net_spec(library, 0, inference_only=flag)})
            seen += [bool(multi.inference_only), bool(whole.inference_only)]
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


def test_specs_as_dicts():
    """The same entries, but for the catalogs that only RLlib has; RLlib's classes and spaces are pickled."""
    theirs, ours = (net_spec(library, 3) for library in BOTH)
    ours.module_class, names = None, set(theirs.to_dict()) - {"catalog_class"}
    assert set(ours.to_dict()) == names
    for key in ("inference_only", "learner_only", "model_config"):
        assert ours.to_dict()[key] == theirs.to_dict()[key]
    for spec in (ours, theirs):
        again = type(spec).from_dict(spec.to_dict())
        assert (again.observation_space, again.action_space) == (BOX, CHOICE)
