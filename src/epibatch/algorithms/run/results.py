"""Results of iterations: as flat rows, which metrics files hold, and compared with the rules that stop a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..config.settings import StopSettings

RETURN_MEAN = "env_runners/episode_return_mean"
_FIRST = ("training_iteration", "num_env_steps_sampled_lifetime", RETURN_MEAN)


def flat_metrics(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers, strings and booleans of nested results under `a/b/c` keys; numbers that are not finite become None.

    Examples:
        >>> flat_metrics({"learners": {"default_policy": {"vf_loss": 0.5}}, "training_iteration": 1})
        {'learners/default_policy/vf_loss': 0.5, 'training_iteration': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in results.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping):
            flat.update(flat_metrics(value, f"{prefix}{key}/"))
        elif isinstance(value, float):
            flat[f"{prefix}{key}"] = value if math.isfinite(value) else None
        elif value is None or isinstance(value, (bool, int, str)):
            flat[f"{prefix}{key}"] = value
    return flat


def numbers_in(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers and booleans of nested results under `a/b/c` keys, as curves have them.

    Examples:
        >>> numbers_in({"learners": {"vf_loss": 0.5, "device": "cpu"}, "training_iteration": 1})
        {'learners/vf_loss': 0.5, 'training_iteration': 1}
    """
    return {name: value for name, value in flat_metrics(results).items() if isinstance(value, (int, float))}


def videos_in(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The videos of nested results, such as those of a `VideoRecorder`, under `a/b/c` keys.

    Examples:
        >>> sorted(videos_in({"env_runners": {"video": np.zeros((7, 4, 4, 3), np.uint8), "loss": 0.5}}))
        ['env_runners/video']
    """
    videos: dict[str, Any] = {}
    for key, value in results.items():
        if isinstance(value, Mapping):
            videos.update(videos_in(value, f"{prefix}{key}/"))
        elif isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape[3:] == (3,) and len(value):
            videos[f"{prefix}{key}"] = value
    return videos


def nested_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """A flat row as nested results again; a key below one that has a value of its own keeps its slash.

    Examples:
        >>> nested_metrics({"learners/default_policy/vf_loss": 0.5, "training_iteration": 1})
        {'learners': {'default_policy': {'vf_loss': 0.5}}, 'training_iteration': 1}
        >>> nested_metrics({"learners/loss/entropy": 0.5, "learners/loss": 1.5})
        {'learners': {'loss/entropy': 0.5, 'loss': 1.5}}
    """
    nested: dict[str, Any] = {}
    for key, value in row.items():
        parts = key.split("/")
        above = (depth for depth in range(1, len(parts)) if "/".join(parts[:depth]) in row)
        last = next(above, len(parts)) - 1
        place = nested
        for part in parts[:last]:
            place = place.setdefault(part, {})
        place["/".join(parts[last:])] = value
    return nested


def in_reading_order(columns: Iterable[str]) -> list[str]:
    """Columns with those first that one looks for first; the others keep their order.

    Examples:
        >>> in_reading_order(["timers/sample", "training_iteration"])
        ['training_iteration', 'timers/sample']
    """
    names = list(columns)
    return [name for name in _FIRST if name in names] + [name for name in names if name not in _FIRST]


# ----------------------------------------------------------------------------------------- stop rules

LIMITS = {
    "num_env_steps_sampled_lifetime": "env steps",
    "training_iteration": "iterations",
    "time_total_s": "seconds of training",
}
"""Limits of the `stop` section, which are results too -> what they count."""


@dataclass(frozen=True)
class Verdict:
    """The reason why a run ends.

    Attributes:
        solved: whether the goal was reached.
        has_goal: whether there was one.
        reason: one phrase for the user.
        setting: the setting of the `stop` section that ends it.
    """

    solved: bool
    has_goal: bool
    reason: str
    setting: str


def judge(rules: StopSettings, results: Mapping[str, Any], window: int = 100) -> Verdict | None:
    """Compare one iteration's results with the rules; None means go on.

    A goal of the training needs a mean over a full window of episodes: a lucky first episode solves nothing. One of the
    evaluation needs one evaluation, one of another result a number. The first goal that is reached ends the run.

    Args:
        rules: The goal and the limits.
        results: What `Algorithm.train` returned.
        window: Ended episodes that the mean return is about.
    """
    mean = _number(results, "env_runners", "episode_return_mean")
    episodes = _number(results, "env_runners", "num_episodes_lifetime")
    enough = episodes is None or episodes >= window
    if mean is not None and _reached(rules.episode_return_mean, mean) and enough:
        return Verdict(True, True, f"mean return {mean:.1f} over the last {window} episodes", "episode_return_mean")
    mean = _number(results, "evaluation", "env_runners", "episode_return_mean")
    if mean is not None and _reached(rules.evaluation_return_mean, mean):
        episodes = _number(results, "evaluation", "env_runners", "num_episodes")
        reason = f"mean return {mean:.1f} over {episodes} episodes of evaluation"
        return Verdict(True, True, reason, "evaluation_return_mean")
    flat = flat_metrics(results) if rules.results else {}
    for key, goal in rules.results.items():
        value = _number(flat, key)
        if value is not None and value >= goal:
            return Verdict(True, True, f"{key} {value:g}", f"results.{key}")
    has_goal = bool(rules.results) or rules.episode_return_mean is not None or rules.evaluation_return_mean is not None
    for name, unit in LIMITS.items():
        limit = getattr(rules, name)
        if limit is not None and results[name] >= limit:
            return Verdict(False, has_goal, f"the limit of {limit:,} {unit} is used up", name)
    return None


def _reached(goal: float | None, mean: float) -> bool:
    return goal is not None and mean >= goal


def _number(results: Any, *keys: str) -> Any:
    """A number in nested results, which may come from a file; None where there is something else."""
    for key in keys:
        results = results.get(key) if isinstance(results, Mapping) else None
    return results if isinstance(results, Real) else None
