"""Errors: their four parts as attributes and as text, and what copies, pickles and the old spelling give."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings

import pytest

from epibatch.core import errors

PARTS = {"expected": "shape (4,)", "found": "shape (3,)", "do": "return the space's shape"}
TEXT = "env 3, reset()\n  expected: shape (4,)\n  found:    shape (3,)\n  do:       return the space's shape"
CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception) and kind.__doc__
]
PUBLIC = [kind for kind in CLASSES if kind.__name__ in errors.__all__]


def test_every_public_error_is_tried():
    assert len(PUBLIC) == sum(name[0].isupper() for name in errors.__all__)


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_four_parts_are_text_and_attributes_after_copies_too(kind):
    made = kind("env 3, reset()", **PARTS)
    for error in (made, copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(error) is kind
        assert str(error) == TEXT
        assert {name: getattr(error, name) for name in ("where", *PARTS)} == {"where": "env 3, reset()", **PARTS}


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_a_whole_message_has_no_parts(kind):
    error = pickle.loads(pickle.dumps(kind("all said")))
    assert str(error) == "all said"
    assert (error.where, error.expected, error.found, error.do) == (None, None, None, None)
    error = kind("here", expected=4, found=None, do="")
    assert str(error) == "here\n  expected: 4\n  found:    None\n  do:" and error.expected == "4"


def test_context_stands_before_the_text_and_leaves_the_parts():
    error = errors.SpaceError("env 3, reset()", **PARTS)
    errors.add_context(error, "in piece 2:")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == f"in piece 2:\n{TEXT}"
    assert again.where == "env 3, reset()"


class OldKeyError(KeyError):
    """A KeyError of Python 3.10, whose tracebacks print no notes."""

    @property
    def add_note(self):
        raise AttributeError


@pytest.mark.parametrize("kind", [KeyError, OldKeyError])
def test_a_key_error_is_printed_with_its_notes(kind):
    error = kind("speed")
    errors.add_note(error, "in piece 2")
    errors.add_note(error, "of the pipeline")
    printed = "".join(traceback.format_exception(kind, error, None))
    assert "'speed'\nin piece 2\nof the pipeline\n" in printed
    assert error.args == ("speed",) and error.__notes__ == ["in piece 2", "of the pipeline"]


def test_a_warning_has_the_same_parts():
    with pytest.warns(UserWarning, match="shape") as caught:
        warnings.warn(errors.EpibatchWarning("env 3, reset()", **PARTS), stacklevel=1)
    assert str(caught[0].message) == TEXT
    assert caught[0].message.found == "shape (3,)"


def test_the_old_spelling_says_what_to_write():
    with pytest.raises(errors.RenamedError, match="SomeError"):
        from epibatch.core.errors import explain  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute 'explainer'"):
        errors.explainer  # noqa: B018


def test_a_long_value_is_shown_without_its_middle():
    value = repr(tuple(range(5000)))
    error = errors.ColumnError("here", expected="a dict", found=f"tuple: {value}", do="return it")
    assert len(error.found) < 500 and error.found.startswith("tuple: (0, 1,") and "4999)" in error.found
    assert f"{len(value) + 7:,} characters" in error.found and error.found in str(error)
    assert errors.ColumnError("here", expected="a dict", found="x" * 400, do="return it").found == "x" * 400
