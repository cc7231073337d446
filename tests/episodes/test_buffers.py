"""One column of an episode: reading and writing by index, types, the newest row, state."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, ColumnError, EpibatchError, EpisodeIndexError, SpaceError
from epibatch.episodes import InfiniteLookbackBuffer

# ---------------------------------------------------------------- the model


# ---------------------------------------------------------------- get


ROW_MAP = [10, 11, 12, 13, 14]  # 10 and 11 are the lookback


@pytest.mark.parametrize(
    ("indices", "options", "expected"),
    [
        (np.uint8(1), {}, 13),
        (np.int32(-4), {}, 11),
        (slice(np.int64(0), np.int64(2)), {}, [12, 13]),
        (slice(-8, None), {"fill": 0}, [0, 0, 0, 10, 11, 12, 13, 14]),
        (slice(5, 9), {}, []),
        # a slice over both ends is padded on both (RLlib pads the left only)
        (slice(-3, 5), {"fill": 0, "neg_index_as_lookback": True}, [0, 10, 11, 12, 13, 14, 0, 0]),
        # a start beyond the stop is an empty range, with fill as well
        (slice(7, 5), {"fill": 0}, []),
        (slice(-7, None, 2), {"fill": 0}, [0, 10, 12, 14]),
        (slice(None, None, -1), {}, [14, 13, 12]),
        (slice(-1, -4, -1), {"neg_index_as_lookback": True, "fill": 0}, [11, 10, 0]),
        ([np.int64(2), np.int64(0)], {}, [14, 12]),
        ([], {}, []),
        ([], {"fill": 0}, []),
    ],
)
@pytest.mark.parametrize("source", [list, np.array])
def test_get_table(source: Any, indices: Any, options: dict[str, Any], expected: Any) -> None:
    found = InfiniteLookbackBuffer(source(ROW_MAP), lookback=2).get(indices, **options)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.int64


@pytest.mark.parametrize(
    ("indices", "options"),
    [
        (np.int64(3), {}),
        # beyond the lookback there is nothing: no wrapping around to the end
        (-3, {"neg_index_as_lookback": True}),
        ([0, 3], {}),
    ],
)
def test_indices_outside_raise(indices: Any, options: dict[str, Any]) -> None:
    buffer = InfiniteLookbackBuffer(np.array(ROW_MAP), lookback=2)
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:[\s\S]*do:"):
        buffer.get(indices, **options)
    assert issubclass(EpisodeIndexError, IndexError)


@pytest.mark.parametrize("indices", [1.0, "0", {}, [0.5], slice(0, 1, 0)])
def test_indices_of_a_wrong_type_are_named_errors(indices: Any) -> None:
    with pytest.raises(EpibatchError):
        InfiniteLookbackBuffer(list(ROW_MAP), lookback=2).get(indices)


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


def test_one_hot_without_a_space_is_an_error() -> None:
    with pytest.raises(ValueError, match="space"):
        InfiniteLookbackBuffer([0, 1]).get(one_hot_discrete=True)


# ---------------------------------------------------------------- set


@pytest.mark.parametrize(
    ("new", "indices"),
    [([1, 2], None), ([1, 2, 3, 4], None), ([1], slice(0, 2)), ([1, 2], slice(0, 9)), ([7], [0, 1])],
)
def test_set_with_another_number_of_rows_raises_and_changes_nothing(new: list[int], indices: Any) -> None:
    buffer = InfiniteLookbackBuffer(list(ROW_MAP), lookback=2)
    with pytest.raises(EpisodeIndexError, match=r"expected:[\s\S]*found:"):
        buffer.set(new, at_indices=indices)
    np.testing.assert_array_equal(buffer.data, ROW_MAP)


@pytest.mark.parametrize("space", [gym.spaces.Text(5), None])
def test_no_rows_of_things_that_are_not_arrays(space: Any) -> None:
    assert len(InfiniteLookbackBuffer(space=space).get()) == 0


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


def test_nested_spaces() -> None:
    space = gym.spaces.Dict(d=gym.spaces.Discrete(2, start=3), x=gym.spaces.Box(-1, 1, (1,), np.float32))
    rows = {"d": np.array([4]), "x": np.array([[0.5]], np.float32)}
    found = InfiniteLookbackBuffer(rows, space=space).get([0, 1], fill=-1, one_hot_discrete=True)
    np.testing.assert_array_equal(found["d"], [[0, 1], [-1, -1]])
    np.testing.assert_array_equal(found["x"], [[0.5], [-1]])


def test_values_outside_their_space() -> None:
    with pytest.raises(SpaceError, match=r"values from 7 to 7"):
        InfiniteLookbackBuffer([7], space=gym.spaces.Discrete(2)).get(one_hot_discrete=True)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 0.5, 2], np.float64),
        ([True, 3], np.int64),
        ([np.int8(1), np.int16(300)], np.int16),
        ([np.float32(1), np.float64(0.1)], np.float64),
        ([np.uint8(200), np.int8(-1)], np.int16),
        ([np.int8(1), 300], np.int64),
        ([np.uint64(1), 2, -1], np.float64),
        ([np.float32(1), -1e300], np.float64),
        ([np.float16(1), 70000.0], np.float64),
        ([1, 2**63], np.float64),
        ([1, 2**70], object),
        ([0.5, 10**400], object),
        ([1, 2j], np.complex128),
    ],
)
@pytest.mark.parametrize("how", ["append", "extend", "set"])
def test_writes_promote_and_never_cast_down(how: str, rows: list[Any], expected: type) -> None:
    if how == "set":
        buffer = InfiniteLookbackBuffer([rows[0]] * len(rows))
        for i, row in enumerate(rows):
            buffer.set(row, at_indices=i)
    else:
        buffer = InfiniteLookbackBuffer(rows[:1])
        for row in rows[1:]:
            buffer.append(row) if how == "append" else buffer.extend([row])
    found = buffer.get()
    assert found.dtype == expected
    assert found.tolist() == rows


def test_a_number_of_python_keeps_the_type_while_that_can_hold_it() -> None:
    buffer = InfiniteLookbackBuffer([np.float32(1)])
    for row, expected in ((7, np.float32), (np.inf, np.float32), (np.nan, np.float32), (2**130, np.float64)):
        buffer.append(row)
        assert buffer.data.dtype == expected


@pytest.mark.parametrize("how", ["constructor", "append", "set"])
def test_text_stays_text(how: str) -> None:
    words = ["a", "longer", "b"]
    buffer = InfiniteLookbackBuffer(list(words) if how == "constructor" else ["x", "y", "z"] if how == "set" else None)
    for i, word in enumerate(words):
        if how == "append":
            buffer.append(word)
        elif how == "set":
            buffer.set(word, at_indices=i)
    assert [type(item) for item in buffer.get()] == [str] * 3
    assert list(buffer.get()) == words and buffer.get(1) == "longer"


@pytest.mark.parametrize(
    "new", [{"a": [5, 6], "b": [5]}, {"a": [5, 6]}, {"a": [5, 6], "c": [5, 6]}, [{"a": 1}, {"a": 1}]]
)
def test_a_refused_write_changes_no_leaf(new: Any) -> None:
    buffer = InfiniteLookbackBuffer([{"a": i, "b": i} for i in range(3)])
    stacked = {key: np.array(rows) for key, rows in new.items()} if isinstance(new, dict) else new
    with pytest.raises(EpibatchError, match=r"expected:[\s\S]*found:"):
        buffer.set(stacked, at_indices=slice(0, 2))
    np.testing.assert_array_equal(buffer.data["a"], [0, 1, 2])
    np.testing.assert_array_equal(buffer.data["b"], [0, 1, 2])


@pytest.mark.parametrize("indices", [-1, [-1], slice(1, 2)])
def test_a_staged_row_is_replaced_by_one_of_another_kind(indices: Any) -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2)])
    buffer.stage(np.ones(2))
    new: Any = {"raw": 1} if indices == -1 else [{"raw": 1}]
    buffer.set(new, at_indices=indices)
    assert buffer.last() == {"raw": 1} and buffer.raw_row() == {"raw": 1}
    back = np.full(2, 5.0)
    buffer.set(back if indices == -1 else [back], at_indices=indices)
    np.testing.assert_array_equal(buffer.data, [[0, 0], [5, 5]])


def test_the_only_row_makes_the_column_anew() -> None:
    buffer = InfiniteLookbackBuffer()
    buffer.stage({"a": 1})
    buffer.set(np.zeros(3, np.float32), at_indices=-1)
    assert buffer.form is None and buffer.data.dtype == np.float32 and buffer.data.shape == (1, 3)


def test_a_raw_row_that_does_not_fit_is_read_as_a_copy_and_kept_when_refused() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(1)])
    buffer.stage({"raw": 1})
    found = buffer.data
    assert found.dtype == object and found[1] == {"raw": 1} and len(buffer) == 2
    for refuse in (buffer.commit, lambda: buffer.append(np.zeros(1)), lambda: buffer.stage(np.zeros(1))):
        with pytest.raises(EpibatchError, match=r"expected:[\s\S]*found:"):
            refuse()
        assert buffer.last() == {"raw": 1} and len(buffer) == 2
    with pytest.raises(EpibatchError, match="raw"):
        buffer.rows(0, 2)
    np.testing.assert_array_equal(buffer.rows(0, 1)[0], [[0]])


def test_a_raw_row_of_another_shape_is_read_beside_the_others_as_an_object() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2)])
    buffer.stage(np.ones(3))
    assert [row.tolist() for row in buffer.data] == [[0, 0], [1, 1, 1]]


def test_times_are_rows_too() -> None:
    buffer = InfiniteLookbackBuffer([np.datetime64(1, "s")])
    buffer.stage(np.datetime64(2, "s"))
    buffer.append(np.datetime64(3, "s"))
    assert buffer.data.tolist() == [np.datetime64(i, "s").item() for i in (1, 2, 3)]


def test_finalizing_changes_nothing() -> None:
    buffer = InfiniteLookbackBuffer([1, 2], lookback=1)
    buffer.finalize()
    assert buffer.finalized and buffer.get().tolist() == [2]


def test_a_raw_row_of_another_type_promotes_when_it_becomes_final() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2, np.float32)])
    buffer.stage(np.full(2, 0.1))
    assert buffer.get(0).dtype == np.float32
    buffer.append(np.zeros(2, np.float32))
    assert buffer.data.dtype == np.float64 and buffer.get(1).tolist() == [0.1, 0.1]


def test_keys_may_come_in_another_order() -> None:
    buffer = InfiniteLookbackBuffer([{"a": 1, "b": 2}])
    for row in ({"b": 4, "a": 3}, {"b": 6, "a": 5}, {"b": 0.5, "a": 7}):
        buffer.stage(row)
        assert buffer.last() == row
    found = buffer.data
    np.testing.assert_array_equal(found["a"], [1, 3, 5, 7])
    np.testing.assert_array_equal(found["b"], [2, 4, 6, 0.5])


def nested_rows(count: int) -> list[dict[str, object]]:
    return [{"x": np.full(2, t, np.float32), "y": (t,)} for t in range(count)]


def test_a_state_of_a_buffer_whose_rows_are_gone_keeps_their_kind():
    buffer = InfiniteLookbackBuffer(nested_rows(1))
    buffer.pop()
    again = InfiniteLookbackBuffer.from_state(buffer.get_state())
    assert (again.data["x"].shape, again.data["x"].dtype, again.data["y"][0].dtype) == ((0, 2), np.float32, np.int64)
    again.append({"x": np.zeros(2, np.int8), "y": (1,)})
    assert (len(again), again.data["x"].dtype) == (1, np.float32)


@pytest.mark.parametrize("state", [{}, {"data": None, "lookback": 0}, None])
def test_what_is_no_state_is_named(state):
    with pytest.raises(CheckpointError, match="the state of a buffer"):
        InfiniteLookbackBuffer.from_state(state)


def test_a_number_is_added_to_every_number():
    assert (InfiniteLookbackBuffer([1, 2], lookback=1) + 0.5).data.tolist() == [1.5, 2.5]
    assert (InfiniteLookbackBuffer([np.uint8(250)]) + 10).data.tolist() == [260]
    sums = (InfiniteLookbackBuffer(nested_rows(2)) + 1).data
    assert sums["x"].tolist() == [[1, 1], [2, 2]] and sums["x"].dtype == np.float32
    assert sums["y"][0].tolist() == [1, 2]


def test_a_number_added_to_no_rows_says_nothing_of_their_kind():
    buffer = InfiniteLookbackBuffer() + 1.0
    buffer.append(np.zeros(3, np.float32))
    assert buffer.data.shape == (1, 3) and buffer.data.dtype == np.float32


def test_lists_and_nested_arrays_of_a_newest_row_are_copied() -> None:
    buffer, numbers, array = InfiniteLookbackBuffer([[1, 2]]), [3, 4], np.zeros(2)
    buffer.stage(numbers)
    numbers[0] = 9
    assert buffer.data.tolist() == [[1, 2], [3, 4]]
    buffer.stage({"a": array, "b": (numbers,)})
    array[:] = numbers[1] = 9
    assert buffer.last()["a"].tolist() == [0, 0] and buffer.last()["b"] == ([9, 4],)


def test_a_raw_row_without_others_comes_back_from_read_only_memory():
    buffer, sent = InfiniteLookbackBuffer([np.zeros(2)]), []
    buffer.stage(np.ones(3))
    buffer.pop(0)
    packed = pickle.dumps(buffer, 5, buffer_callback=sent.append)
    assert pickle.loads(packed, buffers=[bytes(part) for part in sent]).data.tolist() == [[1.0, 1.0, 1.0]]
