"""When a training run ends, and whether it reached what it was for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .settings import StopSettings

__all__ = ["Verdict", "judge"]

_LIMITS = {
    "num_env_steps_sampled_lifetime": "env steps",
    "training_iteration": "iterations",
    "time_total_s": "seconds of training",
}


@dataclass(frozen=True)
class Verdict:
    """Why a run ends.

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

    A goal needs a mean over a full window of episodes: a lucky first episode solves nothing.

    Args:
        rules: the goal and the limits.
        results: what `Algorithm.train` returned.
        window: ended episodes that the mean return is about.
    """
    goal = rules.episode_return_mean
    runner = results.get("env_runners", {})
    mean = runner.get("episode_return_mean")
    enough = runner.get("num_episodes_lifetime", window) >= window
    if goal is not None and mean is not None and mean >= goal and enough:
        return Verdict(True, True, f"mean return {mean:.1f} over the last {window} episodes", "episode_return_mean")
    for name, unit in _LIMITS.items():
        limit = getattr(rules, name)
        if limit is not None and results[name] >= limit:
            return Verdict(False, goal is not None, f"the limit of {limit:,} {unit} is used up", name)
    return None
