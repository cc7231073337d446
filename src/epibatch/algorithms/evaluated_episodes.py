"""The episodes that an evaluation counts, put together from the chunks in which they come."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ..env_runner.agent_metrics import AgentMetrics
from ..episodes.multi_agent_episode import MultiAgentEpisode

__all__ = ["EvaluatedEpisodes"]

_BY_AGENT = ("agent_episode_returns_mean", "module_episode_returns_mean", "agent_steps")


class EvaluatedEpisodes:
    """Counts whole episodes of each environment.

    Args:
        runner: What samples them.

    Attributes:
        returns: Of the episodes that count.
        lengths: Their env steps.
        steps: Env steps in all of them.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._running: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self._agents = AgentMetrics(runner.num_envs, sys.maxsize)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.steps = 0

    def add(self, chunks: Sequence[Any], left: list[int]) -> None:
        """Take in what a `sample()` returned.

        Args:
            chunks: Of one environment in the order of time.
            left: How many episodes of each environment still count; changed.
        """
        for env, chunk in self._with_envs(chunks):
            if not left[env]:
                continue
            self._running[env].append((_return_of(chunk), len(chunk)))
            if isinstance(chunk, MultiAgentEpisode):
                (self._agents.end if chunk.is_done else self._agents.cut)(env, chunk)
            if chunk.is_done:
                left[env] -= 1
                parts = self._running.pop(env)
                self.returns.append(float(sum(part[0] for part in parts)))
                self.lengths.append(sum(part[1] for part in parts))
                self.steps += self.lengths[-1]

    def _with_envs(self, chunks: Any) -> Iterator[tuple[int, Any]]:
        """Each chunk with the number of its environment."""
        if hasattr(chunks, "chunks"):
            return zip((chunk.env for chunk in chunks.chunks), chunks)
        return zip(map(self._runner.env_of, chunks), chunks)

    def by_agent(self) -> dict[str, Any]:
        """Means of each agent's and each module's returns, and of the agents' steps; nothing with one agent."""
        report = self._agents.report()
        return {name: report[name] for name in _BY_AGENT if report[name]}


def _return_of(chunk: Any) -> float:
    """What a chunk brought; at the end with rewards that no step got."""
    if isinstance(chunk, MultiAgentEpisode) and chunk.is_done:
        return float(chunk.get_return(include_hanging_rewards=True))
    return float(chunk.get_return())
