"""Several modules: each is updated as if it were alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import BatchLayoutError, ConfigError, NonFiniteLossError, UnknownNameError
from epibatch.core.rl_module import MultiRLModule, RLModule
from epibatch.learner import PPOLoss


def slow_adam(at, batches, lr):
    """Adam (Kingma and Ba 2015, algorithm 1) on mean squared distances, entry by entry."""
    mean, square = np.zeros(2), np.zeros(2)
    at = np.array(at)
    for step, rows in enumerate(batches, 1):
        gradient = 2 * (at - rows.mean(0))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        at = at - lr * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return at


def minibatches(rows, size, epochs):
    return [rows[start : start + size] for _ in range(epochs) for start in range(0, len(rows), size)]


def test_each_module_is_stepped_with_its_own_settings(points):
    """Against Adam by hand: learning rate, minibatch size and number of epochs of each module."""
    batches = {"red": points.batch("red", 10), "blue": points.batch("blue", 7, seed=1)}
    module = points.modules(red=(1.0, -1.0), blue=(0.5, 2.0))
    own = {"blue": {"lr": 0.02, "minibatch_size": 3, "num_epochs": 3}}
    learner = points.learner(module, batches, multi_agent={"overrides_per_module": own}, shuffle=None)
    results = learner.update(episodes=[1])
    red = slow_adam((1.0, -1.0), minibatches(batches["red"]["x"].numpy(), 4, 2), 0.1)
    blue = slow_adam((0.5, 2.0), minibatches(batches["blue"]["x"].numpy(), 3, 3), 0.02)
    np.testing.assert_allclose(points.where(module)["red"], red, rtol=1e-9)
    np.testing.assert_allclose(points.where(module)["blue"], blue, rtol=1e-9)
    counts = {
        name: (own["num_rows"], own["num_minibatches"], own["lr"]) for name, own in results.items() if "lr" in own
    }
    assert counts == {"red": (10, 6, 0.1), "blue": (7, 9, 0.02)}
    assert results["__all_modules__"]["num_gradient_steps"] == 15
    assert results["__all_modules__"]["num_rows"] == 17


def test_the_order_of_rows_depends_on_seed_and_module_alone(points):
    def order(seed, module_id):
        module = points.modules(**{module_id: (0.0, 0.0)})
        loss = points.Distances()
        batch = points.batch(module_id, 20)
        points.learner(module, {module_id: batch}, loss, seed=seed, minibatch_size=None, num_epochs=1).update(
            episodes=[1]
        )
        return [int(row) for row in loss.of(module_id)[0]]

    assert order(7, "red") == order(7, "red")
    assert len({tuple(order(seed, name)) for seed in (7, 8) for name in ("red", "blue", "default_policy")}) == 6
    assert order(None, "red") != order(None, "red")


AT = {"red": (1.0, -1.0), "blue": (0.5, 2.0)}


class Fixed(RLModule):
    framework = "torch"


def two(points, rows=(8, 8)):
    return {name: points.batch(name, count) for name, count in zip(AT, rows)}


def test_the_pipeline_is_told_which_modules_are_trained(points):
    calls = []

    def connector(**kwargs):
        calls.append(kwargs["shared_data"])
        return {"red": points.batch("red", 4)}

    learner = points.learner(points.modules(**AT), {})
    learner._learner_connector = connector
    for rule in (None, ["red"], lambda module_id, batch: True):
        learner.policies_to_train = rule
        learner.update(episodes=[1])
    assert calls == [{}, {"policies_to_train": frozenset({"red"})}, {}]


def test_nothing_to_train_in_a_sample(points):
    module = points.modules(**AT)
    learner = points.learner(module, {"blue": points.batch("blue", 4)}, multi_agent={"policies_to_train": ["red"]})
    assert set(learner.update(episodes=[1])) == {"__all_modules__"}
    learner._learner_connector = lambda **kwargs: {}
    results = learner.update(episodes=[1])["__all_modules__"]
    assert (results["num_updates"], results["num_gradient_steps"], results["num_rows"]) == (2, 0, 0)
    assert points.where(module) == {name: list(at) for name, at in AT.items()}


def test_a_function_sees_the_whole_batch(points):
    seen = []

    def rule(module_id, batch):
        seen.append((module_id, {name: len(columns["x"]) for name, columns in batch.items()}))
        return len(batch[module_id]["x"]) >= 5

    learner = points.learner(points.modules(**AT), two(points, rows=(8, 4)), multi_agent={"policies_to_train": rule})
    assert set(learner.update(episodes=[1])) == {"red", "__all_modules__"}
    assert points.where(learner.module)["blue"] == [0.5, 2.0] and learner.module["blue"].at.grad is None
    assert set(learner.get_state()["optimizers"]) == {"red"}
    with pytest.raises(UnknownNameError, match="did you mean 'blue'"):
        learner.policies_to_train = ["blu"]
    assert learner.policies_to_train is rule
    assert seen == [("red", {"red": 8, "blue": 4}), ("blue", {"red": 8, "blue": 4})]


@pytest.mark.parametrize(
    "without",
    [
        {},
        {"x": torch.zeros((0, 2))},
        {"x": torch.zeros((3, 2)), "loss_mask": torch.zeros(3, dtype=torch.bool)},
        {"x": torch.zeros((2, 3, 2)), "seq_lens": torch.ones(2), "loss_mask": torch.zeros((2, 3), dtype=torch.bool)},
    ],
)
def test_a_module_without_rows_to_learn_from(points, without):
    module = points.modules(**AT)
    learner = points.learner(module, {"red": without, "blue": points.batch("blue", 4)})
    before = learner.get_state()
    results = learner.update(episodes=[1])
    assert results["red"] == {"num_rows": 0, "num_minibatches": 0}
    assert results["blue"]["num_rows"] == results["__all_modules__"]["num_rows"] == 4
    after = learner.get_state()
    for part in ("module", "optimizers", "generators"):
        np.testing.assert_equal(after[part]["red"], before[part]["red"])
    alone = points.learner(points.modules(red=AT["red"]), {"red": without})
    with pytest.raises(BatchLayoutError, match=r"module 'red'[\s\S]*at least one row to learn from"):
        alone.update(episodes=[1])


def test_losses_of_their_own_and_their_settings(points):
    def backwards(batch, outputs, distribution):
        return -outputs["at"].sum(), {}

    module = points.modules(**AT)
    own = {"blue": {"loss": backwards, "lr": 0.25, "num_epochs": 1, "minibatch_size": None}}
    learner = points.learner(module, two(points), multi_agent={"overrides_per_module": own})
    results = learner.update(episodes=[1])
    np.testing.assert_allclose(points.where(module)["blue"], [0.75, 2.25])
    assert "rows" in results["red"] and "rows" not in results["blue"]
    assert learner.settings_of("blue").lr == 0.25 and learner.settings_of("red") == learner.settings
    with pytest.raises(UnknownNameError, match="did you mean 'blue'"):
        learner.settings_of("blu")
    with pytest.raises(UnknownNameError, match="did you mean 'blue'"):
        points.learner(points.modules(**AT), {}, multi_agent={"overrides_per_module": {"bleu": {"lr": 1.0}}})
    own = {"blue": {"kl_coeff": 0.5, "kl_target": 1.0}}
    learner = points.learner(points.modules(**AT), {}, PPOLoss(), multi_agent={"overrides_per_module": own})
    assert learner.get_state()["coefficients"] == {"red": {"kl_coeff": 0.2}, "blue": {"kl_coeff": 0.5}}


@pytest.mark.parametrize("first", ["red", "blue"])
def test_a_loss_that_is_not_finite_leaves_the_other_modules_alone(points, first):
    bad = points.batch("red", 8)
    bad["x"][5] = float("nan")
    good = points.batch("blue", 8)
    batches = {"red": bad, "blue": good} if first == "red" else {"blue": good, "red": bad}
    module, alone = points.modules(**AT), points.modules(blue=AT["blue"])
    learner = points.learner(module, batches, shuffle=None)
    with pytest.raises(NonFiniteLossError, match="module 'red'") as caught:
        learner.update(episodes=[1])
    assert "blue" not in str(caught.value)
    points.learner(alone, {"blue": good}, shuffle=None).update(episodes=[1])
    assert points.where(module)["blue"] == points.where(alone)["blue"]
    assert np.isfinite(points.where(module)["red"]).all()
    assert learner.get_state()["num_gradient_steps"] == 4 + 1  # red's first minibatch was good
    good["x"][:] = float("inf")
    with pytest.raises(NonFiniteLossError, match=r"module '\w+'[\s\S]*module '\w+'"):
        learner.update(episodes=[1])


def test_other_errors_name_the_module(points):
    batches = {"red": points.batch("red", 4), "blue": {"y": torch.zeros(3)}}
    with pytest.raises(KeyError) as caught:
        points.learner(points.modules(**AT), batches).update(episodes=[1])
    assert caught.value.args == ("x",)
    assert "no column 'x' at this place. Its columns: y." in str(caught.value)
    assert "in the update of module 'blue'" in caught.value.__notes__


# ------------------------------------------------------------------------------------ add and remove


def test_modules_that_are_added(points):
    """A built one that is left untrained, one for acting only, and one that a list leaves out."""
    module = points.modules(**AT)
    learner = points.learner(module, {**two(points), "past": points.batch("past", 4)})
    past = points.spec(*AT["red"]).build()
    learner.add_module("past", past, new_should_module_be_updated=["red", "blue"])
    assert module["past"] is past
    assert set(learner.update(episodes=[1])) == {"red", "blue", "__all_modules__"}
    module.set_state({"past": module["red"].get_state()})
    assert points.where(module)["past"] == points.where(module)["red"] != list(AT["red"])
    spec = points.spec(3.0, 3.0)
    spec.inference_only = True
    added = learner.add_module("green", spec, config_overrides={"lr": 0.5})
    assert list(added.rl_module_specs) == list(module) == ["red", "blue", "past", "green"]
    assert not module["green"].inference_only and spec.inference_only and learner.settings_of("green").lr == 0.5
    assert not learner.should_module_be_updated("green")
    learner.add_module("white", points.spec(3.0, 3.0), new_should_module_be_updated=["white"])
    assert learner.policies_to_train == ["white"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"module_id": "red"}, ConfigError, "an id that is free"),
        ({"module_spec": 3}, ConfigError, "an RLModule"),
        ({"config_overrides": {"lrr": 1.0}}, ConfigError, r"module 'green'[\s\S]*did you mean 'lr'"),
        ({"new_should_module_be_updated": ["gren"]}, UnknownNameError, "did you mean 'green'"),
        ({"new_should_module_be_updated": "green"}, ConfigError, r"\['green'\]"),
    ],
)
def test_what_cannot_be_added_changes_nothing(points, options, error, message):
    module = points.modules(**AT)
    learner = points.learner(module, {})
    before = learner.get_state()
    with pytest.raises(error, match=message):
        learner.add_module(**{"module_id": "green", "module_spec": points.spec(0.0, 0.0), **options})
    np.testing.assert_equal(learner.get_state(), before)
    assert learner.policies_to_train is None
    with pytest.raises(UnknownNameError, match="'blue'"):
        learner.remove_module("blue", new_should_module_be_updated=["blue"])
    learner.add_module("green", points.spec(0.0, 0.0))


def test_removing_a_module(points):
    module = points.modules(**AT)
    own = {"overrides_per_module": {"blue": {"lr": 0.5}}, "policies_to_train": ["red", "blue"]}
    learner = points.learner(module, two(points), multi_agent=own)
    learner.update(episodes=[1])
    spec = learner.remove_module("blue")
    assert list(spec.rl_module_specs) == list(module) == ["red"]
    assert learner.policies_to_train == ["red"]
    with pytest.raises(UnknownNameError, match="'blue'"):
        learner.update(episodes=[1])
    with pytest.raises(UnknownNameError, match="'blue'"):
        learner.remove_module("blue")
    learner.add_module("blue", points.spec(*AT["blue"]), new_should_module_be_updated=["red", "blue"])
    assert learner.settings_of("blue").lr == 0.1  # the overrides went with the module
    assert learner.update(episodes=[1])["__all_modules__"]["num_gradient_steps"] == 16


def test_a_module_that_was_replaced_behind_the_learners_back_is_trained(points):
    module = points.modules(**AT)
    learner = points.learner(module, two(points))
    learner.update(episodes=[1])
    module.add_module("red", points.spec(*AT["red"]).build(), override=True)
    module.remove_module("blue")
    learner._learner_connector = lambda **kwargs: {"red": points.batch("red", 8)}
    learner.update(episodes=[1])
    fresh = points.modules(red=AT["red"])
    points.learner(fresh, {"red": points.batch("red", 8)}).update(episodes=[1])
    assert points.where(module) == points.where(fresh)
    assert set(learner.get_state()["optimizers"]) == {"red"}


def test_a_module_without_parameters_needs_no_optimiser(points):
    module = MultiRLModule()
    module.add_module("still", Fixed())
    module.add_module("red", points.spec(*AT["red"]).build())
    learner = points.learner(module, {"still": points.batch("still", 5), "red": points.batch("red", 5)})
    assert learner.update(episodes=[1])["still"] == {"num_rows": 5, "num_minibatches": 0}
    assert set(learner.get_state()["optimizers"]) == {"red"}


def test_a_column_that_belongs_to_no_module_is_named(points):
    learner = points.learner(points.modules(**AT), {})
    learner._learner_connector = lambda **kwargs: {**two(points), "mark": torch.zeros(3)}
    with pytest.raises(BatchLayoutError, match=r"'red': dict, 'blue': dict, 'mark': Tensor[\s\S]*add_n_batch_items"):
        learner.update(episodes=[1])


NAMES = ("red", "blue", "default_policy", "x")
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.sampled_from([0.5, 0.01]),
        "minibatch_size": st.one_of(st.none(), st.integers(1, 7)),
        "num_epochs": st.integers(1, 3),
        "shuffle": st.sampled_from(["epoch", "once", None]),
        "remainder": st.sampled_from(["keep", "drop", "spread"]),
        "grad_clip": st.sampled_from([None, 0.1]),
    },
)


def batch(points: Any, rows: int, sequences: bool, seed: int) -> dict[str, Any]:
    """Rows, or sequences of up to three steps; every fourth row carries no loss."""
    if not sequences:
        return {**points.batch("", rows, seed), "loss_mask": torch.arange(rows) % 4 != 3}
    lens = torch.arange(rows) % 4
    return {
        "x": torch.randn((rows, 3, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        "seq_lens": lens,
        "loss_mask": torch.arange(3) < lens[:, None],
    }


def draw_updates(data: Any, names: list[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """For each of three updates (rows, sequences, seed) of the modules in the batch, and those to train."""
    rows = st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 99))
    one = st.tuples(st.dictionaries(st.sampled_from(names), rows), st.lists(st.sampled_from(names), unique=True))
    return data.draw(st.lists(one, min_size=3, max_size=3))


@pytest.mark.filterwarnings("ignore::epibatch.core.errors.EpibatchWarning")  # the loss does not look at padding
@given(st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_a_module_learns_what_it_would_learn_alone(points, data):
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=2, unique=True))
    own = {name: data.draw(OVERRIDES, label=f"overrides of {name}") for name in names}
    late = names[-1] if len(names) > 2 and data.draw(st.booleans(), label="the last comes after an update") else None
    updates = draw_updates(data, names)
    at = {name: (float(index), -1.0) for index, name in enumerate(names)}

    together = points.learner(
        points.modules(**{name: where for name, where in at.items() if name != late}),
        {},
        multi_agent={"overrides_per_module": {name: changes for name, changes in own.items() if name != late}},
    )
    taken: dict[str, list[Any]] = {name: [] for name in names}
    for number, (batches, trained) in enumerate(updates):
        if number == 1 and late:
            together.add_module(late, points.spec(*at[late]), config_overrides=own[late])
        there = {name: batch(points, *what) for name, what in batches.items() if name in together.module}
        together._learner_connector = lambda there=there, **kwargs: there
        together.policies_to_train = [name for name in trained if name in together.module]
        results = together.update(episodes=[1])
        for name in there:
            if name in trained and there[name]["loss_mask"].any():
                taken[name].append(there[name])
                assert results[name]["num_minibatches"] > 0
    state = together.get_state()
    for name in names:
        changes = {"overrides_per_module": {name: own[name]}, "policies_to_train": [] if not taken[name] else None}
        alone = points.learner(points.modules(**{name: at[name]}), {}, multi_agent=changes)
        for columns in taken[name]:
            alone._learner_connector = lambda columns=columns, name=name, **kwargs: {name: columns}
            alone.update(episodes=[1])
        expected = alone.get_state()
        for part in ("module", "generators"):
            np.testing.assert_equal(state[part][name], expected[part][name])
        if taken[name]:
            np.testing.assert_equal(state["optimizers"][name], expected["optimizers"][name])
