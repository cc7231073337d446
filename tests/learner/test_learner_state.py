"""States of learners whose modules come and go."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import CheckpointError

AT = {"red": (1.0, -1.0), "blue": (0.5, 2.0)}
OWN = {"overrides_per_module": {"blue": {"lr": 0.5, "num_epochs": 3}}}


def batches(points, *names):
    return {name: points.batch(name, 6 + len(name)) for name in names}


def learner(points, *names, **options):
    at = {name: AT.get(name, (9.0, 9.0)) for name in names}
    return points.learner(points.modules(**at), batches(points, *names), **options)


@pytest.mark.parametrize("rule", [None, ["red"], lambda module_id, batch: module_id == "blue"])
def test_a_restored_learner_goes_on_bit_for_bit(points, tmp_path, rule):
    options = {"multi_agent": {**OWN, "policies_to_train": rule}}
    source, other = learner(points, *AT, **options), learner(points, *AT, seed=99, **options)
    for _ in range(2):
        source.update(episodes=[1])
    other.update(episodes=[1])
    other.set_state(load_state(save_state(tmp_path / "state", source.get_state())))
    for _ in range(2):
        mine, theirs = (each.update(episodes=[1]) for each in (source, other))
        assert {name: own for name, own in mine.items() if name in AT} == {
            name: own for name, own in theirs.items() if name in AT
        }
    np.testing.assert_equal(other.get_state(), source.get_state())


def test_states_from_before_and_after_a_module_was_added(points):
    source = learner(points, "red")
    before = source.get_state()
    source.add_module("blue", points.spec(*AT["blue"]))
    source._learner_connector = lambda **kwargs: batches(points, *AT)
    source.update(episodes=[1])
    after = source.get_state()

    target = learner(points, "red")
    with pytest.raises(CheckpointError, match=r"'blue' too[\s\S]*add 'blue' first with add_module"):
        target.set_state(after)
    target.add_module("blue", points.spec(0.0, 0.0))
    target.set_state(after)
    np.testing.assert_equal(target.get_state(), after)

    with pytest.raises(CheckpointError, match=r"none of 'blue'[\s\S]*remove 'blue' first with remove_module"):
        target.set_state(before)
    np.testing.assert_equal(target.get_state(), after)
    target.remove_module("blue")
    target.set_state(before)
    np.testing.assert_equal(target.get_state(), before)
    assert points.where(target.module) == {"red": [1.0, -1.0]}


def test_a_state_without_an_optimiser_starts_that_one_anew(points):
    """A module that was not trained when the state was taken has nothing from later updates in its optimiser."""
    source = learner(points, *AT, multi_agent={"policies_to_train": ["red"]})
    source.update(episodes=[1])
    state = source.get_state()
    source.policies_to_train = None
    source.update(episodes=[1])
    assert set(source.get_state()["optimizers"]) == {"red", "blue"}
    source.set_state(state)
    source.update(episodes=[1])
    fresh = learner(points, *AT, multi_agent={"policies_to_train": ["red"]})
    fresh.update(episodes=[1])
    fresh.policies_to_train = None
    fresh.update(episodes=[1])
    np.testing.assert_equal(source.get_state(), fresh.get_state())


def damage(state, part, module_id, value):
    return {**state, part: {**state[part], module_id: value}}


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("module", {"at": np.zeros(3)}, r"in module 'blue':[\s\S]*at has shape \(3,\), not \(2,\)"),
        ("module", {"to": np.zeros(2)}, "at is missing"),
        ("optimizers", {"at": {"exp_avg": np.zeros(5)}}, r"in module 'blue':[\s\S]*optimiser state of 'at'"),
        ("coefficients", {"kl": 0.5}, r"coefficients of 'blue'\n.*keys: none"),
        ("coefficients", 5, "coefficients"),
        ("generators", np.zeros(3, np.uint8), "the order of rows of 'blue'"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_taken_over(points, part, value, message):
    source, target = learner(points, *AT), learner(points, *AT)
    source.update(episodes=[1])
    before = target.get_state()
    with pytest.raises(CheckpointError, match=message):
        target.set_state(damage(source.get_state(), part, "blue", value))
    np.testing.assert_equal(target.get_state(), before)
    target.update(episodes=[1])
    source_state = source.get_state()
    for module_id in AT:
        np.testing.assert_equal(target.get_state()["module"][module_id], source_state["module"][module_id])


@pytest.mark.parametrize("part", ["module", "coefficients", "generators", "optimizers"])
def test_parts_that_are_no_dicts(points, part):
    source = learner(points, *AT)
    with pytest.raises(CheckpointError, match=part):
        source.set_state({**source.get_state(), part: [1]})
