"""Learners that update together take the steps of one learner on the union of their minibatches."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
import torch
from fixture_together import learners_in_threads, together
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.core.errors import BatchLayoutError, ConfigError, EpisodeError, NonFiniteLossError, OtherLearnerError
from epibatch.learner import Learner, LearnerSettings, Minibatches, MultiAgentSettings

AT = {"red": (1.0, -1.0), "blue": (0.5, 2.0)}


def rows_of(first, count):
    """Rows of the plane whose first entries are `first`, `first + 1`..."""
    x = np.random.default_rng(first).normal(size=(count, 2))
    x[:, 0] = first + np.arange(count)
    return x


def batch_of(name, rows):
    return {"x": torch.from_numpy(np.asarray(rows, np.float64)), "name": [name] * len(rows)}


class Group:
    """Learners in threads, each with batches of its own."""

    def __init__(self, points, shares, *, connectors=None, losses=None, multi_agent=None, at=AT, **options):
        self.losses = losses or [points.Distances() for _ in shares]
        self.shares = shares
        self.episodes = [[1, 2]] * len(shares)
        self.served = [None] * len(shares)  # batches in place of the shares'
        options = {"lr": 0.1, "minibatch_size": 4, "seed": 7, "optimizer": "adam", **options}
        kinds = options.pop("optimizer")
        kinds = kinds if isinstance(kinds, list) else [kinds] * len(shares)

        def serve(place):
            def connector(**kwargs):
                if callable(self.served[place]):
                    return self.served[place]()
                return {name: batch_of(name, rows) for name, rows in self.shares[place].items()}

            return connector

        self.members = [
            Learner(
                module=points.modules(**at),
                connector=connectors[place] if connectors else serve(place),
                settings=LearnerSettings(**options, optimizer=kinds[place]),
                loss=loss,
                multi_agent=multi_agent and MultiAgentSettings(**multi_agent),
                learners=learners,
            )
            for place, (loss, learners) in enumerate(zip(self.losses, learners_in_threads(len(shares))))
        ]

    def update(self):
        def update_of(learner, episodes):
            return lambda: learner.update(episodes=episodes)

        return together([update_of(learner, own) for learner, own in zip(self.members, self.episodes)])

    def where(self, points):
        """Where the points are, which is the same on all learners."""
        places = [points.where(learner.module) for learner in self.members]
        assert all(place == places[0] for place in places)
        return places[0]

    def unions(self, name):
        """The minibatches of all learners, each of their rows together; learners without rows have none."""
        lists = [loss.of(name) for loss in self.losses if loss.of(name)]
        return [list(itertools.chain(*parts)) for parts in zip(*lists, strict=True)]


def descent(at, minibatches, lr, bound=None, by="global_norm"):
    """Gradient descent on mean squared distances, with bounded gradients, number by number."""
    at = np.array(at)
    for rows in minibatches:
        gradient = np.zeros(2)
        for row in rows:
            gradient += 2 * (at - row) / len(rows)
        if bound is not None and by == "value":
            gradient = np.array([min(max(value, -bound), bound) for value in gradient])
        elif bound is not None:
            length = sum(value**2 for value in gradient) ** 0.5
            gradient = gradient * min(1.0, bound / (length + 1e-6))
        at = at - lr * gradient
    return at


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("bound", "by"), [(None, "global_norm"), (0.5, "global_norm"), (0.5, "norm"), (0.5, "value"), (1e9, "norm")]
)
def test_steps_are_those_of_one_learner_on_the_union_of_minibatches(points, count, bound, by):
    shares = [{"red": rows_of(100 * i, 10 + 3 * i)} for i in range(count)]
    table = {row[0]: row for share in shares for row in share["red"]}
    bounds = {"grad_clip": bound, "grad_clip_by": by}
    group = Group(points, shares, optimizer="sgd", num_epochs=2, at={"red": (1.0, 2.0)}, **bounds)
    expected = np.array((1.0, 2.0))
    for _ in range(3):
        for loss in group.losses:
            loss.seen.clear()
        results = group.update()
        unions = [np.array([table[first] for first in union]) for union in group.unions("red")]
        expected = descent(expected, unions, 0.1, bound, by)
        np.testing.assert_allclose(group.where(points)["red"], expected, rtol=1e-12)
        largest = 10 + 3 * (count - 1)
        assert len(unions) == 2 * -(-largest // 4)  # so many of 4 rows has the largest share
        for epoch in (unions[: len(unions) // 2], unions[len(unions) // 2 :]):
            assert sorted(np.concatenate(epoch)[:, 0].tolist()) == sorted(table), "every row once in every epoch"
        for loss in group.losses:
            sizes = [len(rows) for rows in loss.of("red")]
            assert max(sizes) - min(sizes) <= 1
        counts = results[0]["red"]["num_rows"], results[0]["red"]["num_minibatches"]
        assert counts == (len(table), len(unions))
    sums = [learner.learners.num_sums for learner in group.members]
    assert sums == [3 * len(unions) + 1] * count, "one per step, and one before the names of metrics are known"


def test_results_are_of_all_rows(points):
    """Without steps of any size the means are those of all rows."""
    shares = [{"red": rows_of(0, 5)}, {"red": rows_of(50, 11)}, {"red": rows_of(70, 2)}]
    results = Group(points, shares, lr=1e-12, at={"red": (1.0, 2.0)}, minibatch_size=None).update()
    rows = np.concatenate([share["red"] for share in shares])
    distances = np.square(rows - (1.0, 2.0)).sum(1)
    length = np.linalg.norm(2 * (np.array((1.0, 2.0)) - rows.mean(0)))
    own = [result["red"] for result in results]
    assert own[0] == own[1] == own[2]
    assert own[0]["total_loss"] == pytest.approx(distances.mean(), rel=1e-6)
    assert own[0]["grad_norm"] == pytest.approx(length, rel=1e-6)
    assert own[0]["rows"] == pytest.approx((25 + 121 + 4) / 18, rel=1e-6), "weighted by rows"
    common = [result["__all_modules__"] for result in results]
    assert {(each["num_rows"], each["num_updates"], each["num_gradient_steps"]) for each in common} == {(18, 1, 1)}
    assert {each["num_env_steps_trained_lifetime"] for each in common} == {0}


@pytest.mark.parametrize("shuffle", ["epoch", "once", None])
def test_a_learner_with_fewer_rows_than_minibatches_has_empty_ones(points, shuffle):
    shares = [{"red": rows_of(0, 20)}, {"red": rows_of(50, 3)}]
    group = Group(points, shares, at={"red": (0.0, 0.0)}, shuffle=shuffle, num_epochs=2)
    group.update()
    group.where(points)
    assert [len(rows) for rows in group.losses[1].of("red")] == [1] * 6
    assert sorted(itertools.chain(*group.losses[1].of("red")))[::2] == [50.0, 51.0, 52.0]


def test_a_module_that_is_missing_on_a_learner_and_a_share_without_episodes(points):
    shares = [{"red": rows_of(0, 8)}, {"red": rows_of(50, 8), "blue": rows_of(60, 6)}, {}]
    group = Group(points, shares, optimizer="sgd", minibatch_size=None)
    group.episodes[2] = []
    results = group.update()
    red = np.concatenate([shares[0]["red"], shares[1]["red"]])
    places = group.where(points)
    np.testing.assert_allclose(places["red"], descent(AT["red"], [red], 0.1), rtol=1e-12)
    np.testing.assert_allclose(places["blue"], descent(AT["blue"], [shares[1]["blue"]], 0.1), rtol=1e-12)
    assert [list(result) for result in results] == [["red", "blue", "__all_modules__"]] * 3
    states = [learner.get_state() for learner in group.members]
    for state in states[1:]:
        np.testing.assert_equal(state, states[0])


def test_a_module_that_one_learners_rule_chooses_is_updated_with_all_rows(points):
    shares = [{"red": rows_of(0, 8)}, {"red": rows_of(50, 3)}]
    rule = {"policies_to_train": lambda module_id, batch: len(batch[module_id]["x"]) > 5}
    group = Group(points, shares, optimizer="sgd", minibatch_size=None, at={"red": (0.0, 0.0)}, multi_agent=rule)
    assert group.update()[1]["red"]["num_rows"] == 11
    expected = descent((0.0, 0.0), [np.concatenate([share["red"] for share in shares])], 0.1)
    np.testing.assert_allclose(group.where(points)["red"], expected, rtol=1e-12)


def test_modules_without_rows_on_any_learner(points):
    group = Group(points, [{"red": rows_of(0, 8)}, {"blue": []}])
    assert [result["blue"] for result in group.update()] == [{"num_rows": 0, "num_minibatches": 0}] * 2
    group = Group(points, [{"red": []}, {"red": []}], at={"red": (0.0, 0.0)})
    assert [type(error) for error in group.update()] == [BatchLayoutError] * 2
    group = Group(points, [{}, {}])
    assert ["at least one module" in str(error) for error in group.update()] == [True, True]
    group.episodes = [[], []]
    assert [type(error) for error in group.update()] == [EpisodeError] * 2


# -- errors ----------------------------------------------------------------------------------------


class Failing:
    """The loss of `conftest.Distances`, until something else is asked for."""

    def __init__(self, distances):
        self.inner, self.fails = distances, None

    def __call__(self, batch, outputs, distribution_class):
        loss, metrics = self.inner(batch, outputs, distribution_class)
        if self.fails == "loss" and len(self.inner.seen) > 2:
            raise KeyError("a column")
        if self.fails == "nan":
            return loss * torch.nan, metrics
        if self.fails == "own nan":
            raise NonFiniteLossError("a loss")
        if self.fails == "backward":
            loss.register_hook(lambda gradient: 1 / 0)
        if self.fails == "metrics":
            metrics = {**metrics, "more": loss.detach()}
        return loss, metrics


def failing_group(points, **options):
    shares = [{"red": rows_of(0, 12), "blue": rows_of(20, 9)}, {"red": rows_of(50, 16)}]
    losses = [Failing(points.Distances()) for _ in shares]
    group = Group(points, shares, losses=losses, num_epochs=2, **options)
    group.update()
    return group


def broken_piece():
    raise ZeroDivisionError("in a piece")


BROKEN = {"connector": broken_piece, "batch": lambda: {"x": torch.zeros(3)}}
ERRORS = {
    **{"connector": ZeroDivisionError, "batch": BatchLayoutError},
    **{"loss": KeyError, "backward": ZeroDivisionError, "forward": ZeroDivisionError},
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_of_one_learner_is_raised_on_all_and_nobody_waits(points, what):
    group = failing_group(points)
    before = group.where(points)
    group.losses[1].fails, group.losses[1].inner.seen = what, []
    group.served[1] = BROKEN.get(what)
    module = group.members[1].module["red"]
    forward = module.forward_train
    if what == "forward":
        module.forward_train = lambda batch: broken_piece()
    first, second = group.update()
    assert type(second) is ERRORS[what] and type(first) is OtherLearnerError
    assert "learner 2 failed" in str(first) and ERRORS[what].__name__ in str(first)
    places = group.where(points)
    assert (places == before) is (what != "loss"), "the steps before it were taken, everywhere"
    group.losses[1].fails = group.served[1] = None
    module.forward_train = forward
    assert [type(result) for result in group.update()] == [dict, dict], "they go on"
    group.where(points)


def test_a_loss_that_is_not_finite_is_raised_on_all_and_other_modules_are_updated(points):
    group = failing_group(points)
    before = group.where(points)
    group.losses[1].fails = "nan"  # it has rows of red alone
    errors = group.update()
    assert [type(error) for error in errors] == [NonFiniteLossError] * 2 and "module 'red'" in str(errors[0])
    after = group.where(points)
    assert after["red"] == before["red"] and after["blue"] != before["blue"]


def test_a_loss_that_raises_that_it_is_not_finite_does_so_for_one_learner(points):
    group = failing_group(points)
    before = group.where(points)
    group.losses[1].fails = "own nan"  # red is first, and learner 1 has rows of blue too
    first, second = group.update()
    assert type(second) is NonFiniteLossError and type(first) is OtherLearnerError
    assert group.where(points) == before
    group.losses[1].fails = None
    assert [type(result) for result in group.update()] == [dict, dict], "they go on"


def test_a_piece_that_ignores_what_it_is_told_is_told_again(points):
    class Stubborn(ConnectorV2):
        def __call__(self, *, shared_data, **kwargs):
            for _ in range(2):
                with contextlib.suppress(OtherLearnerError):
                    shared_data["learners"].gather(1)
            return {"red": batch_of("red", rows_of(0, 12))}

    shares = [{"red": rows_of(0, 12)}] * 2
    group = Group(points, shares, connectors=[Stubborn(), lambda **kwargs: broken_piece()], at={"red": (0.0, 0.0)})
    first, second = group.update()
    assert type(second) is ZeroDivisionError and type(first) is OtherLearnerError


def test_other_metrics_on_one_learner_are_named(points):
    group = failing_group(points)
    group.losses[0].fails = "metrics"
    assert {type(error) for error in group.update()} == {ConfigError}
    group.losses[1].fails = "metrics"
    assert all("more" in result["red"] for result in group.update()), "other metrics from now on, on all"


def test_a_step_that_fails_on_one_learner_is_raised_on_all(points):
    class Broken(torch.optim.SGD):
        works = True

        def step(self, closure=None):
            if not Broken.works:
                raise ZeroDivisionError
            return super().step(closure)

    shares = [{"red": rows_of(0, 12)}, {"red": rows_of(50, 16)}]
    group = Group(points, shares, optimizer=[torch.optim.SGD, Broken], at={"red": (0.0, 0.0)})
    group.update()
    Broken.works = False
    first, second = group.update()
    assert type(second) is ZeroDivisionError and type(first) is OtherLearnerError
    errors = group.update()
    assert {type(error) for error in errors} == {ConfigError} and "set_state" in str(errors[0]), "states differ now"
    Broken.works, state = True, group.members[0].get_state()
    for learner in group.members:
        learner.set_state(state)
    assert [type(result) for result in group.update()] == [dict, dict]
    group.where(points)


# -- state -----------------------------------------------------------------------------------------


def test_a_restored_group_goes_on_bit_by_bit_and_one_learner_can_take_its_state_over(points):
    shares = [{"red": rows_of(0, 12), "blue": rows_of(20, 9)}, {"red": rows_of(50, 16)}]
    group, other = (Group(points, shares, num_epochs=2, seed=seed) for seed in (7, None))
    group.update()
    state = group.members[0].get_state()
    for learner in other.members:
        learner.set_state(state)
    for each in (group, other):
        for loss in each.losses:
            loss.seen.clear()
        each.update()
    assert [loss.seen for loss in group.losses] == [loss.seen for loss in other.losses]
    np.testing.assert_equal(group.members[1].get_state(), other.members[0].get_state())
    alone = points.learner(points.modules(**AT), {"red": points.batch("red", 9)})
    alone.set_state(state)
    assert alone.update(episodes=[1])["__all_modules__"]["num_updates"] == 2


@pytest.mark.parametrize("count", [2, 3])
def test_a_state_that_is_set_on_one_learner_alone_does_not_keep_them_apart(points, count):
    shares = [{"red": rows_of(0, 12), "blue": rows_of(20, 9)}, {"red": rows_of(50, 16)}, {"red": rows_of(70, 3)}]
    group, other = (Group(points, shares[:count], num_epochs=2) for _ in range(2))
    for each in (group, other):
        each.update()
    changed = group.members[1]
    changed.set_state(changed.get_state())
    for each in (group, other):
        assert [type(result) for result in each.update()] == [dict] * count
    np.testing.assert_equal(group.members[1].get_state(), other.members[0].get_state())
    group.where(points)


def test_buffers_are_those_of_the_learner_with_the_most_rows(points):
    class Buffered(points.Module):
        def setup(self):
            super().setup()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def _forward_train(self, batch, **kwargs):
            self.seen += len(batch["x"])
            return {"at": self.at}

    losses = [Failing(points.Distances()) for _ in range(2)]
    shares = [{"red": rows_of(0, 3)}, {"red": rows_of(50, 8)}]
    group = Group(points, shares, losses=losses, at={"red": (0.0, 0.0)}, minibatch_size=None)
    for learner in group.members:
        learner.remove_module("red")
        learner.add_module("red", Buffered(model_config={"at": [0.0, 0.0]}))
    group.update()
    assert [int(learner.module["red"].seen) for learner in group.members] == [8, 8]
    losses[0].fails = "nan"
    assert [type(error) for error in group.update()] == [NonFiniteLossError] * 2
    assert [int(learner.module["red"].seen) for learner in group.members] == [16, 16]


# -- minibatches -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=30), count=st.integers(1, 12), recurrent=st.booleans())
def test_rows_are_spread_over_any_number_of_minibatches(lengths, count, recurrent):
    batch = {"row": torch.arange(len(lengths))}
    if recurrent:
        batch["seq_lens"] = torch.tensor(lengths)
    minibatches = Minibatches(batch, size=3, epochs=2, shuffle="epoch")
    for epoch in minibatches.by_epoch(count):
        parts = [minibatch["row"].tolist() for minibatch in epoch]
        assert len(parts) == count and sorted(itertools.chain(*parts)) == list(range(len(lengths)))
        filled = [part for part in parts if part]
        assert len(filled) == min(count, len(lengths)), "none is empty without need"
        if not recurrent:
            assert max(map(len, filled)) - min(map(len, filled)) <= 1


# -- statistics of pieces --------------------------------------------------------------------------


class Summing(ConnectorV2):
    """Adds up what it sees, and tells how much all learners have seen in this call."""

    def __init__(self, share):
        super().__init__()
        self.share, self.old, self.new, self.heard = share, 0.0, 0.0, []

    def __call__(self, *, rl_module, batch, episodes, shared_data=None, **kwargs):
        self.new += len(self.share)
        self.heard.append(shared_data["learners"].gather(len(self.share)))
        return {"red": batch_of("red", self.share)}

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"old": self.old, "new": self.new}

    def set_state(self, state):
        self.old, self.new = state["old"], state["new"]

    def merge_states(self, states):
        return {"old": states[0]["old"] + sum(state["new"] for state in states), "new": 0.0}


def test_states_of_a_piece_are_merged_after_each_update_and_count_once(points):
    shares = [rows_of(0, 4), rows_of(10, 6), rows_of(20, 5)]
    pieces = [Summing(share) for share in shares]
    for piece in pieces:
        piece.set_state({"old": 100.0, "new": 10.0})  # of a run before, which all have
    group = Group(points, [{}] * 3, connectors=pieces, at={"red": (0.0, 0.0)})
    group.update()
    assert [piece.get_state() for piece in pieces] == [{"old": 125.0, "new": 0.0}] * 3
    group.episodes[2] = []  # its piece is not called
    group.update()
    assert [piece.get_state() for piece in pieces] == [{"old": 135.0, "new": 0.0}] * 3
    assert [piece.heard for piece in pieces] == [[[4, 6, 5], [4, 6]]] * 2 + [[[4, 6, 5]]]
    for learner in group.members:
        learner.set_state({**learner.get_state(), "connector": {"old": 1.0, "new": 2.0}})
    group.update()
    assert pieces[2].get_state() == {"old": 13.0, "new": 0.0}


class Drawing(ConnectorV2):
    """Adds noise to the rows."""

    def __init__(self, share):
        super().__init__()
        self.share, self.generator = share, np.random.default_rng(3)

    def __call__(self, **kwargs):
        return {"red": batch_of("red", self.share + self.generator.normal(size=self.share.shape))}

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"generator": self.generator.bit_generator.state}

    def set_state(self, state):
        self.generator.bit_generator.state = state["generator"]


@pytest.mark.parametrize("absent", [0, 1])
def test_pieces_without_merge_states_have_the_state_of_a_learner_that_called_them(points, absent):
    shares = [rows_of(0, 4), rows_of(10, 6)]
    group = Group(points, [{}] * 2, connectors=[Drawing(share) for share in shares], at={"red": (0.0, 0.0)})
    group.episodes[absent] = []
    group.update()
    expected = np.random.default_rng(3)
    expected.normal(size=shares[1 - absent].shape)
    for learner in group.members:
        assert learner.get_state()["connector"]["generator"] == expected.bit_generator.state
