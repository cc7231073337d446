"""Equal rows have equal hashes, others do not, on both sides; the numbers never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epibatch.connectors.columns import HashColumns
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ColumnError
from fixture_pieces import UserPiece, played, trained


def hashed_rows(*columns):
    """The hashes of the rows of several columns of a batch."""
    given = {str(i): column for i, column in enumerate(columns)}
    adds, hashes = UserPiece(lambda batch, episodes: given), HashColumns(columns=list(given))
    return LearnerConnectorPipeline(connectors=[adds, hashes])(episodes=[played([0, 1])])["hash"]


def test_equal_observations_have_equal_hashes_wherever_they_are(nested):
    episodes = [nested.episode(6), nested.episode(6, "f")]
    batch = nested.train([HashColumns(columns=["obs/info/gear"], to="key")], episodes)
    keys = batch["key"]
    assert keys.dtype == np.int64 and keys.tolist() == hashed_rows(np.arange(6) % 5).tolist() * 2
    assert keys[0] == keys[5] and len(set(keys[:5].tolist())) == 5
    assert set(batch) == {"obs", "actions", "rewards", "terminateds", "truncateds", "vf_preds", "key"}
    for t in range(6):
        acting, _ = nested.act([HashColumns(columns=["obs/info/gear"], to="key")], [nested.episode(t)])
        assert acting["key"].tolist() == [keys[t]]


def test_several_columns_are_one_row(nested):
    piece = HashColumns(columns=["obs", "actions"])
    batch = nested.train([piece], [nested.episode(4), nested.episode(4, "f")])
    assert batch["hash"][:4].tolist() == batch["hash"][4:].tolist()
    assert len(set(batch["hash"].tolist())) == 4
    other = nested.train([HashColumns()], [nested.episode(4)])
    assert not set(other["hash"].tolist()) & set(batch["hash"].tolist())


def test_a_name_that_is_taken(nested):
    with pytest.raises(ColumnError, match="choose another name"):
        nested.train([], [nested.episode(2)], behind=[HashColumns(to="rewards")])


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


ROW_MAP = st.sampled_from(["f4", "f8", "u1", "i2", "i8", "?"]).flatmap(
    lambda kind: hnp.arrays(kind, st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(1, 3)))
)


@settings(max_examples=100, deadline=None)
@given(rows=ROW_MAP)
def test_equals_the_loop(rows):
    rows = np.nan_to_num(rows) + np.zeros((), rows.dtype) if rows.dtype.kind == "f" else rows
    assert hashed_rows(rows).tolist() == [by_hand(np.ascontiguousarray(row).tobytes()) for row in rows]


def test_places_count():
    one, other = np.array([[1, 2]]), np.array([[2, 1]])
    hashes = [hashed_rows(*columns).item() for columns in ((one,), (other,), (one, other), (other, one))]
    assert len(set(hashes)) == 4


@pytest.mark.parametrize("form", [np.str_, np.array, np.bytes_, lambda text: text.encode()])
def test_text_is_hashed_in_whatever_type_it_comes(form):
    texts = ["left", "right", "left"]
    plain = hashed_rows(np.array([text.encode() for text in texts] if isinstance(form("a"), bytes) else texts)).tolist()
    observed = trained([HashColumns(columns="obs")], [played([*map(form, texts), form("x")])])["hash"].tolist()
    assert observed == plain and plain[0] == plain[2] != plain[1]


def test_strings():
    rows = np.array(["left", "right", "left"])
    for own in (rows, rows.astype(object), rows.astype("S")):
        first, second, third = hashed_rows(own).tolist()
        assert first == third != second
    assert hashed_rows(rows).tolist() == hashed_rows(rows.astype("U9")).tolist()


def test_other_objects_are_refused():
    with pytest.raises(ColumnError, match="rows of numbers or strings"):
        hashed_rows(np.array([{}, {}]))
