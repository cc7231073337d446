"""Modules beside others, at random: each is as if it were alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@given(st.data())
@settings(max_examples=60, deadline=None)
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
