"""Metrics of a runner's sampling: steps, episodes, seconds."""

from __future__ import annotations

from typing import Any

from epibatch.core.metrics import MetricsLogger, with_logged
from epibatch.core.restoring import check_count

from .agent_metrics import AgentMetrics
from .episode_metrics import EpisodeMetrics

__all__ = ["SamplingMetrics"]


class SamplingMetrics:
    """Counts the steps of N environments, the ended episodes, and the time.

    Args:
        num_envs: How many environments step together.
        window: Over how many ended episodes means, minima and maxima are taken.
        agents: The metrics of several agents, if there are several.

    Attributes:
        agents: The same.
        episodes: Returns and lengths.
        steps: Environment steps over the lifetime.
        seconds: Spent sampling since the last report.
        logged: The logger that pieces get as `metrics`.

    Example:
        >>> import numpy as np
        >>> metrics = SamplingMetrics(3)
        >>> metrics.add(np.ones(3), skipped=[1])
        >>> metrics.report()["num_env_steps_sampled"]
        2
    """

    def __init__(self, num_envs: int, window: int = 100, agents: AgentMetrics | None = None) -> None:
        self.agents = agents
        self.episodes = EpisodeMetrics(num_envs, window)
        self.steps = 0
        self.seconds = 0.0
        self.logged = MetricsLogger(times_pieces=False)
        self._num_envs = num_envs
        self._reported = 0

    def add(self, rewards: Any, skipped: list[int]) -> None:
        """Count one vector step.

        Args:
            rewards: Shape [N].
            skipped: Environments whose step belongs to no episode.
        """
        self.episodes.add(rewards, skipped)
        self.steps += self._num_envs - len(skipped)

    def forget(self) -> None:
        """Drop running episodes, as all environments are reset."""
        self.episodes.forget()
        if self.agents is not None:
            self.agents.forget()

    def report(self) -> dict[str, Any]:
        """Return counts since the last report and over the lifetime, returns, seconds, and values that pieces logged.

        Raises:
            ConfigError: a piece logs under a name of these metrics.
        """
        metrics = {
            **self.episodes.report(),
            **(self.agents.report() if self.agents is not None else {}),
            "num_env_steps_sampled": self.steps - self._reported,
            "num_env_steps_sampled_lifetime": self.steps,
            "sample": self.seconds,
        }
        self._reported, self.seconds = self.steps, 0.0
        return with_logged(metrics, self.logged, "environment runner")

    def get_state(self) -> dict[str, Any]:
        """Return the lifetime counts, the stored episodes, and the values that pieces logged."""
        state = {
            "num_env_steps_sampled_lifetime": self.steps,
            "episode_metrics": self.episodes.get_state(),
            "logged_metrics": self.logged.get_state(),
        }
        if self.agents is not None:
            state["agent_metrics"] = self.agents.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`, or a part of it."""
        if "num_env_steps_sampled_lifetime" in state:
            self.steps = self._reported = check_count(
                "state of a runner, 'num_env_steps_sampled_lifetime'", state["num_env_steps_sampled_lifetime"]
            )
        if "episode_metrics" in state:
            self.episodes.set_state(state["episode_metrics"])
        if "agent_metrics" in state and self.agents is not None:
            self.agents.set_state(state["agent_metrics"])
        if "logged_metrics" in state:
            self.logged.set_state(state["logged_metrics"])
