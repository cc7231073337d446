"""Metrics: log values under keys, reduce them to one nested dict."""

from __future__ import annotations

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import Any

from epibatch.core import ALL_MODULES, DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, DEFAULT_POLICY_ID
from epibatch.core.errors import ConfigError, UnknownNameError, nearest
from epibatch.core.restoring import check_count, restoring

__all__ = [
    "ALL_MODULES",
    "DEFAULT_AGENT_ID",
    "DEFAULT_MODULE_ID",
    "DEFAULT_POLICY_ID",
    "ENV_RUNNER_RESULTS",
    "EPISODE_DURATION_SEC_MEAN",
    "EPISODE_LEN_MAX",
    "EPISODE_LEN_MEAN",
    "EPISODE_LEN_MIN",
    "EPISODE_RETURN_MAX",
    "EPISODE_RETURN_MEAN",
    "EPISODE_RETURN_MIN",
    "EVALUATION_RESULTS",
    "LEARNER_RESULTS",
    "NUM_AGENT_STEPS_SAMPLED",
    "NUM_AGENT_STEPS_SAMPLED_LIFETIME",
    "NUM_ENV_STEPS_SAMPLED",
    "NUM_ENV_STEPS_SAMPLED_LIFETIME",
    "NUM_ENV_STEPS_TRAINED",
    "NUM_ENV_STEPS_TRAINED_LIFETIME",
    "NUM_EPISODES",
    "NUM_EPISODES_LIFETIME",
    "NUM_MODULE_STEPS_SAMPLED",
    "NUM_MODULE_STEPS_SAMPLED_LIFETIME",
    "NUM_MODULE_STEPS_TRAINED",
    "NUM_MODULE_STEPS_TRAINED_LIFETIME",
    "REDUCTIONS",
    "TIMERS",
    "WEIGHTS_SEQ_NO",
    "MetricsLogger",
    "merge_logged",
]

ENV_RUNNER_RESULTS = "env_runners"
EVALUATION_RESULTS = "evaluation"
LEARNER_RESULTS = "learners"
TIMERS = "timers"
EPISODE_DURATION_SEC_MEAN = "episode_duration_sec_mean"
EPISODE_LEN_MAX = "episode_len_max"
EPISODE_LEN_MEAN = "episode_len_mean"
EPISODE_LEN_MIN = "episode_len_min"
EPISODE_RETURN_MAX = "episode_return_max"
EPISODE_RETURN_MEAN = "episode_return_mean"
EPISODE_RETURN_MIN = "episode_return_min"
NUM_AGENT_STEPS_SAMPLED = "num_agent_steps_sampled"
NUM_AGENT_STEPS_SAMPLED_LIFETIME = "num_agent_steps_sampled_lifetime"
NUM_ENV_STEPS_SAMPLED = "num_env_steps_sampled"
NUM_ENV_STEPS_SAMPLED_LIFETIME = "num_env_steps_sampled_lifetime"
NUM_ENV_STEPS_TRAINED = "num_env_steps_trained"
NUM_ENV_STEPS_TRAINED_LIFETIME = "num_env_steps_trained_lifetime"
NUM_EPISODES = "num_episodes"
NUM_EPISODES_LIFETIME = "num_episodes_lifetime"
NUM_MODULE_STEPS_SAMPLED = "num_module_steps_sampled"
NUM_MODULE_STEPS_SAMPLED_LIFETIME = "num_module_steps_sampled_lifetime"
NUM_MODULE_STEPS_TRAINED = "num_module_steps_trained"
NUM_MODULE_STEPS_TRAINED_LIFETIME = "num_module_steps_trained_lifetime"
WEIGHTS_SEQ_NO = "weights_seq_no"

REDUCTIONS = ("mean", "sum", "min", "max", "ema", "item", "lifetime_sum")
_EMA_COEFF = 0.01
_MISSING = object()

Key = tuple[Any, ...]


def _latest(old: Any, new: Any) -> Any:
    return new


def _moving_average(coeff: float, old: float, new: float) -> float:
    """The moving average `old` after one more value."""
    return old + coeff * (new - old)


_COMBINED: dict[Any, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("mean", "sum", "lifetime_sum"), operator.add),
    **{"min": min, "max": max, "item": _latest},
}
"""Reduction -> what it keeps of the values so far and one more."""
_REDUCED: dict[Any, Callable[[list[Any]], Any]] = {
    **{"mean": lambda values: math.fsum(values) / len(values), "sum": sum, "min": min, "max": max},
    **{"item": lambda values: values[-1], None: list},
}
"""Reduction -> the result of the values in a window."""


