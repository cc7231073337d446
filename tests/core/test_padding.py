from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.padding import (
    create_mask_and_seq_lens,
    pad,
    padded_layout,
    placed_layout,
    split_and_zero_pad,
    split_and_zero_pad_n_episodes,
    unpad,
    unpad_data_if_necessary,
)
from epibatch.core.structs import BatchedNdArray

COUNTS = st.lists(st.integers(0, 17), max_size=12)


def slow_pad(rows: np.ndarray, counts: list[int], steps: int) -> np.ndarray:
    sequences, start = [], 0
    for count in counts:
        for first in range(0, count, steps):
            sequence = np.zeros((steps, *rows.shape[1:]), rows.dtype)
            for t in range(first, min(first + steps, count)):
                sequence[t - first] = rows[start + t]
            sequences.append(sequence)
        start += count
    return np.array(sequences, rows.dtype).reshape(len(sequences), steps, *rows.shape[1:])


@given(COUNTS, st.integers(1, 7), st.sampled_from([(), (3,), (2, 2)]), st.sampled_from(["f4", "i8", "u1", "?"]))
def test_pad_equals_the_loop_over_rows_and_unpad_inverts_it(counts, steps, shape, dtype):
    total = sum(counts)
    rows = (np.arange(1, total * int(np.prod(shape)) + 1).reshape(total, *shape) % 251).astype(dtype)
    layout = padded_layout(counts, steps)
    padded = pad(rows, layout)
    expected = slow_pad(rows, counts, steps)
    assert padded.dtype == rows.dtype and padded.shape == expected.shape
    np.testing.assert_array_equal(padded, expected)
    np.testing.assert_array_equal(unpad(padded, layout), rows)


@given(COUNTS, st.integers(1, 7))
def test_layout_places_rows(counts, steps):
    layout = padded_layout(counts, steps)
    lens, chunks = [], []
    for chunk, count in enumerate(counts):
        for first in range(0, count, steps):
            lens.append(min(steps, count - first))
            chunks.append(chunk)
    assert layout.seq_lens.tolist() == lens and layout.seq_lens.dtype == np.int64
    assert layout.sequence_chunks.tolist() == chunks
    assert layout.mask.sum(axis=1).tolist() == lens
    assert layout.num_sequences == len(lens) and layout.num_rows == sum(counts)
    flat = np.arange(layout.num_rows)
    np.testing.assert_array_equal(layout.source[layout.destination], flat)
    np.testing.assert_array_equal(np.sort(np.r_[layout.destination, layout.holes]), np.arange(layout.mask.size))


def test_seven_rows_in_sequences_of_four():  # RLlib: seq_lens [4, 3]
    layout = padded_layout([7], 4)
    assert layout.seq_lens.tolist() == [4, 3]


@pytest.mark.parametrize(
    ("length", "steps", "masks", "lens"),
    [  # as RLlib 2.60 gives them
        (5, 3, [[True] * 3, [True, True, False]], [3, 2]),
        (6, 3, [[True] * 3] * 2, [3, 3]),
        (2, 3, [[True, True, False]], [2]),
        (0, 3, [[False] * 3], [0]),
    ],
)
def test_create_mask_and_seq_lens(length, steps, masks, lens):
    found_masks, found_lens = create_mask_and_seq_lens(length, steps)
    assert [mask.tolist() for mask in found_masks] == masks
    assert found_lens == lens and all(type(length) is int for length in found_lens)


def test_split_and_zero_pad_values_recorded_from_rllib():
    rows = split_and_zero_pad([np.arange(2) + i for i in range(5)], 3)
    assert [row.tolist() for row in rows] == [[[0, 1], [1, 2], [2, 3]], [[3, 4], [4, 5], [0, 0]]]
    rows = split_and_zero_pad([1, 2, 3, 4], 3)
    assert [row.tolist() for row in rows] == [[1, 2, 3], [4, 0, 0]] and rows[0].dtype == np.int64
    tagged = [BatchedNdArray(np.arange(10.0).reshape(5, 2)), BatchedNdArray(np.arange(4.0).reshape(2, 2))]
    rows = split_and_zero_pad(tagged, 3)
    assert [row.tolist() for row in rows] == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [8, 9], [0, 1]],
        [[2, 3], [0, 0], [0, 0]],
    ]
    structs = split_and_zero_pad([{"a": np.full(2, i), "b": (i, 2.0)} for i in range(4)], 3)
    assert structs[1]["a"].tolist() == [[3, 3], [0, 0], [0, 0]]
    assert structs[1]["b"][0].tolist() == [3, 0, 0] and structs[1]["b"][1].tolist() == [2.0, 0, 0]


def test_split_n_episodes_and_back_as_rllib():
    rows = split_and_zero_pad_n_episodes(np.arange(9.0), [5, 4], 3)
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4, 0], [5, 6, 7], [8, 0, 0]]
    assert unpad_data_if_necessary([5, 4], np.stack(rows)).tolist() == list(range(9))
    flat = np.arange(9.0)
    assert unpad_data_if_necessary([5, 4], flat) is flat


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: padded_layout([1], 0), ConfigError, r"max_seq_len[\s\S]*found:    0"),
        (lambda: padded_layout([1], True), ConfigError, "max_seq_len"),
        (lambda: padded_layout([-1], 2), ColumnError, "integers >= 0"),
        (lambda: padded_layout([1.5], 2), ColumnError, "integers >= 0"),
        (lambda: pad(np.zeros(3), padded_layout([2], 2)), ColumnError, "expected: 2 rows"),
        (lambda: unpad(np.zeros((2, 3)), padded_layout([2], 2)), ColumnError, r"leading shape \(1, 2\)"),
        (lambda: split_and_zero_pad([], 2), ColumnError, "an empty list"),
        (lambda: split_and_zero_pad([np.zeros(2), np.zeros(3)], 2), ColumnError, r"shapes \[\(2,\), \(3,\)\]"),
        (lambda: split_and_zero_pad_n_episodes(np.zeros(9), [5, 5], 3), ColumnError, "expected: 10 rows"),
        (lambda: unpad_data_if_necessary([5, 3], np.zeros((4, 2))), ColumnError, r"leading shape \(5, 2\)"),
        (lambda: unpad_data_if_necessary([4], np.zeros((2, 3, 2))), ColumnError, r"\[R\] or \[B, T\]"),
    ],
)
def test_errors_name_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()


@given(st.lists(st.integers(0, 4), max_size=6), st.data(), st.sampled_from([(), (3,)]))
def test_rows_at_given_places_and_back(counts, data, shape):
    total = sum(counts)
    places = np.array(data.draw(st.permutations(range(2 * total)))[:total], np.int64)
    rows = np.arange(1, total * int(np.prod(shape)) + 1).reshape(total, *shape)
    layout = placed_layout(np.array(counts, np.int64), places, (total, 2))
    padded = pad(rows, layout)
    expected = np.zeros((2 * total, *shape), np.int64)
    for place, row in zip(places, rows):
        expected[place] = row
    assert np.array_equal(padded, expected.reshape(total, 2, *shape))
    assert np.array_equal(unpad(padded, layout), rows)
    assert layout.mask.sum() == total and np.array_equal(layout.kept_rows, np.arange(total))
