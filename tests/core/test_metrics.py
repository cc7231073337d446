"""Logging and reducing metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.core import metrics as names
from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.core.metrics import MetricsLogger


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({}, 2.5),
        ({"reduce": "mean", "window": 2}, 3.5),
        ({"reduce": "sum"}, 10),
        ({"reduce": "sum", "window": 3}, 9),
        ({"reduce": "min"}, 1),
        ({"reduce": "max"}, 4),
        ({"reduce": "min", "window": 2}, 3),
        ({"reduce": "item"}, 4),
        ({"reduce": "lifetime_sum"}, 10),
        ({"reduce": None}, [1, 2, 3, 4]),
        ({"reduce": None, "window": 2}, [3, 4]),
        ({"ema_coeff": 0.5}, 3.125),
        ({"reduce": "ema"}, 1 * 0.99**3 + 0.01 * (2 * 0.99**2 + 3 * 0.99 + 4)),
    ],
)
def test_reductions(options, result):
    logger = MetricsLogger()
    for value in (1, 2, 3, 4):
        logger.log_value("x", value, **options)
    assert logger.peek("x") == pytest.approx(result)
    assert logger.reduce() == {"x": pytest.approx(result)}


@pytest.mark.parametrize(
    ("options", "kept", "cleared"),
    [({"reduce": "sum"}, 6, 1), ({"reduce": "mean"}, 2.0, 1.0), ({"reduce": "max"}, 5, 1), ({"window": 9}, 2.0, 1.0)],
)
def test_clear_on_reduce(options, kept, cleared):
    for clear, expected in ((False, kept), (True, cleared)):
        logger = MetricsLogger()
        logger.log_value("x", 5 if not clear else 50, clear_on_reduce=clear, **options)
        logger.reduce()
        logger.log_value("x", 1, clear_on_reduce=clear, **options)
        if not clear and options.get("reduce", "mean") == "mean":
            logger.log_value("x", 0, clear_on_reduce=clear, **options)
        assert logger.peek("x") == expected


def test_results_after_clearing():
    logger = MetricsLogger()
    logger.log_value("sum", 3, reduce="sum", clear_on_reduce=True)
    logger.log_value(("a", "mean"), 3, clear_on_reduce=True)
    assert [logger.reduce(), logger.reduce()] == [{"sum": 3, "a": {"mean": 3.0}}, {"sum": 0}]
    assert logger.peek(("a", "mean"), None) is None


@pytest.mark.parametrize(
    ("value", "number"),
    [(np.float32(0.5), 0.5), (np.int64(3), 3), (True, 1), (torch.tensor(2.5), 2.5), (np.array([4]), 4)],
)
def test_values_become_python_numbers(value, number):
    logger = MetricsLogger()
    logger.log_value("x", value, reduce="sum")
    assert logger.reduce()["x"] == number
    assert type(logger.reduce()["x"]) in (int, float)
    logger.log_value("loss", torch.ones(1, requires_grad=True).sum(), window=5)
    assert type(logger.get_state()["metrics"]["loss",]["values"][0]) is float, "tensors are not kept"


def test_nested_keys_and_log_dict():
    logger = MetricsLogger()
    logger.log_dict({"a": 1, "b": {"c": 2}}, key=("top", "p0"), reduce="sum")
    logger.log_dict({"b": {"c": 3}}, key=("top", "p0"), reduce="sum")
    logger.log_dict({"flat": 7}, window=3)
    assert logger.reduce() == {"top": {"p0": {"a": 1, "b": {"c": 5}}}, "flat": 7.0}
    assert logger.peek("top") == {"p0": {"a": 1, "b": {"c": 5}}}
    assert logger.peek(("top", "p0", "b", "c")) == 5
    assert logger.peek() == logger.reduce()


def test_timers():
    logger = MetricsLogger()
    for _ in range(3):
        with logger.log_time(("timers", "sleep"), reduce="sum"):
            sum(range(1000))
    assert 0.0 < logger.peek(("timers", "sleep")) < 1.0
    with pytest.raises(KeyError), logger.log_time("t"):
        raise KeyError("x")
    assert logger.peek("t") > 0.0


def test_throughput(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(names.time, "perf_counter", lambda: clock[0])
    logger = MetricsLogger()
    for _ in range(2):
        logger.log_value("steps", 30, reduce="sum", with_throughput=True)
    clock[0] += 4.0
    assert logger.peek("steps", throughput=True) == 15.0
    assert logger.reduce() == {"steps": 60, "steps_throughput": 15.0}
    logger.log_value("steps", 10, reduce="sum", with_throughput=True)
    clock[0] += 2.0
    assert logger.reduce() == {"steps": 70, "steps_throughput": 5.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce": "meen"}, "did you mean 'mean'"),
        ({"window": 0}, "positive integer"),
        ({"ema_coeff": 0.1, "window": 3}, "without window"),
        ({"ema_coeff": 0.1, "reduce": "sum"}, "ema_coeff"),
        ({"reduce": "lifetime_sum", "clear_on_reduce": True}, "lifetime_sum"),
        ({"with_throughput": True}, "for a sum"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        MetricsLogger().log_value("x", 1.0, **options)


def test_wrong_keys_and_values():
    logger = MetricsLogger()
    logger.log_value(("a", "b"), 1)
    for key in ("a", ("a", "b", "c")):
        with pytest.raises(ConfigError, match="no parent or child"):
            logger.log_value(key, 1)
    with pytest.raises(ConfigError, match=r"a name of its own(.|\n)*\('a', 'b'\) beside \('a/b',\)"):
        logger.log_value("a/b", 1)  # metrics files could keep one of the two only
    with pytest.raises(ConfigError, match="as when it was first logged"):
        logger.log_value(("a", "b"), 1, reduce="sum")
    with pytest.raises(ConfigError, match="a name or a tuple"):
        logger.log_value((), 1)
    for value in ("five", np.ones(3), torch.ones(2), None):
        with pytest.raises(ConfigError, match="a number"):
            logger.log_value("x", value)
    with pytest.raises(UnknownNameError, match="did you mean 'a/b'"):
        logger.peek(("a", "bb"))
    assert logger.peek("nothing", 3) == 3


def test_state_round_trip():
    one, other = MetricsLogger(), MetricsLogger()
    other.log_value("gone", 1)

    def log(logger, value):
        logger.log_value("mean", value)
        logger.log_value(("n", "window"), value, window=2)
        logger.log_value("total", value, reduce="sum", with_throughput=False)

    for value in (1, 2, 3):
        log(one, value)
    other.set_state(one.get_state())
    for logger in (one, other):
        log(logger, 10)
    assert one.reduce() == other.reduce() == {"mean": 4.0, "n": {"window": 6.5}, "total": 16}