class _Metric:
    """The values of one key, and how they become one number."""

    __slots__ = ("_combine", "_count", "_first", "_new", "_recent", "_since", "_value", "_values", "settings")

    def __init__(self, settings: tuple[Any, ...]) -> None:
        self.settings = settings
        reduce, _, coeff, _, _ = settings
        self._combine: Any = _COMBINED.get(reduce) if coeff is None else partial(_moving_average, coeff)
        self._since = time.perf_counter()
        self._recent: float = 0
        self._first: Any = 0  # the value that a moving average began with
        self._new: _Metric | None = None  # what came since the last `take`, if there was one
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        reduce, window = self.settings[:2]
        self._count = 0
        self._value: Any = 0
        self._values: deque[Any] | None = deque(maxlen=window) if window or reduce is None else None

    def push(self, value: Any) -> None:
        """Take one value in."""
        reduce, _, _, _, throughput = self.settings
        if reduce is not None and reduce != "item" and type(value) is not float and type(value) is not int:
            value = _number(value)
        if throughput:
            self._recent += value
        self._count += 1
        if self._values is not None:
            self._values.append(value)
        elif self._count == 1:
            self._value = self._first = value
        else:
            self._value = self._combine(self._value, value)
        if self._new is not None:
            self._new.push(value)

    def result(self, default: Any = _MISSING) -> Any:
        """The reduced value; `default` if there is none."""
        reduce, _, ema_coeff, _, _ = self.settings
        if not self._count:
            return 0 if reduce in ("sum", "lifetime_sum") else [] if reduce is None else default
        if self._values is None:
            return self._value / self._count if reduce == "mean" and ema_coeff is None else self._value
        return _REDUCED[reduce](list(self._values))

    def per_second(self) -> float:
        """Return the sum per second since the last reduction."""
        return self._recent / max(time.perf_counter() - self._since, 1e-9)

    def end_round(self) -> None:
        """Begin a new round of throughput, and of values if they are cleared."""
        self._since, self._recent = time.perf_counter(), 0
        if self.settings[3]:
            self.clear()

    def get_state(self) -> dict[str, Any]:
        values = None if self._values is None else list(self._values)
        return {"settings": self.settings, "count": self._count, "value": self._value, "values": values}

    def take(self) -> dict[str, Any]:
        """Return what came since the last call, and begin a new round."""
        new, self._new = self._new or self, _Metric(self.settings)
        data = {**new.get_state(), "first": new._first, "recent": self._recent}
        self.end_round()
        return data

    def add_from(self, data: Mapping[str, Any]) -> None:
        """Take in what `take` of another metric with these settings gave, as if the values came now, in their order."""
        coeff = self.settings[2]
        self._recent += data["recent"]
        count, value = data["count"], data["value"]
        if self._values is not None:
            self._values.extend(data["values"])
        elif count and not self._count:
            self._value, self._first = value, data["first"]
        elif count and coeff is not None:
            self._value = value + (1 - coeff) ** count * (self._value - data["first"])
        elif count:
            self._value = self._combine(self._value, value)
        self._count += count

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Metric:
        settings: Any = tuple(state["settings"])
        metric = cls(settings)
        values = [] if metric._values is None else list(state["values"])
        if settings[0] not in (None, "item"):
            values = [_number(value) for value in values]
            metric._value = _number(state["value"])
        else:
            metric._value = state["value"]
        metric._count = check_count("state of a metric, 'count'", state["count"])
        if metric._values is not None:
            metric._values.extend(values)
            metric._count = metric._count if values else 0
        metric._new = cls(settings)
        return metric


class _Timer:
    """Logs how many seconds a `with` block took."""

    __slots__ = ("_begin", "_metric")

    def __init__(self, metric: _Metric) -> None:
        self._metric = metric

    def __enter__(self) -> _Timer:
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metric.push(time.perf_counter() - self._begin)


