"""Names of columns, and what they are called elsewhere."""

from __future__ import annotations

import pytest

from epibatch.core.columns import Columns, column_meant, nearest_column, note_columns
from epibatch.core.errors import UnknownNameError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("observations", "obs"),
        ("next_obs", "new_obs"),
        ("reward", "rewards"),
        ("dones", "terminateds"),
        ("values", "vf_preds"),
        ("obs", "obs"),
        ("mine", "mine"),
    ],
)
def test_what_a_name_means(name, meant):
    assert column_meant(name) == meant


def test_no_column_of_ours_means_another():
    own = [name for key, name in vars(Columns).items() if key.isupper()]
    assert [column_meant(name) for name in own] == own


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("observations", ["actions", "obs"], "did you mean 'obs'? Known: actions, obs"),
        ("action", ["actions", "obs"], "did you mean 'actions'? Known: actions, obs"),
        ("observations", ["observation"], "did you mean 'observation'? Known: observation"),
        ("reward", ["obs"], "Known: obs"),
        ("obs", [], "Known: none"),
    ],
)
def test_the_nearest_column(name, known, said):
    assert nearest_column(name, known) == said


@pytest.mark.parametrize(
    ("batch", "columns"),
    [
        ({}, "none"),
        ({"obs": 1, "rewards": {("e",): [1.0]}}, "obs, rewards"),
        ({"red": {"obs": 1, "t": 2}, "blue": {"obs": 1}}, "red/obs, red/t, blue/obs"),
    ],
)
def test_a_column_that_is_not_there_comes_with_those_that_are(batch, columns):
    error = KeyError("speed")
    note_columns(error, batch, "Add it.")
    (note,) = error.__notes__
    assert note.endswith(f"no column 'speed' at this place. Its columns: {columns}. Add it.")


@pytest.mark.parametrize("error", [KeyError("obs"), KeyError(3), KeyError(), ValueError("x"), UnknownNameError("x")])
def test_other_errors_stay_as_they_are(error):
    note_columns(error, {"obs": 1})
    assert not hasattr(error, "__notes__")
