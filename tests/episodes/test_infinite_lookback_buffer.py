"""The index rules of one episode column, against a plain-list model written as obvious loops."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, EpibatchError, EpisodeIndexError
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

FAST = settings(deadline=None, derandomize=True, max_examples=100)
SLICE_STEPS = st.sampled_from([None, None, 1, 2, 3, -1, -2, -3])
BOUNDS = st.one_of(st.none(), st.integers(-13, 13))
SLICES = st.builds(slice, BOUNDS, BOUNDS, SLICE_STEPS)
INDICES = st.one_of(st.none(), st.integers(-13, 13), SLICES, st.lists(st.integers(-13, 13), max_size=5))
FILL = object()


# ---------------------------------------------------------------- the model
def absolute(i: int, length: int, lookback: int, neg_lookback: bool) -> int:
    """Where index `i` points in the data including the lookback (may lie outside)."""
    if i >= 0 or neg_lookback:
        return lookback + i
    return length + i


def slice_positions(s: slice, length: int, lookback: int, neg_lookback: bool, filled: bool) -> list[int]:
    """The positions a slice visits; those outside are kept only when they are to be filled."""
    step = 1 if s.step is None else s.step
    first, last = (lookback, length) if step > 0 else (length - 1, lookback - 1)
    start = first if s.start is None else absolute(s.start, length, lookback, neg_lookback)
    stop = last if s.stop is None else absolute(s.stop, length, lookback, neg_lookback)
    if not filled:  # shortened as Python shortens list slices
        start = min(max(start, 0), length) if step > 0 else min(max(start, -1), length - 1)
        stop = min(max(stop, 0), length) if step > 0 else min(max(stop, -1), length - 1)
    return list(range(start, stop, step))


def model_get(rows: list[Any], lookback: int, indices: Any, neg_lookback: bool, filled: bool) -> Any:
    """One row, or a list of rows; `FILL` stands for a fill item."""

    def row(position: int) -> Any:
        if 0 <= position < len(rows):
            return rows[position]
        if filled:
            return FILL
        raise IndexError(position)

    if indices is None:
        return rows[lookback:]
    if isinstance(indices, int):
        return row(absolute(indices, len(rows), lookback, neg_lookback))
    if isinstance(indices, slice):
        return [row(p) for p in slice_positions(indices, len(rows), lookback, neg_lookback, filled)]
    return [row(absolute(i, len(rows), lookback, neg_lookback)) for i in indices]


KINDS = {
    "scalar": (gym.spaces.Box(-1e6, 1e6, (), np.float64), lambda i: float(i) + 0.5),
    "discrete": (gym.spaces.Discrete(100), lambda i: i),
    "vector": (gym.spaces.Box(-1e6, 1e6, (3,), np.float32), lambda i: np.arange(3, dtype=np.float32) + 10 * i),
    "nested": (
        gym.spaces.Dict(
            {
                "a": gym.spaces.Discrete(100),
                "b": gym.spaces.Tuple(
                    (gym.spaces.Box(-1e6, 1e6, (2, 2), np.float32), gym.spaces.MultiDiscrete([100, 100]))
                ),
            }
        ),
        lambda i: {"a": i, "b": (np.full((2, 2), i, np.float32), np.array([i, i + 1]))},
    ),
}


def leaves(struct: Any) -> list[Any]:
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for value in struct for leaf in leaves(value)]
    return [struct]


def assert_rows_equal(found: Any, rows: list[Any], template: Any, fill: Any = None) -> None:
    """`found` is one struct of arrays holding `rows`; every leaf has the template row's type and shape."""
    for column, reference, *values in zip(leaves(found), leaves(template), *(leaves_of(r, template) for r in rows)):
        reference = np.asarray(reference)
        assert isinstance(column, np.ndarray)
        assert column.dtype == reference.dtype
        assert column.shape == (len(rows), *reference.shape)
        for item, value in zip(column, values):
            expected = np.full(reference.shape, fill, reference.dtype) if value is FILL else value
            np.testing.assert_array_equal(item, expected)
    assert len(leaves(found)) == len(leaves(template))


def leaves_of(row: Any, template: Any) -> list[Any]:
    return [FILL] * len(leaves(template)) if row is FILL else leaves(row)


def assert_row_equal(found: Any, row: Any, template: Any, fill: Any = None) -> None:
    for item, reference, value in zip(leaves(found), leaves(template), leaves_of(row, template), strict=True):
        reference = np.asarray(reference)
        assert np.asarray(item).dtype == reference.dtype
        expected = np.full(reference.shape, fill, reference.dtype) if value is FILL else value
        np.testing.assert_array_equal(item, expected)
        assert np.shape(item) == reference.shape