class MetricsLogger:
    """Collects values under nested keys and reduces them when results are due.

    A key belongs to one way of reducing: log it with the same options every time.

    Args:
        times_pieces: Whether a pipeline that is called with this logger logs the seconds of its pieces in it.

    Examples:
        >>> metrics = MetricsLogger()
        >>> for step in range(4):
        ...     metrics.log_value("loss", step, window=2)
        ...     metrics.log_value(("steps", "lifetime"), 10, reduce="sum")
        >>> metrics.reduce()
        {'loss': 2.5, 'steps': {'lifetime': 40}}
    """

    def __init__(self, *, times_pieces: bool = True) -> None:
        self.times_pieces = times_pieces
        self._metrics: dict[Key, _Metric] = {}

    def log_value(
        self,
        key: str | Key,
        value: Any,
        *,
        reduce: str | None = "mean",
        window: int | None = None,
        ema_coeff: float | None = None,
        clear_on_reduce: bool = False,
        with_throughput: bool = False,
    ) -> None:
        """Log one value.

        Args:
            key: A name, or a tuple of names for a nested place in the results.
            value: A number, or an array or tensor that holds one; with `reduce` None or "item" anything.
            reduce: "mean", "sum", "min", "max", "ema" (exponential moving average), "item" (the last
                value), "lifetime_sum" (a sum that is never cleared) or None (the list of values).
            window: Reduce over this many last values only.
            ema_coeff: Weight of a new value in a moving average; makes a "mean" one.
            clear_on_reduce: Start over after each `reduce`.
            with_throughput: For sums, also report `<key>_throughput`, the sum per second since the last `reduce`.

        Raises:
            ConfigError: options that do not go together, other options than before for this key, a key
                that is a parent of another one, or a value that is no number.
        """
        metric = self._metric(key, (reduce, window, ema_coeff, clear_on_reduce, with_throughput))
        metric.push(value)

    def log_dict(self, value_dict: Mapping[str, Any], *, key: str | Key | None = None, **options: Any) -> None:
        """Log every value of a nested dict.

        Args:
            value_dict: Names to values or to further dicts.
            key: Where the dict goes in the results; None is the top.
            **options: The options of `log_value`, for all values.

        Raises:
            ConfigError: as for `log_value`.
        """
        prefix = () if key is None else _key(key)
        for name, value in value_dict.items():
            if isinstance(value, Mapping):
                self.log_dict(value, key=(*prefix, name), **options)
            else:
                self.log_value((*prefix, name), value, **options)

    def log_time(
        self,
        key: str | Key,
        *,
        reduce: str | None = "mean",
        window: int | None = None,
        ema_coeff: float | None = None,
        clear_on_reduce: bool = False,
    ) -> _Timer:
        """A context manager that logs the seconds spent in its block; options as for `log_value`.

        Examples:
            >>> metrics = MetricsLogger()
            >>> with metrics.log_time(("timers", "sample")):
            ...     pass
            >>> metrics.peek(("timers", "sample")) < 1.0
            True
        """
        return _Timer(self._metric(key, (reduce, window, ema_coeff, clear_on_reduce, False)))

    def peek(self, key: str | Key | None = None, default: Any = _MISSING, *, throughput: bool = False) -> Any:
        """The current value of a key, or a nested dict for a parent of keys, without clearing anything.

        Args:
            key: The key; None gives all.
            default: What to give when nothing is logged under the key.
            throughput: Give the sum per second instead, for a key logged `with_throughput`.

        Raises:
            UnknownNameError: nothing is logged under the key and there is no default.
        """
        path = () if key is None else _key(key)
        metric = self._metrics.get(path)
        found: Any = default
        if metric is not None:
            found = metric.per_second() if throughput else metric.result(default)
        elif key is None or any(other[: len(path)] == path for other in self._metrics):
            found = self._results(path)
        if found is _MISSING:
            hint = nearest("/".join(map(str, path)), ("/".join(map(str, other)) for other in self._metrics))
            raise UnknownNameError("metrics", expected="a key with values", found=repr(key), do=hint)
        return found

    def reduce(self) -> dict[str, Any]:
        """All results as a nested dict; afterwards, keys logged with `clear_on_reduce` start over.

        Sums without values are 0; other keys without values are left out.
        """
        results = self._results(())
        for metric in self._metrics.values():
            metric.end_round()
        return results

    def take(self) -> dict[str, Any]:
        """Return what was logged since the last call, as data for `add_from`; keys with `clear_on_reduce` start over.

        Examples:
            >>> here, there = MetricsLogger(), MetricsLogger()
            >>> for value in (1.0, 2.0, 6.0):
            ...     there.log_value("loss", value)
            ...     here.add_from(there.take())
            >>> here.reduce(), there.reduce()
            ({'loss': 3.0}, {'loss': 3.0})
        """
        return {"metrics": {key: metric.take() for key, metric in self._metrics.items()}}

    def add_from(self, data: Mapping[str, Any]) -> None:
        """Log what another logger gave with `take`, as if it were logged here now.

        Raises:
            ConfigError: a key is logged with other options here, or is a parent of one.
        """
        for key, values in data["metrics"].items():
            self._metric(key, tuple(values["settings"])).add_from(values)

    def get_state(self) -> dict[str, Any]:
        """All values and options, as data."""
        return {"metrics": {key: metric.get_state() for key, metric in self._metrics.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave, in place of everything logged so far."""
        metrics = {}
        with restoring("state of a metrics logger", "metrics"):
            for key, value in state["metrics"].items():
                _check_settings(_key(key), tuple(value["settings"]))
                metrics[_key(key)] = _Metric.from_state(value)
        for key in metrics:
            if any(key[:length] in metrics for length in range(1, len(key))):
                raise _refuse(key, "a key that is no parent or child of another", "its parent too")
        self._metrics = metrics

    def _results(self, prefix: Key) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for key, metric in self._metrics.items():
            if key[: len(prefix)] != prefix:
                continue
            value = metric.result()
            if value is _MISSING:
                continue
            place = results
            for name in key[len(prefix) : -1]:
                place = place.setdefault(name, {})
            place[key[-1]] = value
            if metric.settings[4]:
                place[f"{key[-1]}_throughput"] = metric.per_second()
        return results

    def _metric(self, key: str | Key, settings: tuple[Any, ...]) -> _Metric:
        path = (key,) if type(key) is str else _key(key)
        if settings[0] == "ema" and settings[2] is None:
            settings = (*settings[:2], _EMA_COEFF, *settings[3:])
        metric = self._metrics.get(path)
        if metric is None:
            _check_settings(path, settings)
            for other in self._metrics:
                if other[: len(path)] == path or path[: len(other)] == other:
                    raise _refuse(path, "a key that is no parent or child of another", f"{other} beside {path}")
                if _joined(other) == _joined(path):
                    raise _refuse(path, "a key with a name of its own, joined by /", f"{other} beside {path}")
            metric = self._metrics[path] = _Metric(settings)
        elif metric.settings != settings:
            names = "(reduce, window, ema_coeff, clear_on_reduce, with_throughput)"
            raise _refuse(path, f"{names} = {metric.settings}, as when it was first logged", settings)
        return metric


def merge_logged(results: Mapping[str, Any], logged: MetricsLogger, where: str) -> dict[str, Any]:
    """Results together with what was logged beside them; the logger is reduced.

    Args:
        results: The results.
        logged: What others logged.
        where: Whose results they are, for messages.

    Raises:
        ConfigError: both have the same name.
    """
    others = logged.reduce()
    duplicates = sorted(map(str, results.keys() & others.keys()))
    if duplicates:
        expected = f"names that the {where}'s own metrics do not have"
        do = "log it under another name, or below one: metrics.log_value(('mine', 'value'), value)"
        raise ConfigError(f"metrics of the {where}", expected=expected, found=", ".join(duplicates), do=do)
    return {**results, **others}


def _joined(key: Key) -> str:
    return "/".join(map(str, key))


def _key(key: Any) -> Key:
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, (tuple, list)) or not key:
        raise _refuse(key, "a name or a tuple of names", repr(key))
    return tuple(key)


def _check_settings(key: Key, settings: tuple[Any, ...]) -> None:
    reduce, window, ema_coeff, clear, throughput = settings
    if reduce is not None and reduce not in REDUCTIONS:
        raise _refuse(key, "reduce=None or a known reduction", f"reduce={reduce!r}; {nearest(str(reduce), REDUCTIONS)}")
    if window is not None and (not isinstance(window, Integral) or window < 1):
        raise _refuse(key, "window=None or a positive integer", f"window={window!r}")
    if ema_coeff is not None and (reduce not in ("mean", "ema") or window or not 0.0 < ema_coeff <= 1.0):
        raise _refuse(key, "ema_coeff in (0, 1] for a mean without window", f"ema_coeff={ema_coeff!r}, {settings}")
    if reduce == "lifetime_sum" and (clear or window):
        raise _refuse(key, "lifetime_sum without window or clear_on_reduce", settings)
    if throughput and reduce not in ("sum", "lifetime_sum"):
        raise _refuse(key, "with_throughput for a sum", f"reduce={reduce!r}")


def _number(value: Any) -> float:
    """An int or float for anything that holds a single number."""
    try:
        item = value.item() if hasattr(value, "item") else value
        return int(item) if isinstance(item, int) else float(item)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "metrics", expected="a number", found=repr(value), do="log one number, or pass reduce=None"
        ) from error


def _refuse(key: Any, expected: str, found: object) -> ConfigError:
    do = "use one key and one set of options per metric"
    return ConfigError(f"metric {key!r}", expected=expected, found=found, do=do)
