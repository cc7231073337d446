"""Names of columns, what they are called elsewhere, and which of a batch are read."""

from __future__ import annotations

import copy

import pytest

from epibatch.core.columns import Columns, TrackedBatch, column_meant, nearest_column, note_columns
from epibatch.core.errors import ColumnError, UnknownNameError


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


def matched(batch):
    match batch:
        case {"a": found}:
            return found


READS = {
    "by name": (lambda batch: batch["a"], {"a"}),
    "get": (lambda batch: batch.get("a"), {"a"}),
    "get of one that is not there": (lambda batch: batch.get("x", 1), {"x"}),
    "asking": (lambda batch: "a" in batch, {"a"}),
    "pop": (lambda batch: batch.pop("a"), {"a"}),
    "all names": (lambda batch: list(batch), {"a", "b"}),
    "keys": (lambda batch: batch.keys(), {"a", "b"}),
    "items": (lambda batch: dict(batch.items()), {"a", "b"}),
    "values": (lambda batch: batch.values(), {"a", "b"}),
    "unpacking": (lambda batch: {**batch}, {"a", "b"}),
    "setdefault": (lambda batch: batch.setdefault("a", 3), {"a"}),
    "setdefault of one that is not there": (lambda batch: batch.setdefault("x", 3), {"x"}),
    "deleting": (lambda batch: batch.__delitem__("a"), {"a"}),
    "popitem": (lambda batch: batch.popitem(), {"a", "b"}),
    "backwards": (lambda batch: list(reversed(batch)), {"a", "b"}),
    "copying": (lambda batch: batch.copy(), {"a", "b"}),
    "a shallow copy": (lambda batch: copy.copy(batch), {"a", "b"}),
    "a plain copy": (lambda batch: dict(batch), {"a", "b"}),
    "into another": (lambda batch: {}.update(batch), {"a", "b"}),
    "keywords": (lambda batch: (lambda **own: None)(**batch), {"a", "b"}),
    "joined": (lambda batch: batch | {"c": 3}, {"a", "b"}),
    "joined to another": (lambda batch: {"c": 3} | batch, {"a", "b"}),
    "a pattern": (lambda batch: matched(batch), {"a"}),
    "writing": (lambda batch: batch.update(c=3), set()),
    "counting": (lambda batch: len(batch), set()),
}


@pytest.mark.parametrize("how", READS)
def test_reads_are_noted(how):
    function, expected = READS[how]
    read = set()
    function(TrackedBatch({"a": 1, "b": 2}, read))
    assert read == expected


def test_values_are_those_of_the_batch():
    batch = TrackedBatch({"a": 1, "b": 2}, set())
    assert dict(batch) == {"a": 1, "b": 2} and batch.get("x") is None and batch.pop("a") == 1 and len(batch) == 1
    with pytest.raises(KeyError):
        batch["x"]


def lean():
    return TrackedBatch({"a": 1}, set(), {"b"})


def test_one_that_was_left_out_is_no_silent_none():
    batch = lean()
    assert batch["a"] == 1 and "a" in batch and batch.get("c") is None and "c" not in batch
    for function in (lambda: batch["b"], lambda: batch.get("b"), lambda: "b" in batch):
        with pytest.raises(ColumnError, match=r"'b'[\s\S]*columns='all'"):
            function()
    with pytest.raises(KeyError):
        batch["c"]
    batch["b"] = 2
    assert batch["b"] == batch.get("b") == 2 and "b" in batch


def joined_in_place(batch):
    batch |= {"c": 3}
    return batch.get("b")


ASKS = {
    "setdefault": lambda batch: batch.setdefault("b", 2),
    "pop": lambda batch: batch.pop("b", None),
    "pop without a default": lambda batch: batch.pop("b"),
    "deleting": lambda batch: batch.__delitem__("b"),
    "a copy's": lambda batch: batch.copy().get("b"),
    "a shallow copy's": lambda batch: copy.copy(batch).get("b"),
    "a deep copy's": lambda batch: copy.deepcopy(batch).get("b"),
    "joined": lambda batch: (batch | {"c": 3}).get("b"),
    "joined to another": lambda batch: ({} | batch).get("b"),
    "joined in place": joined_in_place,
    "unpacking": lambda batch: {**batch}.get("b"),
    "a plain copy": lambda batch: dict(batch).get("b"),
    "into another": lambda batch: {}.update(batch),
    "keywords": lambda batch: (lambda b=None, **own: b)(**batch),
    "all names": lambda batch: list(batch),
    "keys": lambda batch: "b" in batch.keys(),  # noqa: SIM118
    "items": lambda batch: list(batch.items()),
    "values": lambda batch: list(batch.values()),
    "popitem": lambda batch: batch.popitem(),
    "backwards": lambda batch: list(reversed(batch)),
}


@pytest.mark.parametrize("how", ASKS)
def test_whatever_would_be_silent_about_one_that_was_left_out_is_an_error(how):
    with pytest.raises(ColumnError, match=r"'b'[\s\S]*columns='all'|columns='auto'[\s\S]*'b'"):
        ASKS[how](lean())


def test_one_that_was_written_is_there_in_copies_too():
    batch = lean()
    batch.update(b=2)
    assert {**batch} == dict(batch) == {"a": 1, "b": 2}
    assert batch.pop("b", None) == 2
    with pytest.raises(TypeError):
        batch | [1]
    with pytest.raises(TypeError):
        [1] | batch