# ---------------------------------------------------------------- get
@pytest.mark.parametrize("with_space", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@FAST
@given(data=st.data())
def test_get_follows_the_list_model(kind: str, with_space: bool, data: st.DataObject) -> None:
    space, make = KINDS[kind]
    n = data.draw(st.integers(1, 8))
    lookback = data.draw(st.integers(0, n))
    indices = data.draw(INDICES)
    neg = data.draw(st.booleans())
    fill = data.draw(st.sampled_from([None, 0, 7]))
    rows = [make(i) for i in range(n)]
    buffer = InfiniteLookbackBuffer(list(rows), lookback=lookback, space=space if with_space else None)
    try:
        expected = model_get(rows, lookback, indices, neg, fill is not None)
    except IndexError:
        with pytest.raises(EpisodeIndexError):
            buffer.get(indices, neg_index_as_lookback=neg, fill=fill)
        return
    found = buffer.get(indices, neg_index_as_lookback=neg, fill=fill)
    if isinstance(indices, int):
        assert_row_equal(found, expected, rows[0], fill)
    else:
        assert_rows_equal(found, expected, rows[0], fill)


ROWS = [10, 11, 12, 13, 14]  # 10 and 11 are the lookback


@pytest.mark.parametrize(
    ("indices", "options", "expected"),
    [
        (None, {}, [12, 13, 14]),
        (0, {}, 12),
        (2, {}, 14),
        (-1, {}, 14),
        (-5, {}, 10),
        (-1, {"neg_index_as_lookback": True}, 11),
        (-2, {"neg_index_as_lookback": True}, 10),
        (np.int64(1), {}, 13),
        (np.uint8(1), {}, 13),
        (np.int32(-4), {}, 11),
        (slice(-2, 2), {"neg_index_as_lookback": True}, [10, 11, 12, 13]),
        (slice(np.int64(0), np.int64(2)), {}, [12, 13]),
        (slice(-8, None), {}, [10, 11, 12, 13, 14]),
        (slice(-8, None), {"neg_index_as_lookback": True}, [10, 11, 12, 13, 14]),
        (slice(-8, None), {"fill": 0}, [0, 0, 0, 10, 11, 12, 13, 14]),
        (slice(-4, None), {"fill": 0, "neg_index_as_lookback": True}, [0, 0, 10, 11, 12, 13, 14]),
        (slice(1, 5), {"fill": 0}, [13, 14, 0, 0]),
        (slice(5, 9), {}, []),
        (slice(5, 9), {"fill": 0}, [0, 0, 0, 0]),
        # a slice over both ends is padded on both (RLlib pads the left only)
        (slice(-3, 5), {"fill": 0, "neg_index_as_lookback": True}, [0, 10, 11, 12, 13, 14, 0, 0]),
        # a start beyond the stop is an empty range, with fill as well
        (slice(2, 0), {"fill": 0}, []),
        (slice(7, 5), {"fill": 0}, []),
        (slice(-7, None, 2), {"fill": 0}, [0, 10, 12, 14]),
        (slice(-8, None, 2), {}, [10, 12, 14]),
        (slice(None, None, -1), {}, [14, 13, 12]),
        (slice(None, None, -2), {}, [14, 12]),
        (slice(-1, -4, -1), {}, [14, 13, 12]),
        (slice(-1, -4, -1), {"neg_index_as_lookback": True}, [11, 10]),
        (slice(-1, -4, -1), {"neg_index_as_lookback": True, "fill": 0}, [11, 10, 0]),
        (slice(4, 0, -1), {"fill": 0}, [0, 0, 14, 13]),
        ([0, -1], {}, [12, 14]),
        ([0, -1], {"neg_index_as_lookback": True}, [12, 11]),
        ([np.int64(2), np.int64(0)], {}, [14, 12]),
        ([0, 7, -9], {"fill": 0}, [12, 0, 0]),
        ([], {}, []),
        ([], {"fill": 0}, []),
    ],
)
@pytest.mark.parametrize("source", [list, np.array])
def test_get_table(source: Any, indices: Any, options: dict[str, Any], expected: Any) -> None:
    found = InfiniteLookbackBuffer(source(ROWS), lookback=2).get(indices, **options)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.int64


@pytest.mark.parametrize(
    ("indices", "options"),
    [
        (3, {}),
        (-6, {}),
        (np.int64(3), {}),
        # beyond the lookback there is nothing: no wrapping around to the end
        (-3, {"neg_index_as_lookback": True}),
        ([0, 3], {}),
        ([-1, -3], {"neg_index_as_lookback": True}),
    ],
)
def test_indices_outside_raise(indices: Any, options: dict[str, Any]) -> None:
    buffer = InfiniteLookbackBuffer(np.array(ROWS), lookback=2)
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:[\s\S]*do:"):
        buffer.get(indices, **options)
    assert issubclass(EpisodeIndexError, IndexError)


@pytest.mark.parametrize("indices", [1.0, "0", {}, [0.5]])
def test_indices_of_a_wrong_type_are_named_errors(indices: Any) -> None:
    with pytest.raises(EpibatchError):
        InfiniteLookbackBuffer(list(ROWS), lookback=2).get(indices)


@pytest.mark.parametrize(
    ("rows", "space", "fill", "expected"),
    [
        ([1, 2], None, 2.0, np.array(2, np.int64)),
        ([1, 2], None, 0.5, np.array(0.5)),
        ([True, False], None, 1, np.array(True)),
        ([True, False], None, -1, np.array(-1, np.int64)),
        ([np.ones(2, np.uint8)], None, -1, np.full(2, -1, np.int64)),
        ([0.5, 1.5], None, 3, np.array(3.0)),
        ([np.ones(2, np.float32)], None, 2, np.full(2, 2, np.float32)),
        ([np.ones((2, 3), np.uint8)], None, 7, np.full((2, 3), 7, np.uint8)),
        ([np.float32(1)], gym.spaces.Box(-9, 9, (), np.float32), 2.5, np.array(2.5, np.float32)),
        ([1], gym.spaces.Discrete(5), 3.0, np.array(3, np.int64)),
    ],
)
def test_fill_items_have_the_rows_type_and_shape(rows: list[Any], space: Any, fill: Any, expected: np.ndarray) -> None:
    item = InfiniteLookbackBuffer(rows, space=space).get(-9, fill=fill)
    np.testing.assert_array_equal(item, expected)
    assert np.asarray(item).dtype == expected.dtype and np.shape(item) == expected.shape


def test_fill_of_an_empty_column_takes_its_form_from_the_space() -> None:
    space = gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,), np.float32), "n": gym.spaces.Discrete(3)})
    found = InfiniteLookbackBuffer(space=space).get(slice(-2, 0), fill=0, neg_index_as_lookback=True)
    assert found["x"].shape == (2, 2) and found["x"].dtype == np.float32
    assert found["n"].shape == (2,) and not found["n"].any()


