"""Arguments of pieces that mean the same, and those that do not."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from epibatch.connectors.common import FrameStacking
from epibatch.connectors.sameness import mean_the_same


def power(x, k=1):
    return x**k


def times(factor):
    return lambda x: x * factor


def stretched(factor):
    def inner(x):
        def innermost(y):
            return y * factor

        return innermost(x)

    return inner


def keyword(k):
    def inner(x, *, by=k):
        return x * by

    return inner


def with_global(value, body="lambda x: x * FACTOR"):
    return eval(body, {"FACTOR": value, "np": np})


def deep(value, levels=20):
    for _ in range(levels):
        value = [value]
    return value


def network(seed, **options):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LeakyReLU(**options), torch.nn.BatchNorm1d(3))


class Body(torch.nn.Module):
    def __init__(self, seed, scale=1.0):
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.scale = torch.nn.Linear(2, 2), scale


class Slots:
    __slots__ = ("__private", "a")

    def __init__(self, a, private=0):
        self.a, self.__private = a, private


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, x):
        return x * self.factor


@dataclass
class Statistics:
    mean: Any
    function: Any = None


def hooked(seed):
    body = Body(seed)
    body.register_forward_hook(power)
    return body


def tied():
    held = Scaler(2)
    held.me = held
    return held


def shared(value, levels=40):
    for _ in range(levels):
        value = [value, value]
    return value


MAKERS = {
    "what is in many places": shared,
    "partial": lambda k: functools.partial(power, k=k),
    "partial of positional": lambda k: functools.partial(power, k),
    "partial of another function": lambda k: functools.partial((power, np.tanh)[k]),
    "closure": times,
    "nested code": stretched,
    "nested constants": lambda k: (lambda x: [i + 1 for i in x], lambda x: [i + 2 for i in x])[k],
    "lambda in a lambda": lambda k: (lambda x: (lambda y: y + 1)(x), lambda x: (lambda y: y - 1)(x))[k],
    "keyword defaults": keyword,
    "globals": with_global,
    "globals of nested code": lambda k: with_global(k, "lambda x: [i * FACTOR for i in x]"),
    "a function among globals": lambda k: with_global(times(k), "lambda x: FACTOR(x)"),
    "attributes of functions": lambda k: functools.update_wrapper(lambda x: x, Scaler(k)),
    "kinds of constants": lambda k: (lambda x: x * 2, lambda x: x * 2.0)[k],
    "deep": deep,
    "tensors": lambda k: torch.tensor([1.0, float(k), float("nan")]),
    "tensors in structures": lambda k: {"a": [torch.arange(3) + k]},
    "networks": network,
    "networks' settings": lambda k: network(0, negative_slope=0.1 * (k + 1)),
    "networks of one's own": Body,
    "networks' attributes": lambda k: Body(0, scale=k),
    "networks with hooks": hooked,
    "scripted networks": lambda k: torch.jit.script(network(k)),
    "weights": lambda k: network(k).state_dict(),
    "arrays of objects": lambda k: np.array([times(k), None], object),
    "methods": lambda k: Scaler(k).scale,
    "slots": Slots,
    "private slots": lambda k: Slots(0, k),
    "dataclasses of arrays": lambda k: Statistics(np.arange(3) + k),
    "dataclasses of functions": lambda k: Statistics(0, times(k)),
    "compiled parts": lambda k: operator.itemgetter(k),
    "pieces": lambda k: FrameStacking(num_frames=k + 2),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", MAKERS)
def test_equal_arguments_mean_the_same_and_others_do_not(kind):
    make = MAKERS[kind]
    assert mean_the_same(make(0), make(0)) and mean_the_same(make(1), make(1))
    assert not mean_the_same(make(0), make(1))
    assert not mean_the_same(make(1), make(0))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2, 2.0),
        ((1, [2]), [1, (2,)]),
        (float("nan"), float("nan")),
        (FrameStacking(num_frames=4), FrameStacking(num_frames=4, axis=None)),
        (tied(), tied()),
    ],
)
def test_what_is_written_in_another_way_means_the_same(one, other):
    assert mean_the_same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (deep(0, 200), deep(0, 200)),  # too deep to tell
        (np.tanh, np.sinh),
        (object(), object()),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.nn.Linear(4, 3), None),
        (torch.nn.LazyLinear(3), torch.nn.LazyLinear(3)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (np.zeros(2), np.zeros(3)),
        (times(1), power),
        (Scaler, Slots),
    ],
)
def test_what_differs_or_cannot_be_told_is_not_the_same(one, other):
    assert not mean_the_same(one, other)


def test_docstrings_and_names_do_not_matter():
    def one(x):
        """Twice."""
        return 2 * x

    def other(value):
        """Two times."""
        return 2 * value

    assert mean_the_same(one, other)
