from __future__ import annotations

import pytest

from epibatch.core.errors import UnknownNameError
from epibatch.core.state_codec import chosen_parts

PARTS = {name: name.upper for name in ("a", "b", "c")}


@pytest.mark.parametrize(
    ("components", "not_components", "names"),
    [(None, None, "abc"), ("b", None, "b"), (["c", "a"], None, "ac"), (None, "b", "ac"), (["a", "b"], ["a"], "b")],
)
def test_parts_in_their_own_order(components, not_components, names):
    assert chosen_parts(PARTS, components, not_components) == {name: name.upper() for name in names}
    assert list(chosen_parts(PARTS, components, not_components)) == list(names)


def test_parts_that_are_not_wanted_are_not_made():
    assert chosen_parts({"a": dict, "b": lambda: 1 / 0}, "a", None) == {"a": {}}


@pytest.mark.parametrize("names", [("d", None), (None, ["a", "d"])])
def test_unknown_names(names):
    with pytest.raises(UnknownNameError, match=r"get_state\(\.\.\.\)\n.*\n.*'d'\n.*Known: a, b, c"):
        chosen_parts(PARTS, *names)
