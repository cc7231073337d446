"""Names of columns, what they are called elsewhere, and which of a batch are read."""

from __future__ import annotations

import copy
import pickle

import pytest

from epibatch.core.columns import Columns, TrackedBatch, add_column_hint, canonical_column, nearest_column
from epibatch.core.errors import ColumnError, UnknownNameError


@pytest.mark.parametrize(
    ("name", "meant"), [("observations", "obs"), ("next_obs", "new_obs"), ("dones", "terminateds"), ("mine", "mine")]
)
def test_what_a_name_means(name, meant):
    assert canonical_column(name) == meant


def test_no_column_of_ours_means_another():
    own = [name for key, name in vars(Columns).items() if key.isupper()]
    assert [canonical_column(name) for name in own] == own


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("observations", ["actions", "obs"], "did you mean 'obs'? Known: actions, obs"),
        ("action", ["actions", "obs"], "did you mean 'actions'? Known: actions, obs"),
        ("terminateds", ["dones", "obs"], "did you mean 'dones'? Known: dones, obs"),
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
    add_column_hint(error, batch, "Add it.")
    first, *rest = str(error).splitlines()
    assert first.startswith("'speed'. ") and first.endswith(f"no column 'speed' at this place. Its columns: {columns}.")
    assert error.args == ("speed",) and error.__notes__ == ["Add it."] and rest in ([], ["Add it."])
    assert str(pickle.loads(pickle.dumps(error))).splitlines()[0] == first


@pytest.mark.parametrize("error", [KeyError("obs"), KeyError(3), KeyError(), ValueError("x"), UnknownNameError("x")])
def test_other_errors_stay_as_they_are(error):
    add_column_hint(error, {"obs": 1})
    assert not hasattr(error, "__notes__")


def matched(batch, name):
    match batch:
        case {"b": found}:
            return found


def joined_in_place(batch, name):
    batch |= {"c": 3}
    return batch.get(name)


READS_ONE = {
    "by name": lambda batch, name: batch[name],
    "get": lambda batch, name: batch.get(name, 1),
    "asking": lambda batch, name: name in batch,
    "pop": lambda batch, name: batch.pop(name),
    "setdefault": lambda batch, name: batch.setdefault(name, 3),
    "deleting": lambda batch, name: batch.__delitem__(name),
    "a pattern": matched,
    "joined in place": joined_in_place,
}
READS_ALL = {
    "all names": lambda batch, name: list(batch),
    "items": lambda batch, name: dict(batch.items()),
    "backwards": lambda batch, name: list(reversed(batch)),
    "copying": lambda batch, name: batch.copy().get(name),
    "a shallow copy": lambda batch, name: copy.copy(batch).get(name),
    "a deep copy": lambda batch, name: copy.deepcopy(batch).get(name),
    "into another": lambda batch, name: {}.update(batch),
    "keywords": lambda batch, name: (lambda **own: None)(**batch),
    "joined": lambda batch, name: batch | {"c": 3},
}


@pytest.mark.parametrize("how", [*READS_ONE, *READS_ALL])
def test_reads_are_recorded_and_reading_what_was_left_out_is_an_error(how):
    function, read = {**READS_ONE, **READS_ALL}[how], set()
    function(TrackedBatch({"a": 1, "b": 2}, read), "b")
    assert read == ({"b"} if how in READS_ONE else {"a", "b"})
    with pytest.raises(ColumnError, match=r"'b'[\s\S]*columns='all'|columns='auto'[\s\S]*'b'"):
        function(TrackedBatch({"a": 1}, set(), {"b"}), "b")


def test_writing_and_counting_are_no_reads():
    read = set()
    batch = TrackedBatch({"a": 1}, read, {"b"})
    batch.update(c=3)
    assert len(batch) == 2 and not read
    assert batch.get("x") is None and "x" not in batch and read == {"x"}
    for wrong in (lambda: batch["x"], lambda: TrackedBatch({"a": 1}, set())["x"]):
        with pytest.raises(KeyError):
            wrong()


def test_one_that_was_written_is_there_in_copies_too():
    batch = TrackedBatch({"a": 1}, set(), {"b"})
    batch["b"] = 2
    assert batch["b"] == batch.get("b") == 2 and "b" in batch
    assert {**batch} == dict(batch) == {"a": 1, "b": 2}
    assert batch.pop("b", None) == 2
    with pytest.raises(TypeError):
        batch | [1]
    with pytest.raises(TypeError):
        [1] | batch
