"""Memory is measured as it is: what a call needs at most, and how a training grows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from benchmarks.memory import MIB, Growth, in_a_process, peak_of, stacked, train
from benchmarks.names import OURS

linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory can be reset on Linux only")


def needs(size, kept):
    """Touch so many MiB, and give back all but some."""
    whole = np.ones(size * MIB, np.uint8)
    return whole[: kept * MIB].copy()


def peak_of_needs(size, kept):
    peak, output = peak_of(lambda: needs(size, kept))
    return peak / MIB, output.nbytes / MIB


@pytest.mark.slow
@linux
@pytest.mark.parametrize(("size", "kept"), [(40, 40), (80, 0)])
def test_the_peak_is_what_was_needed_at_once(size, kept):
    peak, output = in_a_process(peak_of_needs, size, kept)
    assert output == kept
    assert size + kept - 1 < peak < size + kept + 4


@pytest.mark.slow
@linux
def test_a_batch_of_stacked_frames():
    peak, size = in_a_process(stacked, OURS, 256)
    assert size == pytest.approx(256 * 84 * 84 * 4 / MIB, rel=0.01)
    assert size < peak + 1 < 3 * size


def test_growth_is_the_slope_behind_the_warm_up():
    growth = Growth([0, 1_000_000, 2_000_000, 3_000_000], [0, 500 * MIB, 503 * MIB, 506 * MIB])
    assert growth.per_million(1_000_000) == pytest.approx(3.0)
    assert growth.per_million(0) > 100


@pytest.mark.slow
@linux
def test_a_training_is_looked_at_every_so_often():
    growth = train(2500, 1000, num_envs=4, say=False)
    assert [step // 1000 for step in growth.steps] == [1, 2]
    assert all(size > 50 * MIB for size in growth.bytes)
