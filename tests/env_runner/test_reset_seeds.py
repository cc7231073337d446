from __future__ import annotations

import numpy as np
import pytest

from epibatch.env_runner.env_runner import ResetSeeds


def test_a_failed_reset_leaves_its_seed_to_the_next():
    seeds = ResetSeeds(7)
    assert [seeds.next, seeds.next] == [7, 7]  # no reset succeeded in between
    seeds.used()
    assert seeds.next is None


def test_drawn_seeds_come_from_a_stream_of_the_runners_seed():
    seeds, stream = ResetSeeds(7), np.random.default_rng(7)
    for _ in range(3):
        seeds.draw()
        assert seeds.next == stream.integers(2**31)


@pytest.mark.parametrize(("seed", "used", "drawn"), [(7, True, True), (7, False, False), (None, True, False)])
def test_new_environments_are_seeded_if_the_runner_is_and_no_seed_waits(seed, used, drawn):
    seeds = ResetSeeds(seed)
    if used:
        seeds.used()
    before = seeds.next
    seeds.draw_if_seeded()
    assert (seeds.next != before) is drawn


def test_the_state_goes_on_with_the_same_seeds():
    one, other = ResetSeeds(7), ResetSeeds(8)
    one.draw()
    other.set_state(one.get_state())
    assert one.next == other.next
    one.draw(), other.draw()
    assert one.next == other.next
