from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from epibatch.algorithms.random_state import get_random_state, random_state_apart, seed_everything, set_random_state
from epibatch.core import load_state, save_state


@pytest.fixture(autouse=True)
def keep_generators():
    before = get_random_state()
    yield
    set_random_state(before)


def draws():
    return torch.rand(3).tolist(), np.random.normal(size=3).tolist(), [random.gauss(0, 1) for _ in range(3)]


def test_seeding_repeats():
    seed_everything(7)
    first = draws()
    seed_everything(7)
    assert draws() == first
    seed_everything(2**40)
    assert draws() != first


def test_apart():
    seed_everything(7)
    expected, after = draws(), draws()
    seed_everything(7)
    with random_state_apart(7):
        assert draws() == expected
    assert draws() == expected
    assert draws() == after
    seed_everything(7)
    with pytest.raises(KeyError), random_state_apart(1):
        raise KeyError(draws())
    assert draws() == expected


def test_state_survives_a_file(tmp_path):
    seed_everything(1)
    draws()
    save_state(tmp_path / "random", get_random_state())
    expected = draws()
    set_random_state(load_state(tmp_path / "random"))
    assert draws() == expected
