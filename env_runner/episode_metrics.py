"""Returns and lengths of ended episodes of N environments that step together."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from epibatch.core.restoring import check_count

__all__ = ["EpisodeMetrics"]


class EpisodeMetrics:
    """Sums rewards per environment and stores the newest ended episodes.

    Args:
        num_envs: How many environments step together.
        window: Over how many ended episodes means, minima and maxima are taken.

    Example:
        >>> metrics = EpisodeMetrics(2)
        >>> metrics.add(np.array([1.0, 2.0]), skipped=[])
        >>> metrics.end(1)
        >>> metrics.report()["episode_return_mean"]
        2.0
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self._returns = np.zeros(num_envs)
        self._steps = 0
        self._begun = [0] * num_envs  # the step before each environment's episode
        self._ended: deque[tuple[float, int]] = deque(maxlen=window)
        self._new: list[float] = []
        self.lifetime = 0

    def add(self, rewards: Any, skipped: list[int]) -> None:
        """Count one vector step.

        Args:
            rewards: Shape [N].
            skipped: Environments whose step belongs to no episode.
        """
        self._returns += rewards
        self._steps += 1
        if skipped:
            self.forget(skipped)

    def end(self, env: int) -> None:
        """Count the running episode of an environment as ended."""
        value = self._returns.item(env)
        self._ended.append((value, self._steps - self._begun[env]))
        self._new.append(value)
        self.lifetime += 1
        self._returns[env] = 0.0
        self._begun[env] = self._steps

    def forget(self, envs: list[int] | None = None) -> None:
        """Start counting again, in all environments or some."""
        for env in range(len(self._begun)) if envs is None else envs:
            self._returns[env] = 0.0
            self._begun[env] = self._steps

    def report(self) -> dict[str, float]:
        """Return means, minima and maxima over the window.

        `num_episodes` and `episode_return_mean_this_iter` (left out without one) are about the
        episodes that ended since the last report.
        """
        out: dict[str, float] = {"num_episodes": len(self._new), "num_episodes_lifetime": self.lifetime}
        if self._new:
            out["episode_return_mean_this_iter"] = float(np.mean(self._new))
        self._new = []
        for name, values in zip(("return", "len"), zip(*self._ended) if self._ended else ((), ())):
            own = np.array(values or [np.nan], np.float64)
            out[f"episode_{name}_mean"] = float(own.mean())
            out[f"episode_{name}_min"] = float(own.min())
            out[f"episode_{name}_max"] = float(own.max())
        return out

    def get_state(self) -> dict[str, Any]:
        """Return the stored episodes and the lifetime count, without running sums."""
        return {"ended": np.array(self._ended, np.float64).reshape(-1, 2), "lifetime": self.lifetime}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`."""
        lifetime = check_count("state of episode metrics, 'lifetime'", state["lifetime"])
        ended = [(float(value), int(length)) for value, length in state["ended"]]
        self._ended.clear()
        self._ended.extend(ended)
        self.lifetime = lifetime
        self._new = []
        self.forget()
