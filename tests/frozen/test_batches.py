"""The batches of random cases, as commit c76cfcf made them.

A case is a seed: episodes of one or several agents, a pipeline with some of the built-in pieces and of a user's, and
a module of plain arithmetic. Stored are the names, keys and order of all columns, their kinds, types and shapes, and a
hash of the bytes of copied ones (`batches.json`). Values that are computed in floating point are stored as such
(`batches.npz`) and compared to 1e-5.

If a change of batches is meant, write both files again with `python tests/frozen/write_batches.py`, look at the
difference of `batches.json`, and say in the commit what changed for users.
"""

from __future__ import annotations

import numpy as np
import pytest

from frozen_batches.stored import CASES, load, values_of

STORED = load()


def test_the_stored_cases_are_all_cases():
    assert list(STORED) == list(CASES)
    assert len(STORED) >= 200


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_what_it_was(name):
    lines, values = STORED[name]
    found = CASES[name]()
    assert found.lines == lines
    np.testing.assert_allclose(values_of(found), values, rtol=1e-5, atol=1e-5)
