"""Differences between two sides are seen, and named."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.equality import DifferentValuesError, check_same

OURS = {"obs": np.arange(6.0).reshape(3, 2), "state_in": {"h": np.zeros(3, np.float32)}}


def test_the_same():
    check_same(OURS, {"state_in": {"h": np.zeros(3, np.float32)}, "obs": OURS["obs"].copy()}, whose="floor")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"obs": OURS["obs"]}, "epibatch and floor: only one side has state_in/h"),
        ({**OURS, "more": np.zeros(3)}, "only one side has more"),
        ({**OURS, "obs": OURS["obs"].astype(np.float32)}, r"obs is float64 \[3, 2\], and float32 \[3, 2\]"),
        ({**OURS, "obs": OURS["obs"].T}, r"obs is float64 \[3, 2\], and float64 \[2, 3\]"),
        ({**OURS, "obs": OURS["obs"] + [[0, 0], [0, 0], [0, 1]]}, "obs has 1 other values"),
        ({**OURS, "state_in": {"h": np.full(3, np.nan, np.float32)}}, "state_in/h has 3 other values"),
    ],
)
def test_differences(other, message):
    with pytest.raises(DifferentValuesError, match=message):
        check_same(OURS, other, whose="floor")


def test_what_is_compared_otherwise_or_roughly():
    other = {**OURS, "obs": OURS["obs"] + 0.01}
    check_same(OURS, other, whose="floor", but=("obs",))
    check_same(OURS, other, whose="floor", close={"obs": 0.011})
    check_same(OURS, {**OURS, "obs": OURS["obs"] + [[0, 0], [0, 0], [0, 1]]}, whose="floor", rows=[0, 1])
    with pytest.raises(DifferentValuesError, match=r"obs differs by up to 0\.01"):
        check_same(OURS, other, whose="floor", close={"obs": 0.009})
    with pytest.raises(DifferentValuesError, match="differs by up to nan"):
        check_same(OURS, {**OURS, "obs": OURS["obs"] * np.nan}, whose="floor", close={"obs": 1.0})