# ---------------------------------------------------------------- one-hot
@pytest.mark.parametrize(
    ("space", "rows", "expected"),
    [
        (gym.spaces.Discrete(3), [0, 2], [[1, 0, 0], [0, 0, 1]]),
        (gym.spaces.Discrete(3, start=5), [6, 5, 7], [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
        (gym.spaces.Discrete(2, start=-1), [-1, 0], [[1, 0], [0, 1]]),
        (gym.spaces.MultiDiscrete([2, 3]), [np.array([1, 0]), np.array([0, 2])], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
    ],
)
def test_one_hot(space: gym.Space, rows: list[Any], expected: list[Any]) -> None:
    buffer = InfiniteLookbackBuffer(rows, space=space)
    found = buffer.get(one_hot_discrete=True)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(buffer.get(0, one_hot_discrete=True), expected[0])
    np.testing.assert_array_equal(buffer.get([-1], one_hot_discrete=True), expected[-1:])
    filled = buffer.get(slice(-1, 1), one_hot_discrete=True, fill=0, neg_index_as_lookback=True)
    np.testing.assert_array_equal(filled, [[0.0] * len(expected[0]), expected[0]])
    for nothing in (slice(9, None), []):
        assert buffer.get(nothing, one_hot_discrete=True).shape == (0, len(expected[0]))


def test_one_hot_leaves_other_leaves_alone() -> None:
    space = gym.spaces.Dict({"d": gym.spaces.Discrete(2), "x": gym.spaces.Box(-1, 1, (2,), np.float32)})
    x = np.array([0.25, 0.5], np.float32)
    found = InfiniteLookbackBuffer([{"d": 1, "x": x}], space=space).get(one_hot_discrete=True)
    np.testing.assert_array_equal(found["d"], [[0, 1]])
    np.testing.assert_array_equal(found["x"], [x])


def test_one_hot_without_a_space_is_an_error() -> None:
    with pytest.raises(ValueError, match="space"):
        InfiniteLookbackBuffer([0, 1]).get(one_hot_discrete=True)


# ---------------------------------------------------------------- set
@pytest.mark.parametrize("kind", KINDS)
@FAST
@given(data=st.data())
def test_set_follows_the_list_model(kind: str, data: st.DataObject) -> None:
    space, make = KINDS[kind]
    n = data.draw(st.integers(1, 7))
    lookback = data.draw(st.integers(0, n))
    indices = data.draw(INDICES)
    neg = data.draw(st.booleans())
    rows = [make(i) for i in range(n)]
    buffer = InfiniteLookbackBuffer(list(rows), lookback=lookback, space=space)
    positions = list(range(n))
    try:
        targets = model_get(positions, lookback, indices, neg, False)
    except IndexError:
        count = len(indices) if isinstance(indices, list) else 1
        new = [make(50 + i) for i in range(count)]
        with pytest.raises(EpisodeIndexError):
            buffer.set(new if isinstance(indices, list) else new[0], at_indices=indices, neg_index_as_lookback=neg)
        assert_rows_equal(buffer.data, rows, rows[0])
        return
    if isinstance(targets, int):
        buffer.set(make(50), at_indices=indices, neg_index_as_lookback=neg)
        rows[targets] = make(50)
    else:
        assume(targets)
        new = [make(50 + i) for i in range(len(targets))]
        stacked = data.draw(st.booleans())
        buffer.set(stack(new) if stacked else new, at_indices=indices, neg_index_as_lookback=neg)
        for target, row in zip(targets, new):
            rows[target] = row
    assert_rows_equal(buffer.data, rows, make(0))


def stack(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: stack([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stack([row[i] for row in rows]) for i in range(len(rows[0])))
    return np.stack([np.asarray(row) for row in rows])


@pytest.mark.parametrize(
    ("new", "indices"),
    [([1, 2], None), ([1, 2, 3, 4], None), ([1], slice(0, 2)), ([1, 2], slice(0, 9)), ([7], [0, 1])],
)
def test_set_with_another_number_of_rows_raises_and_changes_nothing(new: list[int], indices: Any) -> None:
    buffer = InfiniteLookbackBuffer(list(ROWS), lookback=2)
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:"):
        buffer.set(new, at_indices=indices)
    np.testing.assert_array_equal(buffer.data, ROWS)


@pytest.mark.parametrize("space", [gym.spaces.Text(5), None])
def test_no_rows_of_things_that_are_not_arrays(space: Any) -> None:
    assert len(InfiniteLookbackBuffer(space=space).get()) == 0


def test_finalizing_changes_nothing() -> None:
    buffer = InfiniteLookbackBuffer([1, 2], lookback=1)
    before = buffer.data
    buffer.finalize()
    assert buffer.finalized and buffer.data.base is before.base and buffer.get().tolist() == [2]


def test_a_committed_row_before_a_raw_newest_one_is_written_in_its_place() -> None:
    buffer = InfiniteLookbackBuffer([1.0, 2.0])
    buffer.stage("raw")
    buffer.set(9.0, at_indices=-2)
    assert buffer.get([0, 1]).tolist() == [1.0, 9.0] and buffer.get(-1) == "raw"


def test_columns_without_rows_are_equal_whatever_was_in_them():
    emptied = InfiniteLookbackBuffer([1.0])
    emptied.pop()
    assert emptied == InfiniteLookbackBuffer() == InfiniteLookbackBuffer(["text"]).copy_rows(range(0), 0)
    assert emptied != InfiniteLookbackBuffer([1.0])


UNHELD = [
    ([1, 2], gym.spaces.Discrete(3), float("nan")),
    ([np.uint8(1)], gym.spaces.Box(0, 9, (), np.uint8), -1),
    ([np.int8(1)], gym.spaces.Box(0, 9, (), np.int8), 1000),
    ([np.float32(1)], gym.spaces.Box(0, 9, (), np.float32), 1e300),
]


@pytest.mark.parametrize(("rows", "space", "fill"), [*UNHELD, ([1, 2], None, "text")])
@pytest.mark.parametrize("indices", [9, slice(0, 9), [0, 9]])
def test_a_fill_value_that_the_column_cannot_hold_is_named(
    rows: list[Any], space: Any, fill: Any, indices: Any
) -> None:
    with pytest.raises(ColumnError, match="fill rows"):
        InfiniteLookbackBuffer(rows, space=space).get(indices, fill=fill)


@pytest.mark.parametrize(("rows", "fill"), [*((rows, fill) for rows, _, fill in UNHELD), ([True, False], np.nan)])
@pytest.mark.parametrize("indices", [slice(0, 9), slice(-3, None), slice(-3, 9, 2), [0, 9]])
def test_without_a_space_the_type_of_filled_rows_is_one_that_holds_both(
    rows: list[Any], fill: Any, indices: Any
) -> None:
    found = InfiniteLookbackBuffer(rows).get(indices, fill=fill, neg_index_as_lookback=True)
    listed = (
        indices if isinstance(indices, list) else range(indices.start, indices.stop or len(rows), indices.step or 1)
    )
    expected = np.array([rows[at] if 0 <= at < len(rows) else fill for at in listed])
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_one_hot_rows_may_be_filled_with_what_their_numbers_cannot_hold() -> None:
    buffer = InfiniteLookbackBuffer([1], space=gym.spaces.Discrete(2))
    found = buffer.get(slice(0, 2), fill=np.nan, one_hot_discrete=True)
    np.testing.assert_array_equal(found, np.array([[0, 1], [np.nan, np.nan]], np.float32))
