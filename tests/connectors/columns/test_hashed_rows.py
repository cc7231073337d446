"""Equal rows have equal hashes, others do not; the numbers never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epibatch.connectors.columns.hash_columns import hashed_rows
from epibatch.core.errors import ColumnError

MASK = (1 << 64) - 1


def mixed(word):
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & MASK
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def by_hand(row):
    """The hash of one row of bytes, in integers without end."""
    row += b"\0" * (-len(row) % 8)
    words = [int.from_bytes(row[i : i + 8], "little") for i in range(0, len(row), 8)]
    total = sum(mixed((word + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i, word in enumerate(words)) & MASK
    return (mixed(total) ^ 1 << 63) - (1 << 63)


ROWS = st.sampled_from(["f4", "f8", "u1", "i2", "i8", "?"]).flatmap(
    lambda kind: hnp.arrays(kind, st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(1, 3)))
)


@settings(max_examples=100, deadline=None)
@given(rows=ROWS)
def test_equals_the_loop(rows):
    rows = np.nan_to_num(rows) + np.zeros((), rows.dtype) if rows.dtype.kind == "f" else rows
    assert hashed_rows([rows], "t").tolist() == [by_hand(np.ascontiguousarray(row).tobytes()) for row in rows]


@settings(max_examples=60, deadline=None)
@given(rows=hnp.arrays("i1", st.tuples(st.integers(1, 30), st.integers(1, 2)), elements=st.integers(-1, 1)))
def test_as_many_hashes_as_rows_that_differ(rows):
    hashes = hashed_rows([rows], "t")
    assert len(set(hashes.tolist())) == len({tuple(row) for row in rows.tolist()})
    order = np.random.default_rng(0).permutation(len(rows))
    assert np.array_equal(hashed_rows([rows[order]], "t"), hashes[order])


def test_signs_and_places_count():
    rows = np.array([[1.0, 1.0], [-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]])
    assert len(set(hashed_rows([rows], "t").tolist())) == 4
    one, other = np.array([[1, 2]]), np.array([[2, 1]])
    assert hashed_rows([one], "t") != hashed_rows([other], "t")
    assert hashed_rows([one, other], "t") != hashed_rows([other, one], "t")


def test_a_million_rows_differ():
    rows = np.arange(1 << 20).reshape(-1, 1)
    assert len(np.unique(hashed_rows([rows], "t"))) == len(rows)


def test_strings():
    rows = np.array(["left", "right", "left"])
    for own in (rows, rows.astype(object), rows.astype("S")):
        first, second, third = hashed_rows([own], "t").tolist()
        assert first == third != second
    assert hashed_rows([rows], "t").tolist() == hashed_rows([rows.astype("U9")], "t").tolist()


def test_numbers_stay_what_they_are():
    assert hashed_rows([np.arange(2)], "t").tolist() == [by_hand(bytes(8)), by_hand((1).to_bytes(8, "little"))]


def test_other_objects_are_refused():
    with pytest.raises(ColumnError, match="rows of numbers or strings"):
        hashed_rows([np.array([{}, {}])], "t")
