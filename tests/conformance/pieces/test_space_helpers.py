"""Functions on spaces and structures beside RLlib's of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from batches.acting_differences import leaves_by_place
from batches.acting_runs import over, stack
from batches.snapshots import column_of, flat_mismatches, snapshot
from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.compare import Mismatch, mismatches, outcome, settle
from oracle.differences import difference
from oracle.libraries import BOTH, RLLIB, Library
from oracle.spaces import INTEGERS, boxes, discretes, multi_binaries, multi_discretes, nested, rows, spaces

seeds = st.integers(0, 1000)


def helpers(library: Library) -> Any:
    return library.module("utils.spaces.space_utils" if library is RLLIB else "core.spaces")


@dataclass(frozen=True)
class Helped:
    """A call of a function on spaces."""

    name: str
    space: Any
    given: Any = field(default=None, repr=False)


@difference("O44", Helped)
def boxes_without_two_bounds(situation: Helped, mismatch: Mismatch) -> bool:
    """RLlib leaves half-bounded Boxes unsquashed and uncut, and makes -1 or NaN of them where it normalises.

    Here `unsquash_action` cuts the finite sides, and `normalize_action` leaves what has no two bounds as it is.
    """
    if not situation.name.endswith("_action") or mismatch.kind != "value":
        return False
    given = column_of(snapshot({"result": situation.given}), "result")
    return all(
        not mismatches(mismatch.theirs[path], mismatch.ours[path])
        or without_two_bounds(situation.name, space, given[path], mismatch.theirs[path], mismatch.ours[path])
        for path, space in leaves_by_place(situation.space).items()
    )


def without_two_bounds(name: str, space: Any, given: Any, theirs: Any, ours: Any) -> bool:
    """Whether one part is of such a Box, and both are what they should be."""
    unbounded = (
        [np.isinf(bound).all() for bound in (space.low, space.high)] if isinstance(space, gym.spaces.Box) else []
    )
    if name == "unsquash_action" and sum(unbounded) == 1:
        return not mismatches(given, theirs) and not mismatches(np.clip(given, space.low, space.high), ours)
    broken = bool((np.isnan(theirs) | (theirs == -1)).all())
    return name == "normalize_action" and any(unbounded) and broken and not mismatches(given, ours)


def hold(name: str, space: Any, call: Any, given: Any = None) -> None:
    """Call a function of both libraries and hold the results beside each other."""
    theirs, ours = (outcome(lambda library=library: snapshot({"result": call(helpers(library))})) for library in BOTH)
    settle(theirs, ours, Helped(name, space, given), flat_mismatches)


@random_cases(space=spaces, count=st.integers(1, 8), seed=seeds)
def test_batch_and_unbatch(space, count, seed):
    made = rows(space, np.random.default_rng(seed), count)
    hold("batch", space, lambda own: own.batch(made))
    tagged = [over(stack(made[i:]), lambda leaf: leaf) for i in range(count)]
    hold("batch", space, lambda own: own.batch(tagged, individual_items_already_have_batch_dim=True))
    hold("batch", space, lambda own: own.batch([over(t, lambda a: a.view(own.BatchedNdArray)) for t in tagged],
                                               individual_items_already_have_batch_dim="auto"))  # fmt: skip
    hold("unbatch", space, lambda own: own.unbatch(stack(made)))


@random_cases(space=spaces, seed=seeds)
def test_flatten_to_single_ndarray(space, seed):
    (row,) = rows(space, np.random.default_rng(seed), 1)
    hold("flatten_to_single_ndarray", space, lambda own: own.flatten_to_single_ndarray(row))


@random_cases(
    space=spaces,
    size=st.integers(0, 4),
    time=st.sampled_from([None, 1, 3]),
    major=st.booleans(),
    fill=st.sampled_from([0, 1, 2.5]),
)
def test_get_dummy_batch_for_space(space, size, time, major, fill):
    hold(
        "get_dummy_batch_for_space",
        space,
        lambda own: own.get_dummy_batch_for_space(
            space, batch_size=size, fill_value=fill, time_size=time if size else None, time_major=major
        ),
    )


@random_cases(
    shape=st.lists(st.integers(1, 3), max_size=2),
    depth=st.integers(1, 6),
    values=st.sampled_from([(1.0, 0.0), (2.5, -1.0)]),
    seed=seeds,
)
def test_one_hot(shape, depth, values, seed):
    x = np.random.default_rng(seed).integers(0, depth, shape)
    results = [
        library.module("utils.numpy" if library is RLLIB else "core.spaces").one_hot(x, depth, *values)
        for library in BOTH
    ]
    assert flat_mismatches(*(snapshot({"x": result}) for result in results)) == []


bounded = st.builds(
    lambda bounds, size: gym.spaces.Box(*bounds, (size,), np.float32),
    st.sampled_from([(-2.0, 4.0), (0.0, 1.0), (-1.0, 1.0), (-np.inf, np.inf), (0.0, np.inf), (-np.inf, 1.0)]),
    st.integers(1, 3),
)


numbers = st.one_of(bounded, boxes(dtypes=("float32", *INTEGERS)))


@holds("C53")
@random_cases(space=nested(st.one_of(numbers, numbers, discretes, multi_discretes, multi_binaries)), seed=seeds)
def test_scaling_actions(space, seed):
    rng = np.random.default_rng(seed)

    def action(own: Any) -> Any:
        if isinstance(own, gym.spaces.Dict):
            return {key: action(part) for key, part in own.spaces.items()}
        if isinstance(own, gym.spaces.Tuple):
            return tuple(action(part) for part in own.spaces)
        if isinstance(own, gym.spaces.Box) and own.dtype.kind != "f":
            return rng.integers(0, 5, own.shape)
        if isinstance(own, gym.spaces.Box):
            return (rng.standard_normal(own.shape) * 2).astype(np.float32)
        return rows(own, rng, 1)[0]

    given = action(space)
    for name in ("unsquash_action", "normalize_action", "clip_action"):

        def call(own: Any, name: str = name) -> Any:
            struct = own.get_base_struct_from_space(space)
            return getattr(own, name)(over(given, np.copy), struct)

        hold(name, space, call, given)
