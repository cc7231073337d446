"""The kernel of frame stacking against two loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.common import observation_window
from epibatch.connectors.common.observation_window import stack_frames


def slow_stacks(frames, before, width):
    """Stack by stack, place by place."""
    out = np.zeros((len(frames) - before, *frames.shape[1:-1], width), frames.dtype)
    for t in range(len(out)):
        for place in range(width):
            frame = before + t - width + 1 + place
            if frame >= 0:
                out[t, ..., place] = frames[frame, ..., 0]
    return out


@given(
    width=st.integers(1, 9),
    dtype=st.sampled_from(["u1", "i1", "?", "u2", "f2", "i4", "f4", "f8", "c8"]),
    shape=st.lists(st.integers(1, 4), max_size=2),
    before=st.integers(0, 8),
    count=st.integers(0, 12),
    many_pixels=st.sampled_from([1, 10_000]),
    apart=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, derandomize=True, max_examples=400)
def test_stacks_are_what_two_loops_give(width, dtype, shape, before, count, many_pixels, apart, seed):
    before = min(before, width - 1)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, ((before + count) * (1 + apart), *shape, np.dtype(dtype).itemsize), np.uint8)
    frames = (raw % 2 == 0)[..., :1] if dtype == "?" else np.nan_to_num(raw.view(dtype))
    frames = frames[:: 1 + apart]  # frames of one environment of a block do not lie side by side
    out = np.full((count, *shape, width), 1, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observation_window, "_MANY_PIXELS", many_pixels)
        stack_frames(out, frames, before)
    np.testing.assert_array_equal(out, slow_stacks(frames, before, width))


def test_large_frames_are_stacked_as_words(monkeypatch):
    monkeypatch.setattr(observation_window, "_stack_by_place", None)
    frames = np.random.default_rng(0).integers(0, 256, (9, 84, 84, 1), np.uint8)
    out = np.empty((7, 84, 84, 4), np.uint8)
    stack_frames(out, frames, 2)
    np.testing.assert_array_equal(out, slow_stacks(frames, 2, 4))
