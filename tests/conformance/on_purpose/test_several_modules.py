"""Differences on purpose of learners of several modules, and of their modules."""

from __future__ import annotations

from typing import Any

import torch

from epibatch.core.errors import CheckpointError, UnknownNameError
from learners.several import SeveralModules, net_spec, ppo_batch
from oracle.libraries import RLLIB
from oracle.probes import Raises, probe


def two(rows: int = 8) -> dict[str, Any]:
    return {"red": ppo_batch(rows, 0), "blue": ppo_batch(rows, 1)}


def modules(library: Any, *names: str) -> Any:
    return library.MultiRLModule(rl_module_specs={name: net_spec(library, seed) for seed, name in enumerate(names)})


@probe("module-minibatches", ours={"red": 2, "blue": 12}, theirs={"red": 2, "blue": 2})
def test_epochs_and_minibatches_of_a_module(library: Any) -> Any:
    """Minibatches that each module sees."""
    overrides = {"blue": {"num_epochs": 3, "minibatch_size": 2}}
    results = SeveralModules(library, overrides=overrides, minibatch_size=4, num_epochs=1).update(two())
    if library is not RLLIB:
        return {name: results[name]["num_minibatches"] for name in two()}
    steps, sizes = "num_module_steps_trained", "module_train_batch_size_mean"
    return {name: int(results[name][steps]) // int(results[name][sizes]) for name in two()}


@probe("module-without-loss", ours="none", theirs="nan")
def test_a_module_whose_rows_all_lack_loss(library: Any) -> Any:
    """Its loss among the results."""
    batches = two()
    batches["red"]["loss_mask"][:] = False
    return str(SeveralModules(library).update(batches)["red"].get("total_loss", "none"))


@probe("nothing-to-train", ours=["__all_modules__"], theirs=Raises(UnboundLocalError, "loss_per_module", "update"))
def test_a_batch_with_nothing_to_train(library: Any) -> Any:
    learner = SeveralModules(library, policies_to_train=["red"])
    return list(learner.update({"blue": ppo_batch(6, 0)}))


@probe("untrained-modules", ours=[False, False], theirs=[True, True])
def test_what_there_is_of_a_module_that_is_not_trained(library: Any) -> Any:
    """Whether there is an optimiser, and a result."""
    several = SeveralModules(library, policies_to_train=["red"])
    results = several.update(two())
    state = several.learner.get_state()
    optimizers = state["optimizer" if library is RLLIB else "optimizers"]
    return [any(name.startswith("blue") for name in optimizers), "blue" in results]


@probe("unknown-module-states", ours=Raises(CheckpointError, "states of blue"), theirs="went on")
def test_a_state_of_a_module_that_is_not_there(library: Any) -> Any:
    modules(library, "red").set_state(modules(library, "red", "blue").get_state())
    return "went on"


@probe("unknown-module-states", ours=Raises(UnknownNameError, "did you mean 'blue'"), theirs=[])
def test_components_that_are_not_there(library: Any) -> Any:
    return list(modules(library, "red", "blue").get_state(components="bleu"))


@probe("module-loading", ours=True, theirs=False)
def test_a_spec_with_a_state_to_load(library: Any, tmp_path: Any) -> Any:
    """Whether the module has the weights."""
    saved, spec = net_spec(library, 1).build(), net_spec(library, 2)
    spec.load_state_path = str(saved.save_to_path(str(tmp_path / "net")))
    return torch.equal(spec.build().pi.weight, saved.pi.weight)
